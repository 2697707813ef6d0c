"""What channels over the parts of a framework share: a filter that is kept, whatever the part makes of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from voicevault_retrievers.core.channel import MAX_DEPTH
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import Call, Plan, converting
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.leaf import LeafChannel, Match, in_given_order
from voicevault_retrievers.core.types import Failure, Query, Ranking, Variant
from voicevault_retrievers.engines.filters import nothing_passes

A = TypeVar("A")
N = TypeVar("N")
E = TypeVar("E")

_CUT = (
    "of the nearest {} fewer pass the filter than were wanted, and more may lie below: set a filter on that part "
    "itself too"
)


class Foreign(LeafChannel, Generic[A, N, E]):
    """A channel over a part that filters in its own way, or not at all; subclasses say how it is searched.

    A is what the part is asked with, N what it is given of a filter, E what it gives, an entry for each hit.

    What is found is checked, and while fewer than k are kept and the part gave all it was asked for, it is asked for
    twice as many, up to `MAX_DEPTH` or its `reach`; a ranking that ends there says so. Where a deeper ask fails the
    answer to the one before it stands, with the failure beside it. The part's order is kept; scores are where they fall
    with it. Where `awaits` is false the part is called in a worker thread even by an async search.
    """

    each_alone = True
    awaits = True
    reach: int | None = None
    """How many entries the part gives at most, however many there are; None where there is no such end."""

    @abstractmethod
    def _asked(self, query: Query, wording: Variant) -> A | None:
        """What the part is asked with for a wording; None where there is nothing to look for."""

    async def _aasked(self, query: Query, wording: Variant) -> A | None:
        """`_asked`, awaited."""
        return self._asked(query, wording)

    @abstractmethod
    def _search(self, asked: A, k: int, narrowed: N) -> Sequence[E]:
        """At most k entries, best first; `narrowed` is what `_narrowed` made of the filter."""

    @abstractmethod
    async def _asearch(self, asked: A, k: int, narrowed: N) -> Sequence[E]:
        """`_search`, awaited."""

    @abstractmethod
    def _narrowed(self, where: Filter | None) -> N:
        """What the part is given of a filter; whatever passes the filter passes that."""

    @abstractmethod
    def _kept(self, found: Sequence[E], where: Filter | None, k: int) -> Sequence[Match]:
        """The first k of those entries that pass a filter, in their order."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        where = filter_of(query)
        narrowed = self._narrowed(where)
        return [
            self._deepened(self._asked(query, wording), where, narrowed, _Deepening(k, self.reach))
            for wording in wordings
        ]

    def _deepened(self, asked: A | None, where: Filter | None, narrowed: N, deeper: _Deepening) -> Sequence[Match]:
        while asked is not None and not deeper.done:
            try:
                found = self._search(asked, deeper.depth, narrowed)
            except Exception as error:  # noqa: BLE001 - raised again where there is no answer yet
                deeper.fail(error)
            else:
                deeper.take(len(found), self._kept(found, where, deeper.k))
        return self._matches(deeper)

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        where = filter_of(query)
        narrowed = self._narrowed(where)
        return [
            await self._adeepened(await self._aasked(query, wording), where, narrowed, _Deepening(k, self.reach))
            for wording in wordings
        ]

    async def _adeepened(
        self, asked: A | None, where: Filter | None, narrowed: N, deeper: _Deepening
    ) -> Sequence[Match]:
        while asked is not None and not deeper.done:
            try:
                found = await self._asearch(asked, deeper.depth, narrowed)
            except Exception as error:  # noqa: BLE001 - raised again where there is no answer yet
                deeper.fail(error)
            else:
                keeping = converting(partial(self._kept, found, where, deeper.k), len(found))
                deeper.take(len(found), await aexecute(keeping))
        return self._matches(deeper)

    def _matches(self, deeper: _Deepening) -> _Matches:
        matches = _Matches(in_given_order(deeper.kept or ()))
        if deeper.error is not None:
            matches.failure = Failure.of(self.name, deeper.error)
        elif deeper.cut:
            matches.failure = Failure(self.name, "FilterDepth", _CUT.format(deeper.end))
        return matches

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if nothing_passes(filter_of(query)):
            return Ranking()
        return (yield from super().plan(query, k))

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        failures = (matches.failure for matches in found if isinstance(matches, _Matches))
        return [failure for failure in failures if failure is not None]

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        call = super()._call(query, wordings, k)
        return call if self.awaits else replace(call, coroutine=None)


def filter_of(query: Query) -> Filter | None:
    """What has to pass for the query's rights and its own narrowing."""
    return both(query.require, query.where)


class _Matches(list[Match]):
    """What passes the filter, and where that may not be all that was wanted, why."""

    failure: Failure | None = None


class _Deepening:
    """How deep to search until k matches are kept."""

    def __init__(self, k: int, reach: int | None) -> None:
        self.k = k
        self.end = MAX_DEPTH if reach is None else min(reach, MAX_DEPTH)
        self.depth = k if reach is None else min(k, reach)
        self.kept: Sequence[Match] | None = None
        self.done = self.cut = False
        self.error: Exception | None = None

    def take(self, given: int, kept: Sequence[Match]) -> None:
        """Note what is kept of what a search of `depth` gave, and how deep the next one is to go."""
        self.kept = kept
        more = len(kept) < self.k and given >= self.depth
        self.cut = more and self.depth >= self.end
        self.done = not more or self.cut
        self.depth = min(2 * self.depth, self.end)

    def fail(self, error: Exception) -> None:
        """Note that a search failed; raises its error where it was the first."""
        if self.kept is None:
            raise error
        self.error, self.done = error, True
