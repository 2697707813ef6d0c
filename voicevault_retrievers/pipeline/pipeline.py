"""A whole pipeline: a question in, ranked hits, their context and an account of how they were found out."""

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
from voicevault_retrievers.core.access_control import Access, admitted, permitted
from voicevault_retrievers.core.channel import Channel, Over, Stage, Then, Through, check_k
from voicevault_retrievers.core.execution.plan import (
    AsyncObserver,
    Observer,
    Plan,
    Span,
    answered,
    timings,
    value_of,
)
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.filters import Filter, both, scope
from voicevault_retrievers.core.queries import Turn, as_turn
from voicevault_retrievers.core.types import ANY_EMBEDDER, Failure, Hit, Query, Ranking, Result, Route, as_query
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.display import analyzer_of, result_html
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.fuse import Fused, OnError
from voicevault_retrievers.fusion.hybrid import ahybrid_search, hybrid_search
from voicevault_retrievers.pipeline.batch import Asked, Batched
from voicevault_retrievers.rerank.calibration import Confidence, any_hit
from voicevault_retrievers.structure.graph import GraphChannel

_LOG = logging.getLogger(__name__)


class Pipeline(Batched):
    """Searches a channel and builds the context of what it finds.

    `k` is how many hits a search gives unless it says otherwise. `timeout` bounds a whole search in seconds.
    `on_error` "skip" leaves out a channel or stage that fails, marks the result degraded and logs a warning for each
    cause, with what was done instead; "raise" raises its error.
    `confidence` says whether anything relevant was found: "ok" where there is a hit, unless it is a `Threshold`, which
    goes by a calibrated reranker. `notes` are failures known beforehand, such as a knowledge base that does not exist;
    every result carries them.
    `flare` answers analytical questions and searches (`hybrid_search`) for what its model is not sure of: the hits then
    found stand behind the others, `Result.flare_retrievals` counts the searches. It has its own `timeout`. A SIMPLE
    question that a `GraphChannel` of the pipeline finds something for has the graph's own `kg_direct_answer`.
    With `access` "mandatory" a search without `Query.require` is refused with AccessError; an empty one permits
    nothing. A hit that `require` does not permit never leaves a pipeline, whatever a channel or stage of yours gives.
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

    def search(
        self,
        query: str | Query,
        k: int | None = None,
        *,
        history: Sequence[Turn | tuple[str, str]] = (),
        observe: Observer | None = None,
    ) -> Result:
        """Search, and put what is found in a context behind the conversation so far.

        `history` is that conversation, oldest turn first, unless the query brings it (`Query.history`); it is what
        rewriters of follow-up questions read. `observe` is told of each call, with its outcome, as soon as it has
        ended.
        """
        asked, k, spans = self._asked(query, history), self._k(k), list[Span]()
        with telemetry.search(asked.text, k) as note:
            ranking = self.channel.search(asked, k, timeout=self.timeout, spans=spans, observe=observe)
            ranking = permitted(ranking, asked.require)
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
        """`search` on the running event loop; the same result but for the timings."""
        asked, k, spans = self._asked(query, history), self._k(k), list[Span]()
        with telemetry.search(asked.text, k) as note:
            ranking = await self.channel.asearch(asked, k, timeout=self.timeout, spans=spans, observe=observe)
            ranking = permitted(ranking, asked.require)
            note(ranking)
        return await self._aanswered(self._result(asked, ranking, spans))

    def warm_up(self) -> None:
        """Load the embedders and rerankers of its channels and stages, so that no search waits for them.

        Raises what loading them raises; a search would skip and note what is an outage.
        """
        self.channel.warm_up()

    def read(self, result: Result, heads: Callable[[Hit], str] | None = None) -> tuple[Hit, ...]:
        """The hits of a result of this pipeline with what a model reads of each within its budget.

        See `ContextBuilder.read`.
        """
        query = result.query
        return self.context.read(result.hits, query.history, max_tokens=query.max_context_tokens, heads=heads)

    def kg_direct_query(self, text: str | Query) -> Mapping[str, Any] | None:
        """What the graph alone says of the first reference in a text; None where it says nothing, or there is none."""
        graph = _graph(self.channel, self.admitted(text))
        return None if graph is None else graph[0].kg_direct_query(graph[1])

    async def akg_direct_query(self, text: str | Query) -> Mapping[str, Any] | None:
        """`kg_direct_query` on the running event loop."""
        graph = _graph(self.channel, self.admitted(text))
        return None if graph is None else await graph[0].akg_direct_query(graph[1])

    def hybrid_search(self, text: str | Query, top_k: int = 5) -> Ranking:
        """The best of the keyword and vector channels by RRF alone, see `hybrid.hybrid_search`."""
        return _logged(self._bare(self.admitted(text), top_k))

    async def ahybrid_search(self, text: str | Query, top_k: int = 5) -> Ranking:
        """`hybrid_search` on the running event loop; the same ranking."""
        return _logged(await self._abare(self.admitted(text), top_k))

    def admitted(self, query: str | Query) -> Query:
        """The query; AccessError where it names no access rights and they are mandatory."""
        return admitted(as_query(query), self.access)

    def narrowed(self, where: Filter | None = None, require: Filter | None = None) -> Channel:
        """This pipeline's search under filters of its own, as a channel of another pipeline.

        Raises ConfigError where the pipeline has a timeout, which a channel of another has from that one.
        """
        if self.timeout is not None:
            raise ConfigError("a pipeline that is a channel has no timeout: set it on the pipeline around it")
        return Narrowed(self, where, require)

    def __rshift__(self, stage: Stage) -> Pipeline:
        """This pipeline with a stage more."""
        if not isinstance(stage, Stage):
            return NotImplemented
        twin = copy.copy(self)
        twin.channel = self.channel >> stage
        return twin

    def within(self, timeout: float | None) -> Pipeline:
        """This pipeline with another deadline, in seconds."""
        twin = copy.copy(self)
        twin.timeout = seconds_or_none("timeout", timeout)
        return twin

    def flaring(self, flare: Flare) -> Pipeline:
        """This pipeline with a model that answers and searches."""
        twin = copy.copy(self)
        twin.flare = flare
        return twin

    def describe(self) -> str:
        """The pipeline as text, one part a line."""
        return f"k={self.k}, on_error={self.on_error}\n{self.channel.describe('  ')}"

    def _answered(self, result: Result) -> Result:
        """A result with what the graph says, and what a model's answer led to."""
        graph = _answering(self.channel, result)
        if graph is not None:
            channel, narrowed = graph
            try:
                result = replace(result, kg_direct_answer=channel.direct(narrowed, timeout=self._left(result)))
            except Exception as error:  # noqa: BLE001 - whatever a store raised: there are hits already
                result = self._failing(result, channel, error)
        flare = self._flare(result)
        return self._told(result if flare is None else flare.extended(result))

    async def _aanswered(self, result: Result) -> Result:
        graph = _answering(self.channel, result)
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
        ranking = yield from self.channel.plan(query, self._k(k))
        return query, ranking

    def _ended(self, found: tuple[Query, Ranking] | Exception, spans: Sequence[Span]) -> Result:
        return self._answered(self._result(*value_of(found), spans))

    async def _aended(self, found: tuple[Query, Ranking] | Exception, spans: Sequence[Span]) -> Result:
        return await self._aanswered(self._result(*value_of(found), spans))

    def _bare(self, asked: Query, top_k: int) -> Ranking:
        return permitted(hybrid_search(self.channel, asked, top_k, timeout=self.timeout), asked.require)

    async def _abare(self, asked: Query, top_k: int) -> Ranking:
        return permitted(await ahybrid_search(self.channel, asked, top_k, timeout=self.timeout), asked.require)

    def _flare(self, result: Result) -> Flare | None:
        """What goes on searching for a result, under the filters and rights of its query; None where nothing does."""
        if self.flare is None or not self.flare.applies(result):
            return None
        return self.flare.over(_Asking(self, result.query), self.context)

    def _told(self, result: Result) -> Result:
        """The result, with a warning for each cause that the search went on without something."""
        self._raise(result.errors)
        _logged(result.ranking)
        return result

    def _left(self, result: Result) -> float | None:
        """The seconds of a search that its spans leave, at least a moment."""
        spent = max((span.seconds for span in result.trace), default=0.0)
        return None if self.timeout is None else max(self.timeout - spent, 0.001)

    def _failing(self, result: Result, graph: Channel, error: Exception) -> Result:
        failure = Failure.of(graph.name, error)
        self._raise([failure])
        return replace(result, ranking=result.ranking.failing(failure))

    def _raise(self, failures: Iterable[Failure]) -> None:
        """Raise the first error, where the pipeline does not skip what fails."""
        errors = [failure.error for failure in failures if failure.degrades and failure.error is not None]
        if errors and self.on_error == "raise":
            raise errors[0]

    def _k(self, k: int | None) -> int:
        return self.k if k is None else check_k(k)

    def _asked(self, query: str | Query, history: Sequence[Turn | tuple[str, str]]) -> Query:
        asked = self.admitted(query)
        if history:
            asked = replace(asked, history=tuple(map(as_turn, history)))
        names = _fused_names(self.channel)
        for name in asked.weights or {}:
            if name not in names:
                raise unknown("channel in weights", name, names)
        _check_vector(asked, list(self.channel.leaves()))
        return asked

    def _result(self, query: Query, ranking: Ranking, spans: Sequence[Span]) -> Result:
        self._raise(ranking.errors)
        return Result(
            query=query,
            ranking=ranking.failing(*self.notes),
            route=query.route or _routed(spans),
            channels_used=answered(spans),
            build_context=partial(self.context.build, ranking.hits, query.history, max_tokens=query.max_context_tokens),
            timings=timings(spans),
            confidence=self.confidence(ranking),
            trace=tuple(spans),
            as_html=partial(result_html, analyzer=analyzer_of(self.channel)),
        )

    def __repr__(self) -> str:
        return f"Pipeline({self.channel!r}, k={self.k})"


class _Asking:
    """A pipeline's cheap search under the filters and rights of a query."""

    def __init__(self, pipeline: Pipeline, query: Query) -> None:
        self._pipeline = pipeline
        self._query = Query("", where=query.where, require=query.require, reference_date=query.reference_date)

    def hybrid_search(self, text: str, top_k: int) -> Ranking:
        return self._pipeline._bare(replace(self._query, text=text), top_k)

    async def ahybrid_search(self, text: str, top_k: int) -> Ranking:
        return await self._pipeline._abare(replace(self._query, text=text), top_k)


def _logged(ranking: Ranking) -> Ranking:
    log_failures(_LOG, "a search", ranking.errors, notes=logging.INFO)
    return ranking


class Narrowed(Through, Over):
    """A pipeline's channel under filters of its own, with the pipeline's notes: for a fusion of pipelines."""

    def __init__(self, pipeline: Pipeline, where: Filter | None, require: Filter | None) -> None:
        super().__init__(pipeline.channel)
        self.notes = pipeline.notes
        self.admitted = pipeline.admitted
        self.where = where
        self.require = require

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        asked = self.asked(query)
        ranking = yield from self.below.plan(asked, k)
        return permitted(ranking, asked.require).failing(*self.notes)

    def asked(self, query: Query) -> Query:
        where, require = both(self.where, query.where), scope(self.require, query.require)
        return self.admitted(replace(query, where=where, require=require))

    def __repr__(self) -> str:
        narrowed = both(self.require, self.where)
        return f"{self.below!r} where {narrowed}" if narrowed else repr(self.below)


def _graph(channel: Channel, query: Query) -> tuple[GraphChannel, Query] | None:
    """The first graph below a channel, and the query as it comes to it: what narrows on the way narrows its answer."""
    if isinstance(channel, GraphChannel):
        return channel, query
    if isinstance(channel, Then) and not channel.stage.own:
        return None  # it would have the graph's hits first, and may mask them
    if isinstance(channel, Through):
        query = channel.asked(query)
    parts = channel.children().values()
    return next((found for one in parts if (found := _graph(one, query)) is not None), None)


def _answering(channel: Channel, result: Result) -> tuple[GraphChannel, Query] | None:
    """The graph that is to answer a SIMPLE question directly, where anything was found, and what it is asked."""
    return _graph(channel, result.query) if result.route is Route.SIMPLE and result.hits else None


def _fused_names(channel: Channel) -> set[str]:
    children = channel.children()
    own = children if isinstance(channel, Fused) else ()
    return {*own, *(name for child in children.values() for name in _fused_names(child))}


def _check_vector(query: Query, leaves: Sequence[Channel]) -> None:
    """A bare vector must fit one of the channels; those of others are not known, so they may."""
    bare = query.vectors.get(ANY_EMBEDDER)
    if bare is None:  # a dimension may be known to a server alone
        return
    semantic = [leaf for leaf in leaves if leaf.kind == "semantic"]
    known = {leaf.name: leaf.embedder.dimension for leaf in semantic if isinstance(leaf, VectorChannel)}
    if len(known) == len(semantic) and len(bare) not in known.values():
        raise ConfigError(f"the query's vector has dimension {len(bare)}, which fits no channel: {known or 'none'}")


def _routed(spans: Sequence[Span]) -> Route | None:
    """The route that a router gave the query."""
    routes = (span.query.route for span in spans if isinstance(span.query, Query))
    return next((route for route in routes if route is not None), None)
