"""The LangChain classes: what they give, what they leave alone, and how they sit in a chain."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import AsyncChild, Child, Runs, by_length, documents, hybrid, ids
from tests.helpers import FailingChannel, HashEmbedder, ListChannel
from voicevault_retrievers.core.explanation import provenance
from voicevault_retrievers.core.types import Chunk, Hit, Vote
from voicevault_retrievers.errors import (
    ConfigError,
    SearchNotAvailableError,
)
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.langchain import (
    BM25Retriever,
    HybridRetriever,
    VectorRetriever,
    chunk_of,
    document_of,
)
from voicevault_retrievers.pipeline.options import Fusion, Rerank
from voicevault_retrievers.rerank import CallableScorer
from voicevault_retrievers.store import KnowledgeBase

# What a call can say


@pytest.mark.parametrize("k", [-1, True, "2"])
def test_a_k_that_is_no_count_is_refused(k: Any) -> None:
    with pytest.raises(ConfigError):
        hybrid().invoke("pump", k=k)


@pytest.mark.parametrize("k", [-1, "many"])
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


async def test_access_rights_are_for_a_call_to_narrow_and_not_to_widen() -> None:
    retriever = hybrid(require={"page": 0})
    assert set(ids(retriever.invoke("pump", where={}))) == {"flush", "seal"}
    assert set(ids(retriever.invoke("pump", require={"page": {"$gte": 0}}))) == {"flush", "seal"}
    assert await retriever.ainvoke("pump", require={"page": 1}) == retriever.invoke("pump", require={}) == []
    assert ids(retriever.invoke("pump", require={"tags": {"$exists": True}})) == ids(retriever.invoke("pump"))


def test_a_malformed_filter_is_the_callers_error_and_not_a_degraded_search() -> None:
    with pytest.raises(ConfigError, match="gte"):
        hybrid().invoke("pump", where={"page": {"$gt3": 1}})
    with pytest.raises(ConfigError, match="gte"):
        hybrid(require={"page": {"$gt3": 1}})


def test_weights_of_a_call_override_by_name() -> None:
    found = hybrid(fusion={"method": "rrf", "weights": {"dense": 0.5}}).invoke("pump seal", weights={"bm25": 2.0})
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
        {"channels": {"list": ListChannel([])}, "fusion": {"weights": {"lisst": 1.0}}},
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
    retriever.fusion = Fusion("rrf", weights={"dense": 0.0})
    assert {d.metadata["voicevault"]["found_by"] for d in retriever.invoke("pump")} == {"keyword"}
    retriever.k = 3
    assert len(retriever.invoke("pump")) == 3
    other = retriever.model_copy(update={"fusion": Fusion(weights={"bm25": 0.0})})
    assert {d.metadata["voicevault"]["found_by"] for d in other.invoke("pump")} == {"semantic"}


# What a document says


def test_the_parts_add_up_to_the_score() -> None:
    for document in hybrid(expansion=True).invoke("what does the pump seal do?"):
        told = document.metadata["voicevault"]
        channels = [*told["channels"].values(), *told.get("also_scored", {}).values()]
        parts = math.fsum(channel["contribution"] for channel in channels)
        assert parts == told["fused"] == document.metadata["relevance_score"]


def test_a_document_says_how_it_was_found() -> None:
    first = hybrid(fusion="rrf").invoke("rated for hot water")[0]
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
    assert runs.told("voicevault_degraded") == [({"degraded": messages}, own)]
    assert "the server is down" in caplog.text
    runs = Runs()
    assert await failing().ainvoke("pump", {"callbacks": [runs]}) == found
    assert [data for data, _ in runs.told("voicevault_degraded")] == [{"degraded": messages}]
    assert failing().search("pump").degraded
    assert "degraded" not in hybrid().invoke("pump")[0].metadata["voicevault"]


async def test_on_error_raise_raises_the_channels_error() -> None:
    with pytest.raises(SearchNotAvailableError, match="down"):
        failing(fusion=Fusion(on_error="raise")).invoke("pump")
    with pytest.raises(SearchNotAvailableError, match="down"):
        await failing(fusion=Fusion(on_error="raise")).ainvoke("pump")


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
    channel, parent, _ = runs.started["channel child"]
    assert (parent, runs.started[kind.__name__][1]) == (own, channel)
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
    for retriever in (hybrid(expansion=True, rerank=Rerank(max_chunks_per_page=1)), parent_of(child)):
        assert retriever.invoke(query) == await retriever.ainvoke(query)
        assert retriever.search(query).ranking == (await retriever.asearch(query)).ranking


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
    return {"embeddings": HashEmbedder()}


async def test_a_knowledge_base_is_searched_as_its_documents_are(tmp_path: Path) -> None:
    retriever = HybridRetriever(kb_names=[tmp_path / "manual"], **base(tmp_path))
    found = await retriever.ainvoke("pump seal")
    assert found == retriever.invoke("pump seal")
    told = [(document.id, document.page_content, document.metadata["relevance_score"]) for document in found]
    in_memory = hybrid(fusion="adaptive_sum").invoke("pump seal")  # the default
    assert told == [(d.id, d.page_content, d.metadata["relevance_score"]) for d in in_memory]
    assert {document.metadata["voicevault"]["kb"] for document in found} == {"manual"}


def test_a_knowledge_base_that_is_missing_is_named(tmp_path: Path) -> None:
    options = base(tmp_path)
    found = HybridRetriever(kb_names=[tmp_path / "manual", tmp_path / "gone"], **options).invoke("pump")
    assert "gone" in found[0].metadata["voicevault"]["degraded"][0]
    joined = HybridRetriever(
        channels={"bases": HybridRetriever(kb_names=[tmp_path / "manual", tmp_path / "gone"], **options)}
    ).invoke("pump")
    assert "gone" in joined[0].metadata["voicevault"]["degraded"][0]


def test_a_preset_says_how_to_search(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text("version: 1\nk: 1\nchannels: {bm25: {}, dense: {}}\nfusion: {method: rrf, k: 10}\n")
    by_base = HybridRetriever(kb_names=[tmp_path / "manual"], preset=preset, **base(tmp_path))
    by_channels = HybridRetriever(channels=hybrid().channels, preset=preset)
    for retriever in (by_base, by_channels):
        (found,) = retriever.invoke("rated for hot water")
        assert found.metadata["voicevault"]["fused"] == 1 / 11 + 1 / 11
    assert len(by_base.invoke("pump", k=2)) == len(HybridRetriever(**dict(by_channels) | {"k": 2}).invoke("pump")) == 2
    (over,) = HybridRetriever(channels=hybrid().channels, preset=preset, fusion=RRF(20)).invoke("rated for hot water")
    assert over.metadata["voicevault"]["fused"] == 1 / 21 + 1 / 21
    heavy = HybridRetriever(channels=hybrid().channels, preset=preset, fusion=Fusion(weights={"bm25": 2.0}))
    assert heavy.invoke("rated for hot water")[0].metadata["voicevault"]["fused"] == 2 / 11 + 1 / 11


def test_what_a_preset_says_stays_where_another_field_is_configured(tmp_path: Path) -> None:
    for name, k in (("one", 7), ("two", 2)):
        text = f"version: 1\nk: {k}\ntimeout: 30\non_error: raise\nchannels: {{bm25: {{}}, dense: {{}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    fields = {name: ConfigurableField(name) for name in ("where", "preset", "fusion", "k")}
    configured = HybridRetriever(channels=hybrid().channels, preset=tmp_path / "one.yaml").configurable_fields(**fields)

    def made(**options: Any) -> HybridRetriever:
        retriever, _ = configured.prepare({"configurable": options})  # type: ignore[attr-defined]
        return retriever  # type: ignore[no-any-return]

    for retriever, k in ((made(), 7), (made(where={"page": 1}), 7), (made(preset=tmp_path / "two.yaml"), 2)):
        pipeline = retriever.pipeline
        assert (pipeline.k, pipeline.timeout, pipeline.on_error) == (k, 30, "raise")
    assert len(made(preset=tmp_path / "two.yaml").invoke("pump")) == 2
    assert made(k=5).k == 5
    assert made(fusion=RRF(k=1)).invoke("pump")


ARRAYS = [np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([math.nan, float("nan")], 1),
        ([np.arange(3), np.arange(3)], 1),
        (ARRAYS, 2),
        ([{(1, 2): "x"}, {(1, 2): "x"}], 1),
        ([1, np.int64(1), 2], 2),
    ],
)
def test_equal_documents_are_indexed_once_whatever_their_metadata_hold(values: list[Any], count: int) -> None:
    retriever = BM25Retriever.from_documents([Document("pump", metadata={"v": value}) for value in values])
    assert len(retriever.invoke("pump")) == count


def test_foreign_compressors_take_documents_with_arrays() -> None:
    retriever = BM25Retriever.from_documents([Document("pump", id="a", metadata={"box": np.arange(4)})])
    (found,) = (retriever >> Unchanged()).invoke("pump")
    assert (found.id, found.metadata["box"].tolist()) == ("a", [0, 1, 2, 3])


class Unchanged(BaseDocumentCompressor):
    """Returns the documents as they are."""

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        return list(documents)


@pytest.mark.parametrize("wrong", [[5], ["a", None]])
def test_an_id_that_is_no_string_deletes_nothing_and_is_refused(wrong: Any) -> None:
    retriever = BM25Retriever.from_texts(["pump"], ids=["a"])
    both = HybridRetriever.from_documents([Document("pump", id="a")], DeterministicFakeEmbedding(size=8))
    for one in (retriever, both):
        with pytest.raises(ConfigError, match="ids are strings, not"):
            one.delete(wrong)
        assert ids(one.invoke("pump")) == ["a"]


def test_metadata_that_cannot_be_copied_are_refused_with_the_documents_name() -> None:
    with pytest.raises(ConfigError, match="the metadata of document 'a' hold what cannot be copied"):
        BM25Retriever.from_documents([Document("pump", id="a", metadata={"lock": threading.Lock()})])
