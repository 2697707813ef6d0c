"""LlamaIndex spans and events for the steps of a search: for progress displays and traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import BoundArguments, signature
from typing import Any, TypeVar
from uuid import uuid4

from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import NodeWithScore
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import DISPATCHER_SPAN_DECORATED_ATTR, Dispatcher, active_instrument_tags
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.span import active_span_id
from llama_index_instrumentation.span_handlers import NullSpanHandler

from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.plan import Call, Plan
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.stages import StageWrapper, TopN
from voicevault_retrievers.core.tracing import Recorder, Work, data_of
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.llama_index.convert import node_of_hit
from voicevault_retrievers.llama_index.foreign_stages import PostprocessorStage
from voicevault_retrievers.rerank import MMR, CrossEncoderRerank, LLMRerank, RecencyRerank, WeightedRerank

F = TypeVar("F", bound=Callable[..., Any])
dispatcher = get_dispatcher(__name__)


class SearchStepStartEvent(BaseEvent):
    """A step of a search begins: a rewriter, channel, fusion or stage. Its `span_id` is that of the step's own span."""

    name: str = Field(description="Name of the rewriter, channel, fusion or stage.")
    kind: str = Field(description="rewriter, channel, fusion or stage.")
    queries: list[str] = Field(default_factory=list, description="What was asked.")
    k: int | None = Field(default=None, description="How many hits were asked for.")

    @classmethod
    def class_name(cls) -> str:
        return "SearchStepStartEvent"


class SearchStepEndEvent(BaseEvent):
    """A step of a search has ended; the event has the `span_id` of its start, and never contains texts of nodes."""

    name: str = Field(description="Name of the rewriter, channel, fusion or stage.")
    kind: str = Field(description="rewriter, channel, fusion or stage.")
    hits: list[dict[str, Any]] = Field(default_factory=list, description="Id, rank and score of each hit.")
    wordings: list[str] = Field(default_factory=list, description="The question and what a rewriter added.")
    error: str | None = Field(default=None, description="Class and message of the error it ended with.")

    @classmethod
    def class_name(cls) -> str:
        return "SearchStepEndEvent"


class SearchDegradedEvent(BaseEvent):
    """The skipped parts of a search; dispatched even where the search finds nothing."""

    degraded: list[str] = Field(description="What was skipped, and why.")

    @classmethod
    def class_name(cls) -> str:
        return "SearchDegradedEvent"


class SpanRecorder(Recorder):
    """Records each rewriter, channel, fusion and stage as a span, such as `channel bm25`, with a pair of events."""

    def begin(self, work: Work) -> tuple[str, BoundArguments]:
        span_id, bound = f"{work.kind} {work.name}-{uuid4()}", signature(_step).bind(list(work.texts), work.k)
        parent, tags = active_span_id.get(), active_instrument_tags.get()
        dispatcher.span_enter(span_id, bound, parent_id=parent, tags=tags)
        asked = {"name": work.name, "kind": work.kind, **bound.arguments}
        dispatcher.event(SearchStepStartEvent(**asked, span_id=span_id))
        return span_id, bound

    @contextmanager
    def inside(self, run: tuple[str, BoundArguments]) -> Iterator[None]:
        token = active_span_id.set(run[0])
        try:
            yield
        finally:
            active_span_id.reset(token)

    def end(self, run: tuple[str, BoundArguments], work: Work, outcome: Any) -> None:
        span_id, bound = run
        failed = isinstance(outcome, BaseException)
        data = {"error": str(outcome)} if failed else data_of(outcome)
        dispatcher.event(SearchStepEndEvent(name=work.name, kind=work.kind, span_id=span_id, **data))
        if failed:
            dispatcher.span_drop(span_id, bound, err=outcome)
        else:
            dispatcher.span_exit(span_id, bound, result=data)


def recorder() -> SpanRecorder | None:
    """A recorder of searches; None where no handler listens."""
    return SpanRecorder() if is_heard(dispatcher) else None


def _step(queries: Sequence[str], k: int | None) -> None:
    """The signature of a step, as spans show it."""


def degraded(skipped: Sequence[str]) -> None:
    """Dispatch the skipped parts, if there are any."""
    if skipped:
        dispatcher.event(SearchDegradedEvent(degraded=list(skipped)))


def listened(at: Dispatcher) -> bool:
    """Whether any handler listens to a dispatcher's events."""
    return any(not isinstance(handler, NullEventHandler) for one in _up(at) for handler in one.event_handlers)


def is_heard(at: Dispatcher) -> bool:
    """Whether any handler listens to a dispatcher's events or records its spans."""
    spans = (handler for one in _up(at) for handler in one.span_handlers)
    return listened(at) or any(not isinstance(handler, NullSpanHandler) for handler in spans)


def _up(at: Dispatcher) -> Iterator[Dispatcher]:
    """A dispatcher and those to which its events propagate."""
    yield at
    while at.propagate:
        at = at.parent
        yield at


_HEARD: ContextVar[list[str] | None] = ContextVar("voicevault_heard", default=None)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect what the searches within a block skip, at any depth of retrievers; outer blocks collect it too."""
    told: list[str] = []
    around = _HEARD.get()
    token = _HEARD.set(told)
    try:
        yield told
    finally:
        _HEARD.reset(token)
        if around is not None:
            around += told


class _Listener(NullEventHandler):
    """A handler that does not count as one: without other handlers a search need not create events."""

    @classmethod
    def class_name(cls) -> str:
        return "voicevault_listener"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        told = _HEARD.get()
        if told is not None and isinstance(event, SearchDegradedEvent):
            told += event.degraded


dispatcher.add_event_handler(_Listener())


def reranks(stage: Stage) -> bool:
    """Whether a stage is a reranker of this package."""
    return isinstance(_cut(stage), CrossEncoderRerank | LLMRerank | MMR | RecencyRerank | WeightedRerank)


class Announced(StageWrapper):
    """A stage that emits LlamaIndex's events at the start and end of its work, where a handler listens.

    The events contain only hits that the query's `require` permits.
    """

    def __init__(self, stage: Stage, callback_manager: CallbackManager | None) -> None:
        super().__init__(stage)
        self.callback_manager = callback_manager or CallbackManager()

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        if not (listened(dispatcher) or self.callback_manager.handlers):
            return (yield from self.below.plan(query, ranking))
        yield (Call(self.name, _nothing, inline=True, at_home=True),)
        with reranking(query.text, _permitted_nodes(query, ranking), self.below, self.callback_manager) as found:
            refined = yield from self.below.plan(query, ranking)
            found += _permitted_nodes(query, refined)
        return refined


def _nothing() -> None:
    """Return a plan to its driver's thread, in which events are handled."""


def announced(stage: Stage, callback_manager: CallbackManager | None = None) -> Stage:
    """A reranking stage that emits the pair of events; a postprocessor's stage unchanged, since it emits its own.

    `callback_manager` is notified too; None is the global one.
    """
    return stage if isinstance(_cut(stage), PostprocessorStage) else Announced(stage, callback_manager)


@contextmanager
def reranking(
    query: str,
    given: Sequence[NodeWithScore],
    stage: Stage,
    callback_manager: CallbackManager,
    top_n: int | None = None,
) -> Iterator[list[NodeWithScore]]:
    """Emit the start and end events of a reranking; yields a list, to be filled with the reranked nodes."""
    found: list[NodeWithScore] = []
    wanted, model = top_n or _top_n(stage) or len(given), _model(stage)
    payload: dict[str, Any] = {
        EventPayload.NODES: list(given),
        EventPayload.MODEL_NAME: model,
        EventPayload.QUERY_STR: query,
        EventPayload.TOP_K: wanted,
    }
    dispatcher.event(ReRankStartEvent(query=query, nodes=list(given), top_n=wanted, model_name=model))
    try:
        with callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            yield found
            event.on_end(payload={EventPayload.NODES: found})
    finally:
        dispatcher.event(ReRankEndEvent(nodes=found))


def _permitted_nodes(query: Query, ranking: Ranking) -> list[NodeWithScore]:
    passes = compile_filter(query.require)
    return [node_of_hit(hit) for hit in ranking if passes(hit.access_metadata)]


def _cut(stage: Stage) -> Stage:
    """The innermost stage below its wrappers."""
    return _cut(stage.below) if isinstance(stage, StageWrapper) else stage


def _top_n(stage: Stage) -> int | None:
    return stage.n if isinstance(stage, TopN) else getattr(stage, "top_n", None)


def _model(stage: Stage) -> str:
    """The name of the model that a stage uses, else the stage's own name."""
    if isinstance(stage, StageWrapper):
        return _model(stage.below)
    if isinstance(stage, CrossEncoderRerank):
        return stage.scorer if isinstance(stage.scorer, str) else stage.scorer.name
    llm = getattr(getattr(stage, "model", None), "llm", None)
    return stage.name if llm is None else str(getattr(llm, "model", None) or llm.class_name())


def without_span(method: F) -> F:
    """A method that LlamaIndex gives no span, because it only calls one that has one."""
    setattr(method, DISPATCHER_SPAN_DECORATED_ATTR, True)
    return method
