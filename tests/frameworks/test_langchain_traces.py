"""What a search shows in OpenTelemetry spans, of one invoke and one ainvoke; see `test_langchain_runs` for its runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import AsyncChild, Child, by_length, documents
from tests.helpers import TRACED_PARTS, Careless, CarelessPlan, FailingChannel, HashEmbedder
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import SearchNotAvailableError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, PageDiversityFilter, VectorRetriever
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.rerank import CallableScorer

SCORER = CallableScorer(by_length, name="by length")


def searched(child: type[Child], **options: Any) -> HybridRetriever:
    return HybridRetriever(
        channels={
            "bm25": BM25Retriever.from_documents(documents()),
            "dense": VectorRetriever.from_documents(documents(), HashEmbedder()),
            "child": child(found=documents(), seen=[]),
        },
        expansion=True,
        rerank=SCORER,
        stages=[PageDiversityFilter(max_chunks_per_page=1)],
        **options,
    )


async def run(searched: Any, config: RunnableConfig, is_async: bool) -> list[Document]:
    chain = RunnableLambda(lambda query: query, name="ask") | searched
    found: list[Document] = (
        await chain.ainvoke("where is the pump seal", config)
        if is_async
        else chain.invoke("where is the pump seal", config)
    )
    return found


# OpenTelemetry


@pytest.fixture
def exported() -> Iterator[Any]:
    trace = pytest.importorskip("opentelemetry.trace", reason="the extra 'otel' is not installed")
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra 'otel' is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        yield exporter
    finally:
        trace._TRACER_PROVIDER = before
        provider.shutdown()


@pytest.mark.parametrize("is_async", [False, True])
async def test_spans_carry_query_k_scores_and_ids(exported: Any, is_async: bool) -> None:
    found = await run(searched(AsyncChild, k=2), {}, is_async)
    spans = exported.get_finished_spans()
    assert Counter(span.name for span in spans) == {
        "retrieval": 1,
        **TRACED_PARTS,
    }
    (root,) = [span for span in spans if span.name == "retrieval"]
    assert root.parent is None
    assert {span.parent.span_id for span in spans if span is not root} == {root.context.span_id}
    assert {span.context.trace_id for span in spans} == {root.context.trace_id}
    assert root.attributes["gen_ai.retrieval.query.text"] == "where is the pump seal"
    assert root.attributes["gen_ai.request.top_k"] == 2
    assert json.loads(root.attributes["gen_ai.retrieval.documents"]) == [
        {"id": document.id, "score": document.metadata["relevance_score"]} for document in found
    ]
    bm25 = next(span for span in spans if span.name == "channel bm25")
    assert bm25.attributes["gen_ai.request.top_k"] == 100
    assert bm25.attributes["retrieval.documents.0.document.id"] in {"seal", "flush", "hose"}
    assert bm25.attributes["openinference.span.kind"] == "RETRIEVER"
    assert "The pump seal is rated" not in json.dumps([dict(span.attributes) for span in spans])


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failing_channels_span_has_its_error_and_a_clients_span_is_below_its_channel(
    exported: Any, is_async: bool
) -> None:
    from opentelemetry import trace

    class Client(Child):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            with trace.get_tracer("client").start_as_current_span("request"):
                return self.found

    retriever = HybridRetriever(
        channels={
            "far": FailingChannel(SearchNotAvailableError("the server is down")),
            "near": Client(found=documents(), seen=[]),
        }
    )
    await run(retriever, {}, is_async)
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert spans["channel far"].status.status_code.name == "ERROR"
    assert spans["channel far"].status.description == "SearchNotAvailableError: the server is down"
    assert spans["channel far"].attributes["error.type"] == "SearchNotAvailableError"
    assert not spans["channel far"].events
    assert spans["request"].parent.span_id == spans["channel near"].context.span_id
    assert spans["channel near"].status.status_code.name == "UNSET"


class Numpy(LeafChannel):
    """A channel of somebody's own, whose scores are numpy's and whose matches are many."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [[Match(Chunk(f"c{at:03d}", "pump"), np.float32(1 / (1 + at))) for at in range(k)]]  # type: ignore[arg-type]


def test_recording_drops_nothing_and_changes_no_outcome(exported: Any) -> None:
    retriever = HybridRetriever(channels={"many": Numpy("many", "semantic")}, fusion=Fusion(depth=150))
    found = retriever.invoke("pump")
    assert "degraded" not in found[0].metadata["voicevault"]
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert {span.dropped_attributes for span in spans.values()} == {0}
    assert len(json.loads(spans["channel many"].attributes["gen_ai.retrieval.documents"])) == 150
    assert spans["channel many"].attributes["gen_ai.retrieval.query.text"] == "pump"


def test_a_degraded_search_says_so_in_its_span(exported: Any) -> None:
    channels = {
        "bm25": BM25Retriever.from_documents(documents()),
        "far": FailingChannel(SearchNotAvailableError("down")),
    }
    HybridRetriever(channels=channels).invoke("pump")
    (root,) = [span for span in exported.get_finished_spans() if span.name == "retrieval"]
    assert root.attributes["voicevault.degraded"] == ("far: SearchNotAvailableError: down",)


# Access rights


class Unknown(InMemoryVectorStore):
    """A store whose filters are not known."""


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_not_permitted_shows_in_no_event_run_span_or_prompt(exported: Any, is_async: bool) -> None:
    read: list[str] = []

    def reading(query: str, passages: Sequence[str]) -> list[float]:
        read.extend(passages)
        return [0.0] * len(passages)

    store = Unknown(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document("pump b", id="secret", metadata={"of": "b"}), Document("c", metadata={"of": "a"})])
    retriever = HybridRetriever(
        channels={"careless": Careless("careless", "semantic"), "store": store.as_retriever()},
        require={"of": "a"},
        rerank=CallableScorer(reading, name="reading"),
    )
    told = Everything()
    found = await run(retriever, {"callbacks": [told]}, is_async)
    assert found
    assert found[0].metadata["voicevault"]["degraded"] != []
    spans = [dict(span.attributes) for span in exported.get_finished_spans()]
    for shown in (told.seen, spans, read, found):
        assert "secret" not in repr(shown)
        assert "pump b" not in repr(shown)


def test_spans_show_only_what_access_rights_permit(exported: Any) -> None:
    ours = BM25Retriever.from_documents([Document("pump a", id="ours", metadata={"of": "a"})])
    HybridRetriever(channels={"plan": CarelessPlan(), "ours": ours}, require={"of": "a"}).invoke("pump")
    shown = [dict(span.attributes) for span in exported.get_finished_spans()]
    assert "ours" in repr(shown)
    assert "secret" not in repr(shown)


class Everything(BaseCallbackHandler):
    """Keeps all that callbacks are told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
        self.seen.append(documents)

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self.seen.append(outputs)

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.seen.append(data)
