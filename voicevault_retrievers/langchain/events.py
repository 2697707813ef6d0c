"""What a search does, as custom events of LangChain: for progress on a page, and for traces."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig

from voicevault_retrievers.calls import AsyncObserver, Observer, Span
from voicevault_retrievers.telemetry import found_in
from voicevault_retrievers.types import Query

DEGRADED_EVENT = "voicevault_degraded"
EVENTS = {
    "rewriter": "voicevault_expansion",
    "channel": "voicevault_channel",
    "fusion": "voicevault_fusion",
    "stage": "voicevault_stage",
}
"""The event of each kind of call, dispatched as soon as it has ended."""


def observer(config: RunnableConfig) -> Observer | None:
    """Dispatches the events of a search; None where nobody listens."""
    if not _listened(config):
        return None

    def observe(span: Span, outcome: Any) -> None:
        if span.kind in EVENTS:
            dispatch_custom_event(EVENTS[span.kind], told(span, outcome), config=config)

    return observe


def aobserver(config: RunnableConfig) -> AsyncObserver | None:
    """`observer` for a search on an event loop."""
    if not _listened(config):
        return None

    async def observe(span: Span, outcome: Any) -> None:
        if span.kind in EVENTS:
            await adispatch_custom_event(EVENTS[span.kind], told(span, outcome), config=config)

    return observe


def told(span: Span, outcome: Any) -> dict[str, Any]:
    """An event's data: name, seconds and queries; the hits' ids and scores, an expansion's wordings, or the error."""
    data: dict[str, Any] = {"name": span.name, "seconds": span.seconds, "queries": list(span.texts)}
    if span.k is not None:
        data["k"] = span.k
    if span.error is not None:
        return {**data, "error": f"{type(span.error).__name__}: {span.error}"}
    if isinstance(outcome, Query):
        return {**data, "wordings": list(dict.fromkeys([outcome.text, *(v.text for v in outcome.variants)]))}
    return {**data, "hits": [{"id": chunk_id, "score": score} for chunk_id, score in found_in(outcome)]}


def _listened(config: RunnableConfig) -> bool:
    return bool(getattr(config.get("callbacks"), "handlers", None))
