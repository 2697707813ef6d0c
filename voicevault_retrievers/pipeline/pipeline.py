"""The whole search: from a query to ranked hits, their context and their provenance."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers.answers.builder import ContextBuilder
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core import telemetry
from voicevault_retrievers.core.access_control import Access, admitted, empty_rights, found_under, unblocked
from voicevault_retrievers.core.channel import Channel, Stage, check_k
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import (
    AsyncObserver,
    Observer,
    Plan,
    Span,
    answered,
    off_loop,
    timings,
    value_of,
)
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.queries import Turn, as_turn
from voicevault_retrievers.core.tracing import permitting
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, Result, Route, as_query
from voicevault_retrievers.display import analyzer_of, result_html
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.fusion.hybrid import ahybrid_search, hybrid_search
from voicevault_retrievers.pipeline.batch import Asked, Batched
from voicevault_retrievers.pipeline.composition import (
    answers_directly,
    check_vector,
    check_weights,
    graph_of,
    reads_history,
)
from voicevault_retrievers.pipeline.narrowed import FixedFilters, HasFilters, Narrowed
from voicevault_retrievers.rerank import GroupBy, Grouped
from voicevault_retrievers.rerank.calibration import Confidence, any_hit
from voicevault_retrievers.rerank.grouping import passages_of
from voicevault_retrievers.store.curated import Curated
from voicevault_retrievers.store.live_curation import CurationSource, blocking
from voicevault_retrievers.structure.graph import GraphChannel

_LOG = logging.getLogger(__name__)


class Pipeline(Batched):
    """Searches a channel and builds the context of its hits.

    `k` is the number of hits that a search returns by default. `timeout` bounds a whole search, in seconds. When a
    channel or stage fails, `on_error` "skip" leaves it out, marks the result degraded and logs a warning for each
    cause, with what was done instead; "raise" raises its error. `confidence` decides whether anything relevant was
    found: "ok" where there is a hit, unless it is a `Threshold`, which uses a calibrated reranker's probabilities.
    `notes` are failures known beforehand, such as a knowledge base that does not exist; every result carries them.
    `flare` answers analytical questions and searches (`hybrid_search`) for what its model is uncertain of. The hits of
    these searches follow the others, and `Result.flare_retrievals` counts the searches. It has its own `timeout`. A
    SIMPLE question for which a `GraphChannel` of the pipeline finds something also gets the graph's own
    `kg_direct_answer`. With `access` "mandatory" a search without `Query.require` raises AccessError; an empty
    `require` permits nothing. A pipeline never returns a hit that `require` does not permit, whatever a custom channel
    or stage returns. A search is under the `curation` of the knowledge bases that are searched; see `store.Curated`.
    With `group_by`, a GroupBy or its key, a search finds k groups of hits, after all stages.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        k: int = 5,
        context: ContextBuilder | None = None,
        timeout: float | None = None,
        on_error: OnError = "skip",
        confidence: Callable[[Ranking], Confidence] = any_hit,
        notes: Iterable[Failure] = (),
        flare: Flare | None = None,
        access: Access = "optional",
        group_by: GroupBy | Mapping[str, Any] | str | None = None,
        curation: CurationSource | None = None,
    ) -> None:
        if access not in get_args(Access):
            raise unknown("access", access, get_args(Access))
        if flare is not None and not isinstance(flare, Flare):
            raise ConfigError(f"flare is a Flare, not a {type(flare).__name__}")
        if not isinstance(channel, Channel):
            raise ConfigError(f"a pipeline searches a channel, not a {type(channel).__name__}")
        if on_error not in ("skip", "raise"):
            raise unknown("on_error", on_error, ("skip", "raise"))
        self.channel = channel
        self.k = check_k(k)
        self.context = context or ContextBuilder()
        self.timeout = seconds_or_none("timeout", timeout)
        self.on_error = on_error
        self.confidence = confidence
        self.notes = tuple(notes)
        self.flare = flare
        self.access = access
        self.curation = curation
        self.group_by = GroupBy.of(group_by)

    @property
    def curated(self) -> Channel:
        """The channel under the curation of its knowledge bases."""
        return self.channel if self.curation is None else Curated(self.channel, self.curation)

    @property
    def searched(self) -> Channel:
        """The curated channel, with its hits grouped where this pipeline groups them: after all stages."""
        return self.curated if self.group_by is None else Grouped(self.curated, self.group_by)

    def search(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        history: Sequence[Turn | tuple[str, str]] = (),
        observe: Observer | None = None,
    ) -> Result:
        """Search, and build the context of the hits after the conversation so far.

        `history` is that conversation, oldest turn first, unless the query has one (`Query.history`); rewriters of
        follow-up questions read it, and where there are none, a note says so. `observe` is called with each call and
        its outcome when the call ends.
        """
        asked, k, spans = self._asked(query, history), self._k(k), list[Span]()
        with permitting(asked.require):
            with telemetry.search(asked.text, k) as note:
                ranking = self.searched.search(asked, k, timeout=self.timeout, spans=spans, observe=observe)
                ranking = found_under(ranking, asked.require)
                note(ranking)
            return self._answered(self._result(asked, ranking, spans))

    async def asearch(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        history: Sequence[Turn | tuple[str, str]] = (),
        observe: AsyncObserver | None = None,
    ) -> Result:
        """`search` on the running event loop; the result differs only in its timings."""
        asked, k, spans = self._asked(query, history), self._k(k), list[Span]()
        with permitting(asked.require):
            with telemetry.search(asked.text, k) as note:
                ranking = await self.searched.asearch(asked, k, timeout=self.timeout, spans=spans, observe=observe)
                ranking = found_under(ranking, asked.require)
                note(ranking)
            return await self._aanswered(self._result(asked, ranking, spans))

    def warm_up(self) -> None:
        """Load the embedders and rerankers of the channels and stages, so that no search waits for them.

        Raises the errors of loading, where a search would skip a part that is not available.
        """
        self.channel.warm_up()

    def read(self, result: Result, heads: Callable[[Hit], str] | None = None) -> tuple[Hit, ...]:
        """The hits of a result of this pipeline, each with the text that a model reads within the query's budget.

        See `ContextBuilder.read`.
        """
        query = result.query
        return self.context.read(result.hits, query.history, max_tokens=query.max_context_tokens, heads=heads)

    def kg_direct_query(self, text: str | Query) -> Mapping[str, Any] | None:
        """What the graph alone states about the first reference in a text; None without a reference or statement."""
        graph = graph_of(self.curated, self.admitted(text))
        return None if graph is None else graph[0].kg_direct_query(graph[1])

    async def akg_direct_query(self, text: str | Query) -> Mapping[str, Any] | None:
        """`kg_direct_query` on the running event loop."""
        graph = await self._agraph(self.admitted(text))
        return None if graph is None else await graph[0].akg_direct_query(graph[1])

    def hybrid_search(self, text: str | Query, top_k: int = 5) -> Ranking:
        """The best of the keyword and vector channels, fused by RRF alone; see `hybrid.hybrid_search`."""
        return _logged(self.hybrid_ranking(text, top_k))

    async def ahybrid_search(self, text: str | Query, top_k: int = 5) -> Ranking:
        """`hybrid_search` on the running event loop; the same ranking."""
        return _logged(await self.ahybrid_ranking(text, top_k))

    def hybrid_ranking(self, query: str | Query, top_k: int) -> Ranking:
        """`hybrid_search` for a part that reports the failures itself: they are not logged."""
        asked, failures = self._unblocked(self.admitted(query))
        found = hybrid_search(self.channel, asked, top_k, timeout=self.timeout)
        return found_under(unblocked(found, asked.blocked), asked.require).failing(*failures)

    async def ahybrid_ranking(self, query: str | Query, top_k: int) -> Ranking:
        """`hybrid_ranking` on the running event loop; the same ranking."""
        asked, failures = await aexecute(off_loop("curation", partial(self._unblocked, self.admitted(query))))
        found = await ahybrid_search(self.channel, asked, top_k, timeout=self.timeout)
        return found_under(unblocked(found, asked.blocked), asked.require).failing(*failures)

    def admitted(self, query: str | Query) -> Query:
        """The query; AccessError where access rights are mandatory and the query has none."""
        return admitted(as_query(query), self.access)

    def narrowed(self, where: Filter | None = None, require: Filter | None = None) -> Channel:
        """This pipeline's search under further filters, as a channel of another pipeline.

        Raises ConfigError where the pipeline has a timeout or groups its hits: the outer pipeline does that.
        """
        return self.narrowed_by(FixedFilters(where, require))

    def narrowed_by(self, filters: HasFilters) -> Channel:
        """`narrowed` by what an object has as `where` and `require` at each search."""
        for name in ("timeout", "group_by"):
            if getattr(self, name) is not None:
                raise ConfigError(f"a pipeline that is a channel has no {name}: set it on the pipeline around it")
        return Narrowed(self.curated, filters, access=self.access, notes=self.notes)

    def __rshift__(self, stage: Stage) -> Pipeline:
        """A copy of this pipeline with one more stage."""
        if not isinstance(stage, Stage):
            return NotImplemented
        twin = copy.copy(self)
        twin.channel = self.channel >> stage
        return twin

    def within(self, timeout: float | None) -> Pipeline:
        """A copy of this pipeline with another timeout, in seconds."""
        twin = copy.copy(self)
        twin.timeout = seconds_or_none("timeout", timeout)
        return twin

    def grouping(self, group_by: GroupBy | None) -> Pipeline:
        """A copy that groups its hits so; None leaves its own grouping."""
        twin = copy.copy(self)
        twin.group_by = group_by or self.group_by
        return twin

    def flaring(self, flare: Flare) -> Pipeline:
        """A copy of this pipeline with FLARE: a model that answers and searches."""
        twin = copy.copy(self)
        twin.flare = flare
        return twin

    def describe(self) -> str:
        """The pipeline as text, one component per line."""
        return f"k={self.k}, on_error={self.on_error}\n{self.searched.describe('  ')}"

    def _answered(self, result: Result) -> Result:
        """The result with the graph's direct answer and the hits of FLARE."""
        graph = graph_of(self.curated, result.query) if answers_directly(result) else None
        if graph is not None:
            channel, narrowed = graph
            try:
                result = replace(result, kg_direct_answer=channel.direct(narrowed, timeout=self._left(result)))
            except Exception as error:  # noqa: BLE001 - any error of a store: the search has hits already
                result = self._failing(result, channel, error)
        flare = self._flare(result)
        return self._told(result if flare is None else flare.extended(result))

    async def _aanswered(self, result: Result) -> Result:
        graph = await self._agraph(result.query) if answers_directly(result) else None
        if graph is not None:
            channel, narrowed = graph
            try:
                answer = await channel.adirect(narrowed, timeout=self._left(result))
                result = replace(result, kg_direct_answer=answer)
            except Exception as error:  # noqa: BLE001 - as in `search`
                result = self._failing(result, channel, error)
        flare = self._flare(result)
        return self._told(result if flare is None else await flare.aextended(result))

    def _plan(self, asked: Asked) -> Plan[tuple[Query, Ranking]]:
        given, k = value_of(asked)
        query = self._asked(given, ())
        ranking = yield from self.searched.plan(query, self._k(k))
        return query, ranking

    def _ended(self, found: tuple[Query, Ranking] | Exception, spans: Sequence[Span]) -> Result:
        return self._answered(self._result(*value_of(found), spans))

    async def _aended(self, found: tuple[Query, Ranking] | Exception, spans: Sequence[Span]) -> Result:
        return await self._aanswered(self._result(*value_of(found), spans))

    async def _agraph(self, query: Query) -> tuple[GraphChannel, Query] | None:
        return await aexecute(off_loop("curation", partial(graph_of, self.curated, query)))

    def _unblocked(self, asked: Query) -> tuple[Query, Sequence[Failure]]:
        """The query with what is blocked for it: a hybrid search is without synonyms and pins."""
        return (asked, ()) if self.curation is None else blocking(asked, self.curation.curations())

    def _flare(self, result: Result) -> Flare | None:
        """The FLARE loop for a result, under its query's filters and access rights; None where it does not apply."""
        if self.flare is None or not self.flare.applies(result):
            return None
        return self.flare.over(self, self.context)

    def _told(self, result: Result) -> Result:
        """The result. Raises the first error where `on_error` is "raise"; else logs a warning for each cause."""
        self._raise(result.errors)
        _logged(result.ranking)
        return result

    def _left(self, result: Result) -> float | None:
        """The seconds of the timeout that the search's spans leave, at least 0.001."""
        spent = max((span.seconds for span in result.trace), default=0.0)
        return None if self.timeout is None else max(self.timeout - spent, 0.001)

    def _failing(self, result: Result, graph: Channel, error: Exception) -> Result:
        failure = Failure.of(graph.name, error)
        self._raise([failure])
        return replace(result, ranking=result.ranking.failing(failure))

    def _raise(self, failures: Iterable[Failure]) -> None:
        """Raise the first error, where the pipeline does not skip failures."""
        errors = [failure.error for failure in failures if failure.degrades and failure.error is not None]
        if errors and self.on_error == "raise":
            raise errors[0]

    def _k(self, k: int | None) -> int:
        return self.k if k is None else check_k(k)

    def _asked(self, query: str | Query, history: Sequence[Turn | tuple[str, str]]) -> Query:
        asked = self.admitted(query)
        if history:
            asked = replace(asked, history=tuple(map(as_turn, history)))
        check_weights(asked, self.channel)
        check_vector(asked, self.channel)
        return asked

    def _result(self, query: Query, ranking: Ranking, spans: Sequence[Span]) -> Result:
        self._raise(ranking.errors)
        found = passages_of(ranking)
        return Result(
            query=query,
            ranking=ranking.failing(*self.notes, *empty_rights(query), *self._unread(query)),
            route=query.route or _routed(spans),
            channels_used=answered(spans),
            build_context=partial(self.context.build, found, query.history, max_tokens=query.max_context_tokens),
            timings=timings(spans),
            confidence=self.confidence(ranking),
            trace=tuple(spans),
            as_html=partial(result_html, analyzer=analyzer_of(self.channel)),
        )

    def _unread(self, query: Query) -> Sequence[Failure]:
        """A note where the query has a conversation that no part of this pipeline searches with."""
        if not query.history or self.flare is not None or reads_history(self.channel):
            return ()
        said = "the question is searched without its conversation, which a rewriter reads: give expansion=FollowUp()"
        return (Failure("history", "NotRead", said, degrades=False),)

    def __repr__(self) -> str:
        return f"Pipeline({self.channel!r}, k={self.k})"


def _logged(ranking: Ranking) -> Ranking:
    log_failures(_LOG, "a search", ranking.errors, notes=logging.INFO)
    return ranking


def _routed(spans: Sequence[Span]) -> Route | None:
    """The route that a router chose for the query."""
    routes = (span.query.route for span in spans if isinstance(span.query, Query))
    return next((route for route in routes if route is not None), None)
