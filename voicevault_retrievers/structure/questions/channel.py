"""The channel over questions: it finds questions, and returns the chunks that answer them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from voicevault_retrievers._support.checks import seconds_or_none, whole
from voicevault_retrievers.core.blocking import blocks
from voicevault_retrievers.core.channel import MAX_DEPTH, Channel
from voicevault_retrievers.core.execution.plan import Call, CircuitBreaker, Plan, value_of
from voicevault_retrievers.core.filters import compile_filter, scope
from voicevault_retrievers.core.leaf import BlockingGuard, guarding
from voicevault_retrievers.core.types import Chunk, Failure, Hit, Query, Ranking, Scan, Vote, ranked
from voicevault_retrievers.errors import FilterNotSupportedError
from voicevault_retrievers.structure.questions.records import (
    DIGEST,
    SOURCE,
    KeepsChunks,
    asks_of,
    by_source,
    source_of,
    speaks_of_questions,
)

QUESTIONS = 200
"""How many questions are requested first: four for each of fifty chunks."""


class QuestionChannel(Channel):
    """Finds chunks by the questions that they answer.

    `below` finds questions (see `KeepsQuestions`), at first `questions` of them, and twice as many while these give
    fewer than k chunks. A chunk has the score that `below` gives its best question, and its vote's `via` is that
    question. `chunks` gives the present chunks: a chunk that is gone, whose text has changed, or whose metadata does
    not pass the query's filters is not returned.

    The query's filters are applied to the questions, which have their chunks' metadata, before ranking. Under `require`
    only permitted chunks count in the statistics, since the questions of chunks that `stale` names are left out too. A
    filter on the questions' own keys raises FilterNotSupportedError. The channel uses a query's variants for its name
    or for the kind "question". `timeout` is in seconds, for looking up chunks; None waits. `prefix` precedes every
    chunk's id, where several bases are searched as one.

    `kb` is the name of the chunks' knowledge base, where it is known; `guard` is as in `LeafChannel`.
    """

    def __init__(
        self,
        below: Channel,
        chunks: KeepsChunks,
        *,
        stale: Callable[[], Collection[str]] = frozenset,
        ids: Callable[[], Iterable[str]] | None = None,
        questions: int = QUESTIONS,
        timeout: float | None = None,
        prefix: str = "",
        name: str = "questions",
    ) -> None:
        self.below = below
        self.chunks = chunks
        self.stale = stale
        self.questions = whole("questions", questions)
        self.timeout = seconds_or_none("timeout", timeout)
        self.prefix = prefix
        self.name = name
        self.kind = "question"
        self.kb = ""
        self.guard: BlockingGuard | None = None
        self._ids = ids
        self._breaker = CircuitBreaker()

    def warm_up(self) -> None:
        self.below.warm_up()

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        query, unguarded = yield from guarding(self.name, self.guard, query)
        asked = yield from self._asked(query)
        ask = max(self.questions, k)
        ranking = yield from self._found(query, asked, ask)
        while len(ranking[0]) < k and ranking[1] >= ask and ask < MAX_DEPTH:
            ask = min(2 * ask, MAX_DEPTH)
            ranking = yield from self._found(query, asked, ask)
        hits, _, failures = ranking
        best = enumerate(ranked(hits)[:k], 1)
        found = tuple(replace(hit, votes=(replace(hit.votes[0], rank=rank),)) for rank, hit in best)
        return Ranking(found, (*unguarded, *failures), scan=self.scan(query))

    def _asked(self, query: Query) -> Plan[Query]:
        """The query for the channel of questions, without the questions of stale chunks under access rights."""
        if query.require is None:
            return self._own(query)
        (outcome,) = yield (self._call("stale", self.stale),)
        return self._own(query, value_of(outcome))

    def _own(self, query: Query, stale: Collection[str] = ()) -> Query:
        """The query without variants and weights of other channels, and without the questions of stale chunks."""
        if speaks_of_questions(query.where) or speaks_of_questions(query.require):
            raise FilterNotSupportedError(f"a filter on {SOURCE} or {DIGEST} means questions, not chunks")
        own = tuple(replace(one, channels=None) for one in query.texts_for(self.name, self.kind)[1:])
        require = scope(query.require, {SOURCE: {"$nin": sorted(stale)}}) if stale else query.require
        blocked = query.blocked and query.blocked.of_questions(self.kb, SOURCE)
        return replace(query, variants=own, weights=None, require=require, blocked=blocked)

    def _found(self, query: Query, asked: Query, ask: int) -> Plan[tuple[list[Hit], int, tuple[Failure, ...]]]:
        """The chunks of at most `ask` questions, the number of questions found, and the failures."""
        ranking = yield from self.below.plan(asked, ask)
        failures = tuple(failure.within(self.name) for failure in ranking.errors)
        if not ranking.hits:
            return [], 0, failures
        ids = list(dict.fromkeys(source_of(hit.id) for hit in ranking))
        (outcome,) = yield (self._call("chunks", partial(self.chunks.get, ids)),)
        known: Mapping[str, Chunk] = value_of(outcome)
        passes = [compile_filter(query.where), compile_filter(query.require)]
        found: dict[str, Hit] = {}
        outdated = False
        for hit in ranking:
            chunk = known.get(source_of(hit.id))
            if chunk is None or chunk.id in found or not all(passing(chunk.metadata) for passing in passes):
                continue
            if blocks(query.blocked, chunk):
                continue
            if asks_of(hit.chunk, chunk):
                found[chunk.id] = Hit(chunk.prefixed(self.prefix), hit.score, (self._vote(hit),))
            outdated = outdated or chunk.id not in found
        return list(found.values()), len(ranking), (*failures, *self._outdated(outdated))

    def _outdated(self, outdated: bool) -> list[Failure]:
        said = "questions of chunks whose text is another now are left out: update the questions"
        return [Failure(self.name, "outdated", said, degrades=False)] if outdated else []

    def _vote(self, hit: Hit) -> Vote:
        leaf = next(part for vote in hit.votes for part in vote.leaves())
        return Vote(self.name, 1, hit.score, query=leaf.query, terms=leaf.terms, kind=self.kind, via=(hit.chunk.text,))

    def scan(self, query: Query) -> Scan:
        return _QuestionScan(self, query)

    def scores_of(self, query: Query, ids: Iterable[str]) -> Mapping[str, float] | None:
        """The best score of each chunk's questions; None where the channel below has no scores, such as a fusion."""
        found = self.below.scores(self.alone(query), self._questions_of(ids))
        if found is None:
            return None
        best: dict[str, float] = {}
        for question, score in found.items():
            chunk_id = self.prefix + source_of(question)
            best[chunk_id] = max(best.get(chunk_id, score), score)
        return best

    def _questions_of(self, ids: Iterable[str]) -> list[str]:
        """The ids of the questions of these chunks."""
        own = (chunk_id[len(self.prefix) :] for chunk_id in ids if chunk_id.startswith(self.prefix))
        return [question for chunk_id in own for question in self._questions.get(chunk_id, ())]

    def alone(self, query: Query) -> Query:
        """As `_asked`, outside a plan."""
        return self._own(query, () if query.require is None else self.stale())

    @cached_property
    def _questions(self) -> Mapping[str, Sequence[str]]:
        """The ids of the questions of each chunk."""
        return {} if self._ids is None else by_source(self._ids())

    def _call(self, what: str, function: Callable[[], Any]) -> Call:
        return Call(f"{self.name} {what}", function, timeout=self.timeout, breaker=self._breaker)

    def describe(self, indent: str = "") -> str:
        return f"{indent}{self.name}: chunks by questions\n{self.below.describe(indent + '  ')}"

    def __repr__(self) -> str:
        return f"QuestionChannel({self.below!r}, {self.chunks!r}, questions={self.questions})"


class _QuestionScan:
    """Scores of given chunks by their questions; may read the ids of all questions, and which are stale."""

    local = False

    def __init__(self, channel: QuestionChannel, query: Query) -> None:
        self._channel, self._query = channel, query

    @property
    def coverage(self) -> float | None:
        return self._channel.below.coverage(self._channel.alone(self._query))

    def scores(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        return self._channel.scores_of(self._query, ids)
