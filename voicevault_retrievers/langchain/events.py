"""Custom LangChain events for the steps of a search: for progress displays and traces."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManager, adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig, ensure_config

from voicevault_retrievers.core.execution.plan import AsyncObserver, Observer, Span
from voicevault_retrievers.core.explanation import step

DEGRADED_EVENT = "voicevault_degraded"
EVENTS = {
    "rewriter": "voicevault_expansion",
    "channel": "voicevault_channel",
    "fusion": "voicevault_fusion",
    "stage": "voicevault_stage",
}
"""The event name of each kind of call; the event is dispatched when the call ends."""


def observer(config: RunnableConfig) -> Observer | None:
    """An observer that dispatches the events of a search; None where no callback listens."""
    if not _listened(config):
        return None

    def observe(span: Span, outcome: Any) -> None:
        if span.kind in EVENTS:
            dispatch_custom_event(EVENTS[span.kind], step(span, outcome), config=config)

    return observe


def aobserver(config: RunnableConfig) -> AsyncObserver | None:
    """`observer` for a search on an event loop."""
    if not _listened(config):
        return None

    async def observe(span: Span, outcome: Any) -> None:
        if span.kind in EVENTS:
            await adispatch_custom_event(EVENTS[span.kind], step(span, outcome), config=config)

    return observe


def is_heard(config: RunnableConfig | None) -> bool:
    """Whether any callbacks listen to a run with this config, those of a globally configured tracer included."""
    return bool(CallbackManager.configure(ensure_config(config).get("callbacks")).handlers)


def _listened(config: RunnableConfig) -> bool:
    return bool(getattr(config.get("callbacks"), "handlers", None))
