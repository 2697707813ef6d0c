"""Channels, stages and rewriters, and the operator that joins them.

`channel >> stage` and `rewriter >> channel` are channels again. Each channel makes a plan (see `execution`), so every
composition can be searched synchronously or on an event loop, with the same ranking.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.access_control import permitted, unblocked, with_rights_of
from voicevault_retrievers.core.component import Component
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import AsyncObserver, Call, Observer, Plan, Span, in_thread
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.types import (
    ChannelKind,
    Failure,
    Hit,
    Query,
    Ranking,
    Scan,
    Vote,
    as_query,
)
from voicevault_retrievers.errors import ConfigError

C = TypeVar("C", bound="Channel")
W = TypeVar("W", bound="Over")

MAX_DEPTH = 10_000
"""The most hits that a stage which drops hits is given, so that k hits are left."""


class Channel(ABC):
    """Finds chunks for a query. `name` identifies the channel in votes, errors and weights."""

    name: str
    kind: ChannelKind

    @abstractmethod
    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        """The plan that finds at most k chunks. A channel never adds unmatched chunks to reach k."""

    def search(
        self,
        query: str | Query,
        k: int = 10,
        *,
        timeout: float | None = None,
        spans: MutableSequence[Span] | None = None,
        observe: Observer | None = None,
    ) -> Ranking:
        """At most k hits, best first. `timeout` limits the whole search, in seconds; see `execute` for the rest."""
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
        """What the channel can tell beyond its best hits, or None. The ranking of a search carries the same scan."""
        return None

    def scores(self, query: str | Query, ids: Iterable[str]) -> Mapping[str, float] | None:
        """The exact scores of given chunks, 0 where a keyword channel matches none; None where it cannot tell."""
        scan = self.scan(as_query(query))
        return None if scan is None else scan.scores(list(ids))

    def coverage(self, query: str | Query) -> float | None:
        """The share of the query's terms that occur in some chunk, in [0, 1]; None where the channel cannot tell."""
        scan = self.scan(as_query(query))
        return None if scan is None else scan.coverage

    def children(self) -> Mapping[str, Channel]:
        """The channels that this channel combines, by name; empty where it searches something itself."""
        return {}

    def leaves(self) -> Iterator[Channel]:
        """Yield the leaf channels of this channel."""
        children = self.children()
        if not children:
            yield self
        for child in children.values():
            yield from child.leaves()

    def warm_up(self) -> None:
        """Load the models that the first search needs. Raises what loading them raises."""
        for child in self.children().values():
            child.warm_up()

    def named(self: C, name: str) -> C:
        """A copy of this channel under another name, which searches the same index."""
        twin = copy.copy(self)
        twin.name = name
        return twin

    def describe(self, indent: str = "") -> str:
        """The composition as text, one channel or stage per line."""
        return f"{indent}{self.name}: {self!r}"

    def __rshift__(self, stage: Stage) -> Then:
        if not isinstance(stage, Stage):
            return NotImplemented
        return Then(self, stage)


class Over(Channel):
    """A channel that wraps another channel and takes over its name and kind."""

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
    """A channel that wraps another channel and passes on its scan."""

    below: Channel

    def asked(self, query: Query) -> Query:
        """The query with which the wrapped channel is asked."""
        return query

    def scan(self, query: Query) -> Scan | None:
        return self.below.scan(self.asked(query))


class Stage(Component):
    """Refines a ranking: reranks, drops, expands. A stage never calls the channel that found the hits.

    A stage that does not set `refills` is asked once, even where it leaves fewer than k hits. Behind a `bounded` stage
    a search keeps the first k hits, behind any other stage all hits.
    """

    refills = True
    bounded = True
    gives_text = False
    """Whether the stage gives hits the text that a model reads, and does not rank them."""

    arefine: Callable[[Query, Ranking], Awaitable[Ranking]] | None = None
    """An async `refine`; None where the stage has none."""

    @abstractmethod
    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The ranking after this stage, with the errors of the ranking it was given."""

    def needs(self, k: int) -> int:
        """How many hits the stage asks for at first to return k."""
        return k

    def warm_up(self) -> None:
        """Load the model that the first search needs, if there is one."""

    def instead(self, ranking: Ranking) -> str:
        """The text that says what a search does where this stage fails."""
        is_fused = any(hit.score is not None and hit.score == hit.fused for hit in ranking.hits[:1])
        return f"{'the fused order' if is_fused else 'the order before it'} is kept"

    def over(self, channels: Mapping[str, Channel]) -> Stage:
        """This stage for a fusion of channels.

        A stage that uses the channels' contents returns a copy bound to these channels.
        """
        return self

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        """The plan that refines a ranking.

        Where a stage of this package fails, the plan gives the unchanged ranking with the failure. Raises StageError
        where any other stage fails, and SearchTimeoutError where such a stage exceeds its deadline.
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
            return self._checked(query, ranking, self.refine(query, ranking))

    async def _arefined(self, query: Query, ranking: Ranking) -> Ranking:
        arefine: Any = self.arefine
        with self._guarded():
            return self._checked(query, ranking, await arefine(query, ranking))

    def _checked(self, query: Query, before: Ranking, given: Any) -> Ranking:
        """The stage's result, without hits that access rights do not permit: no later stage and no trace sees them."""
        if not isinstance(given, Ranking):
            raise TypeError(f"{self.name} gave a {type(given).__name__}, not a Ranking")
        if new := set(given.ids).difference(before.ids):
            given = permitted(given, with_rights_of(query, before).require, new)
        return unblocked(permitted(given, query.require), query.blocked)


class Then(Over):
    """A channel followed by a stage.

    While the stage returns fewer than k hits and the channel returned as many as requested, the channel is asked for
    twice as many, unless the stage does not `refills`. Where such a deeper request fails, even in part, the previous
    result stands, with the failure added. The first k hits are kept, or all hits where the stage is not `bounded`.
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
            except Exception as error:  # noqa: BLE001 - the previous result is returned whatever was raised
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
    """An async `rewrite`; None where the rewriter has none."""

    @abstractmethod
    def rewrite(self, query: Query) -> Query:
        """The query to search for. The given query is not changed."""

    def reads_history(self) -> bool:
        """Whether the rewriter may read the conversation, `Query.history`; one of another package may."""
        return not self.own

    def call(self, query: Query) -> Call:
        """The call that rewrites a query; a run makes it once."""
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
        """The plan that rewrites a query.

        Where a rewriter of this package fails, the plan gives the original query and the failure. Raises StageError
        where any other rewriter fails, and SearchTimeoutError where such a rewriter exceeds its deadline.
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
        """This rewriter for a channel.

        A rewriter that uses the channel's contents returns a copy bound to this channel.
        """
        return self

    def __rshift__(self, channel: Channel) -> Rewritten:
        if not isinstance(channel, Channel):
            return NotImplemented
        return Rewritten(self.over(channel), channel)


class Rewritten(Over):
    """A channel asked with a rewritten query, or with the original query where a rewriter of this package fails.

    The failure is added to the ranking. The access rights, and what is blocked, are always those of the original query,
    so a rewriter that makes a new query cannot drop them.
    """

    def __init__(self, rewriter: Rewriter, below: Channel) -> None:
        super().__init__(below)
        self.rewriter = rewriter

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        rewritten, failures = yield from self.rewriter.plan(query)
        asked = replace(rewritten, require=query.require, blocked=query.blocked)
        ranking = yield from self.below.plan(asked, k)
        return ranking.failing(*failures)

    def describe(self, indent: str = "") -> str:
        return f"{indent}{self.rewriter!r} >>\n{self.below.describe(indent)}"

    def __repr__(self) -> str:
        return f"{self.rewriter!r} >> {self.below!r}"


def _rescored_as(given: Ranking, asked: Ranking, refined: Ranking) -> Ranking:
    """The refined ranking with the scores of the arranged ranking `given`, where the stage only kept or reordered hits.

    `asked` is `given` without the scores; a hit with a new vote means that the stage scored, and its scores are kept.
    In an arranged result, a vote without a score says only where the hit stands.
    """
    before, scores = {hit.id: hit for hit in asked}, {hit.id: hit.score for hit in given}

    def scoring(hit: Hit) -> list[Vote]:
        return [vote for vote in hit.votes if vote.score is not None or not refined.arranged]

    if any(hit.id not in before or scoring(hit) != scoring(before[hit.id]) for hit in refined):
        return refined
    return replace(refined, hits=tuple(replace(hit, score=scores[hit.id]) for hit in refined), arranged=True)


def check_named(channels: object) -> None:
    """Raise ConfigError unless channels are given by their names."""
    if not isinstance(channels, Mapping):
        raise ConfigError(f"channels is a mapping of names to channels, not a {type(channels).__name__}")


def check_k(k: int) -> int:
    """Return k where it is a whole number of at least 0; ConfigError otherwise."""
    return whole("k", k, least=0)
