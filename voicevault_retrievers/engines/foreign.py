"""The base of channels over components of a framework, whose results are filtered here as well."""

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
from voicevault_retrievers.core.leaf import LeafChannel, Match, degraded_below, in_given_order
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
    """A channel over a component that filters in its own way, or not at all; subclasses implement its search.

    A is the type of a request to the component, N that of the filter passed to it, E that of an entry it returns. The
    results are filtered here. While fewer than k pass and the component returned as many as requested, twice as many
    are requested, up to `MAX_DEPTH` or `reach`; a ranking that ends there says so. Where a deeper request fails, the
    previous answer stands, with the failure beside it. The component's order is kept; scores stay where they fall with
    the order. Where `awaits` is false, even an async search calls the component in a worker thread.
    """

    each_alone = True
    awaits = True
    reach: int | None = None
    """The most entries that the component returns; None where it has no such limit."""

    @abstractmethod
    def _asked(self, query: Query, wording: Variant) -> A | None:
        """The request for a wording; None where there is nothing to search for."""

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
    def _narrowed(self, query: Query) -> N:
        """The filter for the component; it passes whatever the query's rights and filter pass."""

    @abstractmethod
    def _kept(self, found: Sequence[E], where: Filter | None, k: int) -> Sequence[Match]:
        """The first k entries that pass a filter, in their order."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        where = filter_of(query)
        narrowed = self._narrowed(query)
        return [
            self._deepened(self._asked(query, wording), where, narrowed, _Deepening(k, self.reach, where))
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
        narrowed = self._narrowed(query)
        return [
            await self._adeepened(await self._aasked(query, wording), where, narrowed, _Deepening(k, self.reach, where))
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
        return [*degraded_below(self.name, found), *(failure for failure in failures if failure is not None)]

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        call = super()._call(query, wordings, k)
        return call if self.awaits else replace(call, coroutine=None)


def filter_of(query: Query) -> Filter | None:
    """The conjunction of the query's access rights and its filter."""
    return both(query.require, query.where)


class _Matches(list[Match]):
    """The matches that pass the filter, and the failure where there may be more."""

    failure: Failure | None = None


class _Deepening:
    """The search depth, raised until k matches are kept."""

    def __init__(self, k: int, reach: int | None, where: Filter | None) -> None:
        self.k = k
        self._narrows = bool(where) or reach is None
        self.end = MAX_DEPTH if reach is None else min(reach, MAX_DEPTH)
        self.depth = k if reach is None else min(k, reach)
        self.kept: Sequence[Match] | None = None
        self.done = self.cut = False
        self.error: Exception | None = None

    def take(self, given: int, kept: Sequence[Match]) -> None:
        """Record the matches kept from `given` entries, and set the depth of the next search."""
        self.kept = kept
        more = len(kept) < self.k and given >= self.depth
        ended = more and self.depth >= self.end
        self.cut = ended and self._narrows  # without a filter, whoever limits the depth wants no more
        self.done = not more or ended
        self.depth = min(2 * self.depth, self.end)

    def fail(self, error: Exception) -> None:
        """Record a failed search; raises its error where it was the first."""
        if self.kept is None:
            raise error
        self.error, self.done = error, True
