"""Hearing of what a search leaves out, also where it finds nothing that could tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.event_handlers import NullEventHandler

from voicevault_retrievers.llama_index.events import SearchDegradedEvent, dispatcher

_HEARD: ContextVar[list[str] | None] = ContextVar("voicevault_heard", default=None)


@contextmanager
def heard() -> Iterator[list[str]]:
    """What is skipped in the searches of a block, however deep below other retrievers; blocks around it hear it too."""
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
    """Counts as no handler: without others a search need not make events of its steps."""

    @classmethod
    def class_name(cls) -> str:
        return "voicevault_listener"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        told = _HEARD.get()
        if told is not None and isinstance(event, SearchDegradedEvent):
            told += event.degraded


dispatcher.add_event_handler(_Listener())
