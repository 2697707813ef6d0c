"""What a search does, as events of LlamaIndex: for progress on a page, and for traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import Dispatcher
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.span_handlers import NullSpanHandler

from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, Span
from voicevault_retrievers.core.explanation import step
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.types import Hit, Ranking

dispatcher = get_dispatcher(__name__)
_KINDS = frozenset({"rewriter", "channel", "fusion", "stage"})


class SearchStepEvent(BaseEvent):
    """What one part of a search did, dispatched as soon as it has ended; texts of nodes are never in it."""

    name: str = Field(description="Name of the rewriter, channel, fusion or stage.")
    kind: str = Field(description="rewriter, channel, fusion or stage.")
    seconds: float = Field(description="How long it took.")
    queries: list[str] = Field(default_factory=list, description="What was asked.")
    k: int | None = Field(default=None, description="How many hits were asked for.")
    hits: list[dict[str, Any]] = Field(default_factory=list, description="Id and score of each hit.")
    wordings: list[str] = Field(default_factory=list, description="The question and what a rewriter added.")
    error: str | None = Field(default=None, description="Class and message of the error it ended with.")

    @classmethod
    def class_name(cls) -> str:
        return "SearchStepEvent"


class SearchDegradedEvent(BaseEvent):
    """That parts of a search were skipped; also where it then found nothing."""

    degraded: list[str] = Field(description="What was skipped, and why.")

    @classmethod
    def class_name(cls) -> str:
        return "SearchDegradedEvent"


def observer(require: Filter | None, observe: Observer | None = None) -> Observer | None:
    """Dispatches the events of a search, and tells `observe`; hits that `require` does not permit are in no event."""
    if not listened(dispatcher):
        return observe
    passes = compile_filter(require)

    def both(span: Span, outcome: Any) -> None:
        _dispatch(span, outcome, passes)
        if observe is not None:
            observe(span, outcome)

    return both


def aobserver(require: Filter | None, observe: AsyncObserver | None = None) -> AsyncObserver | None:
    """`observer` for a search on an event loop."""
    if not listened(dispatcher):
        return observe
    passes = compile_filter(require)

    async def both(span: Span, outcome: Any) -> None:
        _dispatch(span, outcome, passes)
        if observe is not None:
            await observe(span, outcome)

    return both


def degraded(skipped: Sequence[str]) -> None:
    """Dispatches what was skipped, if anything was."""
    if skipped:
        dispatcher.event(SearchDegradedEvent(degraded=list(skipped)))


def _dispatch(span: Span, outcome: Any, passes: Callable[[Any], bool]) -> None:
    if span.kind not in _KINDS:
        return
    dispatcher.event(SearchStepEvent(kind=span.kind, **step(span, _permitted(outcome, passes))))


def _permitted(outcome: Any, passes: Callable[[Any], bool]) -> Any:
    """The hits of a fusion or stage that access rights permit; a channel's matches are so already."""
    hits = outcome.hits if isinstance(outcome, Ranking) else outcome
    if not isinstance(hits, list | tuple):
        return hits
    return [hit for hit in hits if not isinstance(hit, Hit) or passes(hit.access_metadata)]


def listened(at: Dispatcher) -> bool:
    """Whether anybody hears a dispatcher's events."""
    return any(not isinstance(handler, NullEventHandler) for one in _up(at) for handler in one.event_handlers)


def is_heard(at: Dispatcher) -> bool:
    """Whether anybody hears a dispatcher's events, or records its spans."""
    spans = (handler for one in _up(at) for handler in one.span_handlers)
    return listened(at) or any(not isinstance(handler, NullSpanHandler) for handler in spans)


def _up(at: Dispatcher) -> Iterator[Dispatcher]:
    """A dispatcher, and those that its events go on to."""
    yield at
    while at.propagate:
        at = at.parent
        yield at
