"""Channels, stages and rewriters, and the operator that joins them.

`channel >> stage` is again a channel, and so is `rewriter >> channel`. Each is a plan (see `execution`), so every
composition can be searched synchronously and on an event loop, and gives the same ranking.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.access_control import permitted
from voicevault_retrievers.core.component import Component
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Call, Observer, Plan, Span, in_thread
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.types import (
    ChannelKind,
    Failure,
    Query,
    Ranking,
    Scan,
    as_query,
)

C = TypeVar("C", bound="Channel")
W = TypeVar("W", bound="Over")

MAX_DEPTH = 10_000
"""A stage that drops hits is not fed more than this many to fill up."""


class Channel(ABC):
    """Finds chunks for a query. `name` is what votes, errors and weights call it."""

    name: str
    kind: ChannelKind

    @abstractmethod
    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        """How to find at most k chunks; never an unmatched one to fill up."""

    def search(
        self,
        query: str | Query,
        k: int = 10,
        *,
        timeout: float | None = None,
        spans: MutableSequence[Span] | None = None,
        observe: Observer | None = None,
    ) -> Ranking:
        """At most k hits, best first. `timeout` is in seconds for the whole search; the others see `execute`."""
        return execute(self.plan(as_query(query), check_k(k)), timeout=timeout, spans=spans, observe=observe).read()

    async def asearch(
        self,
        query: str | Query,
        k: int = 10,
        *,
        timeout: float | None = None,
        spans: MutableSequence[Span] | None = None,
        observe: AsyncObserver | None = None,
    ) -> Ranking:
        """`search` on the running event loop; the same ranking."""
        plan = self.plan(as_query(query), check_k(k))
        ranking = await aexecute(plan, timeout=timeout, spans=spans, observe=observe)
        if not isinstance(ranking.hits, Listing):
            return ranking
        return await aexecute(in_thread(self.name, ranking.read))

    def scan(self, query: Query) -> Scan | None:
        """What it can say of a query beside its best hits; None where it cannot tell. A search's ranking has it too."""
        return None

    def scores(self, query: Query, ids: Iterable[str]) -> Mapping[str, float] | None:
        """The exact score of given chunks, 0 where a keyword channel matches none; None where it cannot tell."""
        scan = self.scan(query)
        return None if scan is None else scan.scores(list(ids))

    def coverage(self, query: Query) -> float | None:
        """The share of the query's terms that some chunk has, in [0, 1]; None where it cannot tell."""
        scan = self.scan(query)
        return None if scan is None else scan.coverage

    def children(self) -> Mapping[str, Channel]:
        """The channels that it is made of, by name; none where it searches something itself."""
        return {}

    def leaves(self) -> Iterator[Channel]:
        """The channels at the bottom of this one."""
        children = self.children()
        if not children:
            yield self
        for child in children.values():
            yield from child.leaves()

    def warm_up(self) -> None:
        """Load the models that the first search would wait for. Raises what loading them raises."""
        for child in self.children().values():
            child.warm_up()

    def named(self: C, name: str) -> C:
        """This channel under another name; what it searches is shared."""
        twin = copy.copy(self)
        twin.name = name
        return twin

    def describe(self, indent: str = "") -> str:
        """The composition as text, one part a line."""
        return f"{indent}{self.name}: {self!r}"

    def __rshift__(self, stage: Stage) -> Then:
        if not isinstance(stage, Stage):
            return NotImplemented
        return Then(self, stage)


class Over(Channel):
    """A channel over one below, whose name and kind it has."""

    def __init__(self, below: Channel) -> None:
        self.below = below
        self.name = below.name
        self.kind = below.kind

    def children(self) -> Mapping[str, Channel]:
        return {self.below.name: self.below}

    def named(self: W, name: str) -> W:
        twin = super().named(name)
        twin.below = self.below.named(name)
        return twin


class Through(Channel):
    """A channel over one below, which tells of its scores; `asked` is the query that the one below is asked with."""

    below: Channel

    def asked(self, query: Query) -> Query:
        """The query as the channel below gets it."""
        return query

    def scan(self, query: Query) -> Scan | None:
        return self.below.scan(self.asked(query))


class Stage(Component):
    """Refines a ranking: reranks, drops, expands. Pure: it never calls the channel below.

    One that never `refills` is asked once, however many hits it leaves. Of one that is `bounded` a search keeps the
    first k hits, of another all.
    """

    refills = True
    bounded = True

    arefine: Callable[[Query, Ranking], Awaitable[Ranking]] | None = None
    """An async `refine`, where the stage has one of its own."""

    @abstractmethod
    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The ranking after this stage; it keeps the errors of the one it was given."""

    def needs(self, k: int) -> int:
        """How many hits it asks from below, at first, to give k."""
        return k

    def warm_up(self) -> None:
        """Load the model that the first search would wait for, where there is one."""

    def instead(self, ranking: Ranking) -> str:
        """What a search does where this stage fails."""
        is_fused = any(hit.score is not None and hit.score == hit.fused for hit in ranking.hits[:1])
        return f"{'the fused order' if is_fused else 'the order before it'} is kept"

    def over(self, channels: Mapping[str, Channel]) -> Stage:
        """This stage behind a fusion of channels: one that goes by what they hold gives its twin that does."""
        return self

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        """How to refine a ranking; where a stage of this package's own fails, the ranking as it was, and the failure.

        Raises StageError where another one fails, and SearchTimeoutError where that outlives its deadline.
        """
        asked = ranking.by_score() if self.own else ranking
        call = Call(
            self.name,
            partial(self._refined, query, asked),
            partial(self._arefined, query, asked) if self.arefine and self.awaits else None,
            timeout=self.timeout,
            breaker=self._breaker,
            inline=not self.blocking,
            kind="stage",
            texts=(query.text,),
        )
        (outcome,) = yield (call,)
        if isinstance(outcome, Exception):
            return ranking.failing(self._left_out(outcome, self.instead(ranking)))
        refined: Ranking = outcome
        return (_rescored_as(ranking, asked, refined) if ranking.arranged else refined).failing(*ranking.errors)

    def _refined(self, query: Query, ranking: Ranking) -> Ranking:
        with self._guarded():
            return self._checked(query, self.refine(query, ranking))

    async def _arefined(self, query: Query, ranking: Ranking) -> Ranking:
        arefine: Any = self.arefine
        with self._guarded():
            return self._checked(query, await arefine(query, ranking))

    def _checked(self, query: Query, given: Any) -> Ranking:
        """What a stage gave; hits that access rights do not permit no later stage and no trace is to have."""
        if not isinstance(given, Ranking):
            raise TypeError(f"{self.name} gave a {type(given).__name__}, not a Ranking")
        return permitted(given, query.require)


class Then(Over):
    """A channel followed by a stage.

    While the stage gives fewer than k and the channel gave all it was asked for, the channel is asked for twice as
    many, unless the stage never `refills`. Where a deeper ask fails, even in part, the answer to the one before it
    stands, with the failure beside it. The first k are kept, unless the stage is not `bounded`.
    """

    def __init__(self, below: Channel, stage: Stage) -> None:
        super().__init__(below)
        self.stage = stage

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        ask = max(k, self.stage.needs(k))
        below = yield from self.below.plan(query, ask)
        refined = yield from self.stage.plan(query, below)
        while self.stage.refills and len(refined) < k and len(below) >= ask and ask < MAX_DEPTH:
            ask = min(2 * ask, MAX_DEPTH)
            try:
                deeper = yield from self.below.plan(query, ask)
            except Exception as error:  # noqa: BLE001 - whatever it is, there is an answer already
                return refined.failing(Failure.of(self.name, error, "what was found before is kept")).top(k)
            if any(failure.degrades for failure in set(deeper.errors) - set(below.errors)):
                return refined.failing(*deeper.errors).top(k)
            below = deeper
            refined = yield from self.stage.plan(query, below)
        return replace(refined.top(k) if self.stage.bounded else refined, scan=None)

    def warm_up(self) -> None:
        super().warm_up()
        self.stage.warm_up()

    def describe(self, indent: str = "") -> str:
        return f"{self.below.describe(indent)}\n{indent}>> {self.stage!r}"

    def __repr__(self) -> str:
        return f"{self.below!r} >> {self.stage!r}"


class Rewriter(Component):
    """Rewrites a query before it is searched: expansion, hypothetical answers, follow-up questions."""

    instead = "the query is searched as it was"
    """What a search does where this rewriter fails."""

    arewrite: Callable[[Query], Awaitable[Query]] | None = None
    """An async `rewrite`, where the rewriter has one of its own."""

    @abstractmethod
    def rewrite(self, query: Query) -> Query:
        """The query to search for; the given one is not changed."""

    def call(self, query: Query) -> Call:
        """The call that rewrites a query, made once in a run."""
        return Call(
            self.name,
            partial(self._rewrite, query),
            partial(self._arewrite, query) if self.arewrite and self.awaits else None,
            timeout=self.timeout,
            breaker=self._breaker,
            key=(self._breaker, query),
            inline=not self.blocking,
            kind="rewriter",
            texts=(query.text,),
        )

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        """How to rewrite a query; where a rewriter of this package's own fails, the query as it was, and the failure.

        Raises StageError where another one fails, and SearchTimeoutError where that outlives its deadline.
        """
        (outcome,) = yield (self.call(query),)
        if isinstance(outcome, Exception):
            return query, (self._left_out(outcome, self.instead),)
        return as_query(outcome), ()

    def _rewrite(self, query: Query) -> Query:
        with self._guarded():
            return self.rewrite(query)

    async def _arewrite(self, query: Query) -> Query:
        arewrite: Any = self.arewrite
        with self._guarded():
            rewritten: Query = await arewrite(query)
        return rewritten

    def over(self, channel: Channel) -> Rewriter:
        """This rewriter before a channel: one that goes by what is searched there gives its twin that does."""
        return self

    def __rshift__(self, channel: Channel) -> Rewritten:
        if not isinstance(channel, Channel):
            return NotImplemented
        return Rewritten(self.over(channel), channel)


class Rewritten(Over):
    """A channel asked with a rewritten query; with the original where one of this package's own fails, which is noted.

    The access rights stay those of the original: a rewriter that makes a new query does not lose them.
    """

    def __init__(self, rewriter: Rewriter, below: Channel) -> None:
        super().__init__(below)
        self.rewriter = rewriter

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        rewritten, failures = yield from self.rewriter.plan(query)
        ranking = yield from self.below.plan(replace(rewritten, require=query.require), k)
        return ranking.failing(*failures)

    def describe(self, indent: str = "") -> str:
        return f"{indent}{self.rewriter!r} >>\n{self.below.describe(indent)}"

    def __repr__(self) -> str:
        return f"{self.rewriter!r} >> {self.below!r}"


def _rescored_as(given: Ranking, asked: Ranking, refined: Ranking) -> Ranking:
    """A ranking with the scores of an arranged one, where the stage between, which was asked without, ordered none."""
    before, scores = {hit.id: hit for hit in asked}, {hit.id: hit.score for hit in given}
    if any(hit.id not in before or hit.votes != before[hit.id].votes for hit in refined):
        return refined
    return replace(refined, hits=tuple(replace(hit, score=scores[hit.id]) for hit in refined), arranged=True)


def check_k(k: int) -> int:
    """k, when it is a whole number of at least 0."""
    return whole("k", k, least=0)
