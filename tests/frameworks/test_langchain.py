"""The LangChain classes: what they give, what they leave alone, and how they sit in a chain."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.vectorstores import InMemoryVectorStore

from tests.helpers import FailingChannel, HashEmbedder, ListChannel
from voicevault_retrievers import langchain as ours
from voicevault_retrievers.channel import Channel
from voicevault_retrievers.dense.exact import ExactVectors
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    RerankerError,
    RetrievalError,
    SearchNotAvailableError,
)
from voicevault_retrievers.explain import provenance
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.langchain import (
    BM25Retriever,
    CrossEncoderReranker,
    HybridRetriever,
    LangChainEmbedder,
    PageDiversityFilter,
    RetrieverChannel,
    VectorRetriever,
    VectorStoreChannel,
    as_channel,
    chunk_of,
    document_of,
)
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.rerank import CallableScorer
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.types import Chunk, Hit, Vote

TEXTS = {
    "flush": "Flush the pump housing before the seal is changed",
    "seal": "The pump seal is rated for hot water",
    "hose": "A hose joins pump and filter",
    "lamp": "The warning lamp blinks red",
    "door": "Close the door of the cabinet",
}


def documents() -> list[Document]:
    return [
        Document(text, id=key, metadata={"source": "manual.pdf", "page": at // 2, "tags": {"of": [key]}})
        for at, (key, text) in enumerate(TEXTS.items())
    ]


def hybrid(**options: Any) -> HybridRetriever:
    return HybridRetriever.from_documents(documents(), HashEmbedder(), **options)


def ids(found: Sequence[Document]) -> list[str | None]:
    return [document.id for document in found]


class Child(BaseRetriever):
    """Gives its documents, and says under which configuration it was asked."""

    found: list[Document]
    seen: list[RunnableConfig]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.seen.append(ensure_config())
        return self.found


class AsyncChild(Child):
    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.seen.append(ensure_config())
        await asyncio.sleep(0)
        return self.found


class Runs(BaseCallbackHandler):
    """The runs that were started: name, own id, parent's id; and the events that were dispatched."""

    def __init__(self) -> None:
        self.started: dict[str, tuple[UUID, UUID | None, list[str]]] = {}
        self.events: list[tuple[str, Any, UUID]] = []

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **kwargs: Any) -> None:
        self.started[kwargs["name"]] = run_id, kwargs["parent_run_id"], kwargs["tags"]

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.started[kwargs["name"]] = run_id, kwargs["parent_run_id"], kwargs["tags"]

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.events.append((name, data, run_id))


# What a call can say


async def test_k_is_the_constructors_unless_a_call_says_otherwise() -> None:
    retriever = hybrid(k=2)
    assert len(retriever.invoke("pump")) == 2
    assert len(retriever.invoke("pump", k=3)) == 3
    assert len(await retriever.ainvoke("pump", k=1)) == 1
    retriever.k = 3
    assert len(retriever.invoke("pump")) == 3


@pytest.mark.parametrize("k", [0, -1, True, "2"])
def test_a_k_that_is_no_count_is_refused(k: Any) -> None:
    with pytest.raises(ConfigError):
        hybrid().invoke("pump", k=k)


@pytest.mark.parametrize("k", [0, -1, "many"])
def test_a_k_that_is_no_count_is_refused_by_the_constructor(k: Any) -> None:
    with pytest.raises(ConfigError):
        hybrid(k=k)


async def test_a_calls_filter_is_added_to_the_constructors() -> None:
    retriever = hybrid(where={"page": {"$lte": 1}})
    assert set(ids(retriever.invoke("pump seal", where={"page": 1}))) == {"hose", "lamp"} & set(
        ids(hybrid().invoke("pump seal"))
    )
    assert retriever.invoke("pump", where={"page": 2}) == []
    assert await retriever.ainvoke("door", where={"page": 2}) == []
    assert "door" in ids(hybrid().invoke("door"))


def test_access_rights_are_not_for_a_call_to_widen() -> None:
    retriever = hybrid(require={"page": 0})
    assert set(ids(retriever.invoke("pump", where={}))) <= {"flush", "seal"}
    with pytest.raises(TypeError, match="require"):
        retriever.invoke("pump", require={})


def test_a_malformed_filter_is_the_callers_error_and_not_a_degraded_search() -> None:
    with pytest.raises(ConfigError, match="gte"):
        hybrid().invoke("pump", where={"page": {"$gt3": 1}})
    with pytest.raises(ConfigError, match="gte"):
        hybrid(require={"page": {"$gt3": 1}})


def test_weights_of_a_call_override_by_name() -> None:
    found = hybrid(weights={"dense": 0.5}).invoke("pump seal", weights={"bm25": 2.0})
    channels = found[0].metadata["voicevault"]["channels"]
    assert {name: told["weight"] for name, told in channels.items()} == {"bm25": 2.0, "dense": 0.5}


@pytest.mark.parametrize("retriever", [BM25Retriever, VectorRetriever, HybridRetriever])
def test_a_misspelt_option_is_refused_with_the_nearest(retriever: Any) -> None:
    with pytest.raises(ConfigError, match="'timeout'"):
        retriever(timeuot=3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kb_names": ["manual"], "channels": {"list": ListChannel([])}},
        {"channels": {"list": ListChannel([])}, "weights": {"lisst": 1.0}},
        {"channels": {"list": "bm25"}},
        {"channels": {"list": ListChannel([])}, "embeddings": HashEmbedder()},
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        HybridRetriever(**options)


def test_a_vector_retriever_searches_one_thing() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    with pytest.raises(ConfigError, match="either"):
        VectorRetriever()
    with pytest.raises(ConfigError, match="embeddings"):
        VectorRetriever(vectorstore=store, embeddings=DeterministicFakeEmbedding(size=8))


def test_a_changed_field_is_searched_with() -> None:
    retriever = hybrid()
    retriever.weights = {"dense": 0.0}
    assert {d.metadata["voicevault"]["found_by"] for d in retriever.invoke("pump")} == {"keyword"}
    other = retriever.model_copy(update={"weights": {"bm25": 0.0}})
    assert {d.metadata["voicevault"]["found_by"] for d in other.invoke("pump")} == {"semantic"}


# What a document says


def test_the_parts_add_up_to_the_score() -> None:
    for document in hybrid(expansion=True).invoke("what does the pump seal do?"):
        told = document.metadata["voicevault"]
        parts = math.fsum(channel["contribution"] for channel in told["channels"].values())
        assert parts == told["fused"] == document.metadata["relevance_score"]


def test_a_document_says_how_it_was_found() -> None:
    first = hybrid().invoke("rated for hot water")[0]
    told = first.metadata["voicevault"]
    assert (first.id, told["found_by"]) == ("seal", "hybrid")
    assert told["channels"]["bm25"]["matched_terms"] == ["rated", "hot", "water"]
    assert told["fused"] == 1 / 61 + 1 / 61
    assert type(first.metadata["relevance_score"]) is float


def test_the_callers_documents_and_the_index_stay_as_they_are() -> None:
    given = documents()
    before = copy.deepcopy(given)
    retriever = HybridRetriever.from_documents(given, HashEmbedder())
    found = retriever.invoke("pump seal")
    original = {document.id: document for document in before}
    for document in found:
        assert {**original[document.id].metadata} == {
            key: value for key, value in document.metadata.items() if key not in ("relevance_score", "voicevault")
        }
        document.metadata["tags"]["of"].append("changed")
        document.metadata["voicevault"]["channels"].clear()
    assert given == before
    again = retriever.invoke("pump seal")
    assert [document.metadata["tags"] for document in again] == [
        original[document.id].metadata["tags"] for document in again
    ]
    given[0].metadata["tags"]["of"].append("changed")
    assert all("changed" not in document.metadata["tags"]["of"] for document in retriever.invoke("flush"))


@pytest.mark.parametrize(
    "hit",
    [
        Hit(Chunk("a", "text", "p", {"parent_id": "p", "n": 1}), 0.5, (Vote("bm25", 1, 0.5, kind="keyword"),)),
        Hit(Chunk("a", "text", "p", {"n": [1]}, kb="manual")),
        Hit(Chunk("a", "child", "p"), 1.0, context="the whole parent"),
    ],
)
def test_a_hits_document_is_its_chunk_again(hit: Hit) -> None:
    document = document_of(hit)
    assert document.page_content == hit.text
    assert document.metadata.get("relevance_score") == hit.score
    assert document.metadata["voicevault"].items() >= provenance(hit).items()
    back = chunk_of(document)
    assert back == hit.chunk
    assert document_of(Hit(back, hit.score, hit.votes, hit.context)) == document


def test_a_documents_chunk_is_its_document_again() -> None:
    for document in [*documents(), Document("child", id="c", metadata={"parent_id": "p"})]:
        back = document_of(Hit(chunk_of(document)))
        del back.metadata["voicevault"]
        assert back == document


def test_an_id_is_made_of_text_and_metadata() -> None:
    first = Document("text", metadata={"a": 1, "b": {0, 8}})
    same = Document("text", metadata={"b": {8, 0}, "a": 1})
    assert list(first.metadata["b"]) != list(same.metadata["b"])
    assert chunk_of(first).id == chunk_of(same).id
    assert chunk_of(first).id != chunk_of(Document("text", metadata={"a": 2, "b": {0, 8}})).id
    assert len(BM25Retriever.from_documents([first, same, first]).invoke("text")) == 1


# What matches nothing, and what fails


@pytest.mark.parametrize("query", ["", "   ", "zeppelin", "?"])
async def test_no_match_gives_no_documents(query: str) -> None:
    retriever = BM25Retriever.from_documents(documents())
    assert retriever.invoke(query) == await retriever.ainvoke(query) == []


def test_an_empty_corpus_gives_no_documents() -> None:
    assert BM25Retriever.from_documents([]).invoke("pump") == []
    assert HybridRetriever.from_documents([], HashEmbedder()).invoke("pump") == []
    assert VectorRetriever.from_documents([], DeterministicFakeEmbedding(size=8)).invoke("pump") == []


def failing(**options: Any) -> HybridRetriever:
    error = SearchNotAvailableError("the server is down")
    return HybridRetriever(
        channels={"bm25": BM25Retriever.from_documents(documents()), "far": FailingChannel(error)}, **options
    )


async def test_a_failing_channel_degrades_the_result_and_the_documents_say_so(caplog: pytest.LogCaptureFixture) -> None:
    runs = Runs()
    found = failing().invoke("pump", {"callbacks": [runs]})
    assert len(found) == 3
    messages = ["far: SearchNotAvailableError: the server is down"]
    assert [document.metadata["voicevault"]["degraded"] for document in found] == [messages] * 3
    own, _, _ = runs.started["HybridRetriever"]
    assert runs.events == [("voicevault_degraded", {"degraded": messages}, own)]
    assert "the server is down" in caplog.text
    runs = Runs()
    assert await failing().ainvoke("pump", {"callbacks": [runs]}) == found
    assert [event[:2] for event in runs.events] == [("voicevault_degraded", {"degraded": messages})]
    assert failing().search("pump").degraded
    assert "degraded" not in hybrid().invoke("pump")[0].metadata["voicevault"]


async def test_on_error_raise_raises_the_channels_error() -> None:
    with pytest.raises(SearchNotAvailableError, match="down"):
        failing(on_error="raise").invoke("pump")
    with pytest.raises(SearchNotAvailableError, match="down"):
        await failing(on_error="raise").ainvoke("pump")


# Chains, callbacks, configuration


def parent_of(child: BaseRetriever) -> HybridRetriever:
    return HybridRetriever(channels={"child": child, "bm25": BM25Retriever.from_documents(documents())})


@pytest.mark.parametrize("kind", [Child, AsyncChild])
@pytest.mark.parametrize("in_chain", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_child_runs_below_its_parent_with_the_callers_configuration(
    kind: type[Child], in_chain: bool, is_async: bool
) -> None:
    child, runs = kind(found=documents(), seen=[]), Runs()
    parent = parent_of(child)
    searched: Any = RunnableLambda(lambda query: query) | parent if in_chain else parent
    config: RunnableConfig = {"callbacks": [runs], "configurable": {"tenant": "a"}, "run_name": "mine"}
    _ = await searched.ainvoke("pump", config) if is_async else searched.invoke("pump", config)
    own, above, _ = runs.started["HybridRetriever" if in_chain else "mine"]
    assert above == (runs.started["mine"][0] if in_chain else None)
    assert runs.started[kind.__name__][1] == own
    assert "channel:child" in runs.started[kind.__name__][2]
    assert child.seen[0]["configurable"]["tenant"] == "a"


async def test_a_childs_configurable_field_is_the_parents_to_set() -> None:
    child = BM25Retriever.from_documents(documents()).configurable_fields(k=ConfigurableField("child_k"))
    parent = HybridRetriever(channels={"child": child})
    assert [spec.id for spec in parent.config_specs] == ["child_k"]
    config: RunnableConfig = {"configurable": {"child_k": 1}}
    assert len(parent.invoke("pump")) == 3
    assert len(parent.invoke("pump", config)) == len(await parent.ainvoke("pump", config)) == 1
    assert len((RunnableLambda(lambda query: query) | parent).invoke("pump", config)) == 1


def test_the_configuration_ends_with_the_call() -> None:
    hybrid().invoke("pump", {"configurable": {"tenant": "a"}})
    assert ensure_config()["configurable"] == {}


def test_own_fields_can_be_configured_and_a_reranker_is_kept() -> None:
    asked: list[str] = []

    def counting(query: str, passages: Sequence[str]) -> list[float]:
        asked.extend(passages)
        return by_length(query, passages)

    retriever = hybrid(rerank=CallableScorer(counting, name="counting")).configurable_fields(k=ConfigurableField("k"))
    for _ in range(2):
        (found,) = retriever.invoke("pump", {"configurable": {"k": 1}})
    assert (found.id, found.metadata["voicevault"]["rerank"]["rank"]) == ("flush", 1)
    assert sorted(asked) == sorted(set(asked))


@pytest.mark.parametrize("query", ["pump", "hot water", "zeppelin", ""])
async def test_sync_and_async_give_the_same(query: str) -> None:
    child = AsyncChild(found=documents()[::-1], seen=[])
    for retriever in (hybrid(expansion=True, max_chunks_per_page=1), parent_of(child)):
        assert retriever.invoke(query) == await retriever.ainvoke(query)
        assert retriever.search(query).ranking == (await retriever.asearch(query)).ranking


async def test_a_search_does_not_hold_up_the_event_loop() -> None:
    gate, order = asyncio.Event(), []

    class Waiting(AsyncChild):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            order.append("searching")
            await gate.wait()
            return self.found

    async def meanwhile() -> None:
        while "searching" not in order:
            await asyncio.sleep(0)
        gate.set()

    retriever = parent_of(Waiting(found=documents(), seen=[]))
    found, _ = await asyncio.gather(retriever.ainvoke("pump"), meanwhile())
    assert found


async def test_a_retriever_without_an_async_search_runs_in_a_thread_that_exit_does_not_wait_for() -> None:
    threads: list[threading.Thread] = []

    class Threaded(Child):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            threads.append(threading.current_thread())
            return self.found

    assert await parent_of(Threaded(found=documents(), seen=[])).ainvoke("pump")
    assert [(thread.daemon, thread.name) for thread in threads] == [(True, "voicevault-worker")]


# Knowledge bases and presets


def base(root: Path) -> dict[str, Any]:
    with KnowledgeBase.create("manual", root=root, embedder=HashEmbedder()) as made:
        made.add([chunk_of(document) for document in documents()])
    return {"root": root, "embeddings": HashEmbedder()}


async def test_a_knowledge_base_is_searched_as_its_documents_are(tmp_path: Path) -> None:
    retriever = HybridRetriever(kb_names=["manual"], **base(tmp_path))
    found = await retriever.ainvoke("pump seal")
    assert found == retriever.invoke("pump seal")
    told = [(document.id, document.page_content, document.metadata["relevance_score"]) for document in found]
    assert told == [(d.id, d.page_content, d.metadata["relevance_score"]) for d in hybrid().invoke("pump seal")]
    assert {document.metadata["voicevault"]["kb"] for document in found} == {"manual"}


def test_a_knowledge_base_that_is_missing_is_named(tmp_path: Path) -> None:
    options = base(tmp_path)
    found = HybridRetriever(kb_names=["manual", "gone"], **options).invoke("pump")
    assert "gone" in found[0].metadata["voicevault"]["degraded"][0]
    joined = HybridRetriever(channels={"bases": HybridRetriever(kb_names=["manual", "gone"], **options)}).invoke("pump")
    assert "gone" in joined[0].metadata["voicevault"]["degraded"][0]


def test_a_preset_says_how_to_search(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text("version: 1\nk: 1\nchannels: {bm25: {}, dense: {}}\nfusion: {k: 10}\n")
    by_base = HybridRetriever(kb_names=["manual"], preset=preset, **base(tmp_path))
    by_channels = HybridRetriever(channels=hybrid().channels, preset=preset)
    for retriever in (by_base, by_channels):
        (found,) = retriever.invoke("rated for hot water")
        assert found.metadata["voicevault"]["fused"] == 1 / 11 + 1 / 11
    assert len(by_base.invoke("pump", k=2)) == len(HybridRetriever(**dict(by_channels) | {"k": 2}).invoke("pump")) == 2
    with pytest.raises(ConfigError, match="fusion"):
        HybridRetriever(channels=hybrid().channels, preset=preset, fusion=RRF(10))


# Other people's parts as channels


def test_what_can_be_a_channel() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    assert isinstance(as_channel(store), VectorStoreChannel)
    assert isinstance(as_channel(Child(found=[], seen=[])), RetrieverChannel)
    assert isinstance(as_channel(RunnableLambda(lambda _: documents())), RetrieverChannel)
    channel = BM25.from_chunks([])
    assert as_channel(channel) is channel
    with pytest.raises(ConfigError, match="int"):
        as_channel(3)


async def test_a_retriever_as_a_channel_has_ranks_and_no_scores() -> None:
    parent = HybridRetriever(channels={"child": AsyncChild(found=documents(), seen=[])})
    found = parent.invoke("pump", k=2)
    assert ids(found) == ["flush", "seal"] == ids(await parent.ainvoke("pump", k=2))
    assert found[1].metadata["voicevault"]["channels"]["child"] == {
        "rank": 2, "weight": 1.0, "contribution": 1 / 62, "query": "pump",
    }  # fmt: skip


def test_a_retriever_of_this_package_joins_with_its_scores_words_and_filters() -> None:
    inner = BM25Retriever.from_documents(documents(), k=1, where={"page": 0})
    outer = HybridRetriever(channels={"keywords": inner})
    found = outer.invoke("pump seal")
    assert set(ids(found)) == {"flush", "seal"}
    told = found[0].metadata["voicevault"]["channels"]["keywords"]
    assert told["matched_terms"] == ["pump", "seal"]
    assert "parts" not in told
    assert told["score"] == inner.invoke("pump seal")[0].metadata["relevance_score"]
    assert outer.invoke("pump", where={"page": 1}) == []
    with pytest.raises(ConfigError, match="timeout"):
        HybridRetriever(channels={"keywords": BM25Retriever.from_documents(documents(), timeout=3)})


def vector_store(kind: type[InMemoryVectorStore] = InMemoryVectorStore) -> InMemoryVectorStore:
    store = kind(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    return store


class Relevant(InMemoryVectorStore):
    """A store that says what its scores mean: here they are similarities already."""

    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: similarity - 1  # below 0, of which the public method would warn


class Reversed(InMemoryVectorStore):
    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: -similarity


@pytest.mark.parametrize(("kind", "scored"), [(InMemoryVectorStore, False), (Relevant, True), (Reversed, False)])
async def test_a_vector_store_keeps_its_order_and_scores_that_mean_something(
    kind: type[InMemoryVectorStore], scored: bool
) -> None:
    store = vector_store(kind)
    retriever = VectorRetriever(vectorstore=store, k=3)
    found = retriever.invoke("hot water")
    assert found == await retriever.ainvoke("hot water")
    expected = store.similarity_search_with_score("hot water", k=3)
    assert ids(found) == [document.id for document, _ in expected]
    scores = [document.metadata.get("relevance_score") for document in found]
    assert scores == ([score - 1 for _, score in expected] if scored else [None] * 3)


@pytest.mark.parametrize("filters", [{"where": {"page": 0}}, {"require": {"page": 0}}])
async def test_what_cannot_filter_is_not_searched(filters: dict[str, Any]) -> None:
    child = AsyncChild(found=documents(), seen=[])
    for part in (vector_store(), child):
        alone = HybridRetriever(channels={"part": part}, **filters)
        with pytest.raises(FilterNotSupportedError):
            alone.invoke("pump")
        with pytest.raises(FilterNotSupportedError):
            await alone.ainvoke("pump")
        joined = HybridRetriever(channels={"part": part, "bm25": BM25Retriever.from_documents(documents())}, **filters)
        found = joined.invoke("pump")
        assert set(ids(found)) == {"flush", "seal"}
        assert "part: FilterNotSupportedError" in found[0].metadata["voicevault"]["degraded"][0]
    assert child.seen == []


def test_a_vector_stores_retriever_is_asked_for_as_many_as_are_wanted() -> None:
    child = vector_store().as_retriever(search_kwargs={"k": 1})
    assert len(HybridRetriever(channels={"child": child}).invoke("pump", k=4)) == 4


# Embeddings


def test_langchains_embeddings_become_rows_of_length_one() -> None:
    embedder = LangChainEmbedder(DeterministicFakeEmbedding(size=8))
    rows = embedder.embed_documents(["a", "b"])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)
    assert embedder.dimension == 8
    assert embedder.fingerprint == "langchain/DeterministicFakeEmbedding/-/8"


def test_the_dimension_is_found_by_the_first_call_and_held() -> None:
    class Growing(DeterministicFakeEmbedding):
        model: str = "grow-1"

        def embed_query(self, text: str) -> list[float]:
            return [1.0] * (self.size + 1)

    embedder = LangChainEmbedder(Growing(size=8))
    embedder.embed_documents(["a"])
    assert embedder.fingerprint == "langchain/Growing/grow-1/8"
    with pytest.raises(RetrievalError, match="expected dimension 8"):
        embedder.embed_queries(["a"])


def test_a_vector_retriever_over_an_index_and_over_documents_agree() -> None:
    embeddings = DeterministicFakeEmbedding(size=8)
    index = ExactVectors.build([chunk_of(document) for document in documents()], LangChainEmbedder(embeddings))
    by_index = VectorRetriever(index=index, embeddings=embeddings)
    assert by_index.invoke(TEXTS["lamp"]) == VectorRetriever.from_documents(documents(), embeddings).invoke(
        TEXTS["lamp"]
    )
    first = by_index.invoke(TEXTS["lamp"])[0]
    assert first.id == "lamp"
    assert first.metadata["relevance_score"] == pytest.approx(1.0)
    params = by_index._get_ls_params()
    assert params["ls_embedding_provider"] == "DeterministicFakeEmbedding"


# BM25


def test_texts_have_metadata_and_ids() -> None:
    retriever = BM25Retriever.from_texts(["red lamp", "green lamp"], [{"n": 1}, {"n": 2}], ["r", "g"])
    assert ids(retriever.invoke("red lamps")) == ["r", "g"]
    assert ids(retriever.invoke("lamp", where={"n": 2})) == ["g"]
    with pytest.raises(ConfigError, match="number"):
        BM25Retriever.from_texts(["red lamp", "green lamp"], [{}])


def test_a_preprocess_func_takes_the_place_of_the_analyzer() -> None:
    assert BM25Retriever.from_texts(["the lamps"], preprocess_func=str.split).invoke("lamp") == []
    assert len(BM25Retriever.from_texts(["the lamps"]).invoke("lamp")) == 1


def test_a_rank_bm25_object_is_searched_with_its_own_scores() -> None:
    rank_bm25 = pytest.importorskip("rank_bm25")
    split = [text.lower().split() for text in TEXTS.values()]
    ranker = rank_bm25.BM25Okapi(split)
    found = BM25Retriever.from_rank_bm25(ranker, documents(), preprocess_func=lambda text: text.lower().split()).invoke(
        "pump seal"
    )
    expected = dict(zip(TEXTS, ranker.get_scores(["pump", "seal"]), strict=True))
    assert {document.id: document.metadata["relevance_score"] for document in found} == {
        key: pytest.approx(score) for key, score in expected.items() if key in ("flush", "seal", "hose")
    }


# Compressors


def by_length(query: str, passages: Sequence[str]) -> list[float]:
    return [float(len(passage)) for passage in passages]


def reranker(**options: Any) -> CrossEncoderReranker:
    return CrossEncoderReranker(scorer=CallableScorer(by_length, name="length"), **options)


async def test_a_reranker_orders_anew_and_leaves_its_input_as_it_was() -> None:
    given = hybrid().invoke("pump seal")
    before = copy.deepcopy(given)
    found = reranker().compress_documents(given, "pump seal")
    assert given == before
    assert sorted(ids(found), key=str) == sorted(ids(given), key=str)
    assert ids(found) == sorted(ids(found), key=lambda key: -len(TEXTS[key or ""]))
    for rank, document in enumerate(found, 1):
        (old,) = [d for d in before if d.id == document.id]
        score = float(len(document.page_content))
        assert document.metadata["relevance_score"] == score
        assert document.metadata["voicevault"] == {
            **old.metadata["voicevault"],
            "rerank": {"rank": rank, "score": score},
        }
        assert document.metadata["tags"] is not old.metadata["tags"]
    assert await reranker().acompress_documents(given, "pump seal") == found
    assert reranker(top_n=2).compress_documents(given, "pump seal") == found[:2]


def test_a_reranker_loses_no_document_of_a_repeated_id_and_keeps_ties_as_they_came() -> None:
    given = [Document("bb", id="x"), Document("aa", id="x"), Document("aa"), Document("aa"), Document("ccc", id="")]
    found = reranker().compress_documents(given, "q")
    assert [document.page_content for document in found] == ["ccc", "bb", "aa", "aa", "aa"]
    assert ids(found) == ["", "x", "x", None, None]
    assert reranker().compress_documents([], "q") == []
    ties = [Document(f"{at:02d}") for at in range(12)]
    assert [document.page_content for document in reranker().compress_documents(ties, "q")] == [
        document.page_content for document in ties
    ]


async def test_a_failing_reranker_keeps_the_order_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def short(query: str, passages: Sequence[str]) -> list[float]:
        return [1.0]

    scorer = CallableScorer(short, name="short")
    given = hybrid().invoke("pump")
    found = CrossEncoderReranker(scorer=scorer).compress_documents(given, "pump")
    assert ids(found) == ids(given)
    assert [d.metadata["relevance_score"] for d in found] == [d.metadata["relevance_score"] for d in given]
    assert all("RerankerError" in d.metadata["voicevault"]["degraded"][0] for d in found)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert await CrossEncoderReranker(scorer=scorer).acompress_documents(given, "pump") == found
    assert len(CrossEncoderReranker(scorer=scorer, top_n=1).compress_documents(given, "pump")) == 1
    with pytest.raises(RerankerError):
        CrossEncoderReranker(scorer=scorer, on_error="raise").compress_documents(given, "pump")


async def test_a_page_filter_keeps_order_scores_and_what_has_no_page() -> None:
    given = [*documents(), Document("no page", id="free")]
    before = copy.deepcopy(given)
    found = PageDiversityFilter(max_chunks_per_page=1).compress_documents(given, "pump")
    assert found == [given[0], given[2], given[4], given[5]]
    assert found[0] is not given[0]
    assert given == before
    assert await PageDiversityFilter(max_chunks_per_page=1).acompress_documents(given, "pump") == found
    assert ids(PageDiversityFilter(max_chunks_per_document=3).compress_documents(given, "pump")) == [
        "flush", "seal", "hose", "free",
    ]  # fmt: skip


@pytest.mark.parametrize("options", [{"top_n": 0}, {"max_chars": 0}, {"timeout": -1}, {"topn": 1}])
def test_a_rerankers_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        reranker(**options)


async def test_compressors_show_in_traces() -> None:
    runs = Runs()
    reranker().compress_documents(documents(), "pump", callbacks=[runs])
    await PageDiversityFilter().acompress_documents(documents(), "pump", callbacks=[runs])
    assert set(runs.started) == {"CrossEncoderReranker", "PageDiversityFilter"}


def test_compressors_work_in_langchains_own_retriever() -> None:
    retrievers = pytest.importorskip("langchain_classic.retrievers")
    compressing = retrievers.ContextualCompressionRetriever(base_retriever=hybrid(), base_compressor=reranker(top_n=1))
    assert ids(compressing.invoke("pump seal")) == ["flush"]


# The package


def test_all_names_are_there_and_sorted() -> None:
    assert ours.__all__ == sorted(ours.__all__)
    assert all(hasattr(ours, name) for name in ours.__all__)
    assert issubclass(RetrieverChannel, Channel)


def test_without_langchain_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "from voicevault_retrievers.errors import MissingExtraError\n"
        "try:\n    import voicevault_retrievers.langchain\n"
        'except MissingExtraError as error:\n    assert "voicevault-retrievers[langchain]" in str(error), error\n'
        "else:\n    raise SystemExit('imported')\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
