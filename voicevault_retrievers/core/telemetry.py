"""OpenTelemetry spans of a search. Imports and does nothing unless the application has loaded OpenTelemetry.

The calls that have a span are also measured: see `metrics`.

A search is a span `retrieval`. Its calls are spans below it: `rewriter NAME`, `channel NAME`, `fusion NAME` and, for
stages, `stage NAME`. Each span encloses the call itself, so the spans of a store's client nest below its channel. Spans
carry the query, the number of hits requested, and the ids and scores of what was found, under OpenTelemetry's names for
retrieval (gen_ai.*) and OpenInference's. Texts of documents are never recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from voicevault_retrievers.core.metrics import NAME, CallClock, SearchClock, loaded
from voicevault_retrievers.core.tracing import RECORDER, Note, Work, data_of
from voicevault_retrievers.errors import told

MOST_FLAT = 32
"""The most documents with attributes of their own: an SDK keeps 128 attributes of a span, and drops the oldest."""

_KINDS = {"channel": "RETRIEVER", "fusion": "CHAIN", "rewriter": "CHAIN", "stage": "RERANKER"}


def recorded(work: Work) -> AbstractContextManager[Note] | None:
    """A context manager around a call, which yields a function that takes its value; None where nothing records."""
    if work.kind not in _KINDS:
        return None
    tracer, measured = _tracer(), CallClock(work.kind, work.name) if loaded() else None
    if tracer is None:
        return measured
    span = _span(tracer, f"{work.kind} {work.name}", _KINDS[work.kind], work.texts, work.k)
    return span if measured is None else _both(span, measured)


@contextmanager
def _both(span: AbstractContextManager[Note], measured: AbstractContextManager[Note]) -> Iterator[Note]:
    with span as note, measured:
        yield note


def records() -> bool:
    """Whether the application records or measures searches."""
    return RECORDER.get() is not None or _tracer() is not None or loaded()


@contextmanager
def search(text: str, k: int) -> Iterator[Note]:
    """A context manager around a whole search, which yields a function to report its ranking."""
    tracer = _tracer()
    if tracer is None and not loaded():
        yield _ignore
        return
    with _span(tracer, "retrieval", "RETRIEVER", (text,), k) as note, SearchClock() as measured:

        def told(ranking: Any) -> None:
            measured.note(ranking)
            note(ranking)

        yield told


@contextmanager
def _span(tracer: Any | None, name: str, kind: str, texts: Sequence[str], k: int | None) -> Iterator[Note]:
    if tracer is None:
        yield _ignore
        return
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
        if span.is_recording():
            query = "\n".join(texts)
            span.set_attributes({"openinference.span.kind": kind, "gen_ai.operation.name": "retrieval"})
            span.set_attributes({"input.value": query, "gen_ai.retrieval.query.text": query})
            if k is not None:
                span.set_attributes({"gen_ai.request.top_k": k, "gen_ai.retrieval.top_k": k})  # old name, new name

        def note(value: Any) -> None:
            if not span.is_recording():
                return
            try:
                span.set_attributes(_attributes(data_of(value)))
                if degraded := [str(failure) for failure in getattr(value, "errors", ()) if failure.degrades]:
                    span.set_attribute("voicevault.degraded", degraded)
            except Exception as error:  # noqa: BLE001 - a span must not make a search fail
                span.set_attribute("voicevault.unrecorded", told(error))

        try:
            yield note
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR, told(error))
            raise


def _attributes(data: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in data:
        return {"voicevault.unrecorded": data["error"]}
    documents = [{key: hit[key] for key in ("id", "score") if hit[key] is not None} for hit in data.get("hits", ())]
    flat = {
        f"retrieval.documents.{at}.document.{key}": value
        for at, document in enumerate(documents[:MOST_FLAT])
        for key, value in document.items()
    }
    return {"gen_ai.retrieval.documents": json.dumps(documents), **flat}


def _ignore(value: Any) -> None:
    """Ignore a value that nothing records."""


def _tracer() -> Any | None:
    """The application's tracer; None where OpenTelemetry is not imported or not set up."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if not hasattr(trace, "get_tracer_provider") or not hasattr(trace, "ProxyTracerProvider"):
        return None  # another thread may be importing it
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider.get_tracer(NAME)
