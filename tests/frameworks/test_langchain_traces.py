"""What a search shows: runs, events and OpenTelemetry spans, of one invoke and one ainvoke."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import AsyncChild, Child, Runs, by_length, documents
from tests.helpers import Careless, FailingChannel, HashEmbedder
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import SearchNotAvailableError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, PageDiversityFilter, VectorRetriever
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.rerank import CallableScorer

SCORER = CallableScorer(by_length, name="by length")


class Tree(BaseTracer):
    """Keeps the finished root runs."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)


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


@pytest.mark.parametrize("kind", [Child, AsyncChild])
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_tree_of_runs(kind: type[Child], is_async: bool) -> None:
    tree, retriever = Tree(), searched(kind, tags=["own"], metadata={"team": "pumps"})
    child = retriever.channels["child"]
    config: RunnableConfig = {
        "callbacks": [tree],
        "tags": ["outer"],
        "metadata": {"tenant": "a"},
        "configurable": {"user": "ada"},
    }
    await run(retriever, config, is_async)
    (root,) = tree.roots
    assert [below.name for below in root.child_runs] == ["ask", "HybridRetriever"]
    own = root.child_runs[1]
    assert {"outer", "own"} <= set(own.tags or [])
    assert (own.metadata["tenant"], own.metadata["team"]) == ("a", "pumps")
    wordings = ["where is the pump seal", "the pump seal", "pump seal"]
    assert sorted(below.inputs["query"] for below in own.child_runs) == sorted(wordings)
    for below in own.child_runs:
        assert (below.name, below.run_type) == (kind.__name__, "retriever")
        assert {"outer", "channel:child"} <= set(below.tags or [])
        assert below.metadata["tenant"] == "a"
    assert [config["configurable"]["user"] for config in child.seen] == ["ada"] * len(wordings)


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_events_say_what_each_part_did(is_async: bool) -> None:
    runs = Runs()
    found = await run(searched(AsyncChild), {"callbacks": [runs]}, is_async)
    own, _, _ = runs.started["HybridRetriever"]
    assert {run_id for _, _, run_id in runs.events} == {own}
    assert Counter((name, data["name"]) for name, data, _ in runs.events) == {
        ("voicevault_expansion", "expansion"): 1,
        ("voicevault_channel", "bm25"): 1,
        ("voicevault_channel", "dense"): 1,
        ("voicevault_channel", "child"): 3,
        ("voicevault_fusion", "fused"): 1,
        ("voicevault_stage", "rerank"): 1,
        ("voicevault_stage", "page_cap"): 1,
    }
    ((expansion, _),) = runs.told("voicevault_expansion")
    assert expansion["wordings"] == ["where is the pump seal", "the pump seal", "pump seal"]
    told = {data["name"]: data for data, _ in runs.told("voicevault_channel")}
    assert told["dense"]["queries"] == expansion["wordings"]
    bm25 = told["bm25"]
    assert (bm25["queries"], bm25["k"]) == (expansion["wordings"][:1], 100)
    assert {hit["id"] for hit in bm25["hits"]} == {"seal", "flush", "hose"}
    assert all(isinstance(hit["score"], float) for hit in bm25["hits"])
    capped, _ = runs.told("voicevault_stage")[-1]
    assert [hit["id"] for hit in capped["hits"]] == [document.id for document in found]
    json.dumps([data for _, data, _ in runs.events])


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_event_comes_as_soon_as_its_part_has_ended(is_async: bool) -> None:
    """The reranker waits for the event of the channel before it."""
    told = threading.Event()

    class Waited(BaseCallbackHandler):
        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            if name == "voicevault_channel":
                told.set()

    def waiting(query: str, passages: Sequence[str]) -> list[float]:
        return [float(told.wait(10))] * len(passages)

    retriever = HybridRetriever(
        channels={"bm25": BM25Retriever.from_documents(documents())}, rerank=CallableScorer(waiting, name="waiting")
    )
    found = await run(retriever, {"callbacks": [Waited()]}, is_async)
    assert {document.metadata["voicevault"]["rerank"]["score"] for document in found} == {1.0}


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failing_channels_event_has_its_error(is_async: bool) -> None:
    runs = Runs()
    retriever = HybridRetriever(
        channels={
            "bm25": BM25Retriever.from_documents(documents()),
            "far": FailingChannel(SearchNotAvailableError("the server is down")),
        }
    )
    await run(retriever, {"callbacks": [runs]}, is_async)
    told = {data["name"]: data for data, _ in runs.told("voicevault_channel")}
    assert told["far"]["error"] == "SearchNotAvailableError: the server is down"
    assert "error" not in told["bm25"]


async def test_events_stream() -> None:
    names = [
        event["name"]
        async for event in searched(AsyncChild).astream_events("pump seal", version="v2")
        if event["event"] == "on_custom_event"
    ]
    assert names[-2:] == ["voicevault_stage", "voicevault_stage"]
    assert "voicevault_fusion" in names


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
        "rewriter expansion": 1,
        "channel bm25": 1,
        "channel dense": 1,
        "channel child": 3,
        "fusion fused": 1,
        "stage rerank": 1,
        "stage page_cap": 1,
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


class Everything(BaseCallbackHandler):
    """Keeps all that callbacks are told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
        self.seen.append(documents)

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.seen.append(data)
