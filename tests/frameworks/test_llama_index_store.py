"""LlamaIndex: the vector store."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.retrievers import VectorIndexAutoRetriever
from llama_index.core.schema import (
    BaseNode,
    MediaResource,
    Node,
    NodeWithScore,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreInfo, VectorStoreQueryMode

from tests.frameworks.llama_index_parts import KEPT, Answering, HashEmbedding, embedded, nodes, where
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, LockedError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, HybridVectorStore, provenance
from voicevault_retrievers.llama_index.convert import chunk_of, node_of
from voicevault_retrievers.store import KnowledgeBase, wal

QUESTION = "drain the pump before winter"
MODES = ("default", "sparse", "text_search", "hybrid", "mmr")


class Counting(HashEmbedding):
    """Keeps the texts that it has embedded."""

    seen: list[str] = []  # noqa: RUF012 - pydantic copies it

    def __init__(self) -> None:
        super().__init__()

    def _embed(self, text: str) -> list[float]:
        self.seen.append(text)
        return super()._embed(text)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return self._embed(text)


def opened(folder: Path, given: list[BaseNode] | None = None, **options: Any) -> HybridVectorStore:
    store = HybridVectorStore.open(folder / "kb", embed_model=HashEmbedding(), language="en", **options)
    store.add(embedded(nodes()) if given is None else given)
    return store


def asked(mode: str, text: str | None = QUESTION, k: int = 9, **options: Any) -> VectorStoreQuery:
    vector = None if text is None else HashEmbedding()._embed(text)
    return VectorStoreQuery(
        query_embedding=vector, query_str=text, similarity_top_k=k, mode=VectorStoreQueryMode(mode), **options
    )


def found(store: HybridVectorStore, query: VectorStoreQuery) -> dict[str, float]:
    """The ids and scores of a query, sync and async, which agree."""
    result = store.query(query)
    assert result == asyncio.run(store.aquery(query))
    assert [node.node_id for node in result.nodes or ()] == result.ids
    return dict(zip(result.ids or (), result.similarities or (), strict=True))


def vectored(vectors: dict[str, list[float]], texts: dict[str, str]) -> list[BaseNode]:
    return [
        TextNode(id_=name, text=texts.get(name, "nothing"), embedding=vector + [0.0] * 14)
        for name, vector in vectors.items()
    ]


# What is kept


@pytest.mark.parametrize("node", KEPT.values(), ids=KEPT)
def test_a_node_comes_back_as_it_was(tmp_path: Path, node: BaseNode) -> None:
    before = node.to_dict()
    opened(tmp_path, embedded([node])).close()
    store = HybridVectorStore.open(tmp_path / "kb")
    for again in (store.get_nodes()[0], (store.query(asked("hybrid", "filter")).nodes or ())[0]):
        assert type(again) is type(node)
        assert (again.to_dict(), again.hash) == (before, node.hash)
    assert node_of(chunk_of(node)).to_dict() == before


def test_what_cannot_be_kept_is_refused_whole(tmp_path: Path) -> None:
    class Own(TextNode):
        pass

    bytes_inside = Node(id_="n", text_resource=MediaResource(text="a"), image_resource=MediaResource(data=b"png"))
    store = opened(tmp_path, [])
    for node, message in (
        (Own(id_="n", text="a"), "node 'n' is a Own"),
        (bytes_inside, "node 'n' holds bytes"),
        (TextNode(id_="n", text="a", metadata={"at": object()}), "'n' cannot be kept as JSON"),
    ):
        with pytest.raises(ConfigError, match=message):
            store.add([*embedded(nodes()), *embedded([node])])
    assert len(store.client) == 0


def test_embeddings_are_brought_to_length_1_and_checked(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    store.add(vectored({"a": [0.0, 5.0], "b": [3.0, 4.0]}, {}))
    scores = found(store, VectorStoreQuery(query_embedding=[0.0, 9.0] + [0.0] * 14, similarity_top_k=9))
    assert scores == pytest.approx({"a": 1.0, "b": 4 / 5})
    for embedding, message in (
        (None, "node 'n' has no embedding: add nodes through an index"),
        ([0.5] * 3, r"node 'n' has an embedding of dimension 3; .* have 16"),
        ([0.0] * 16, "node 'n' has an embedding that is zero or not finite"),
        ([float("nan")] * 16, "node 'n' has an embedding that is zero or not finite"),
    ):
        with pytest.raises(ConfigError, match=message):
            store.add([TextNode(id_="n", text="a", embedding=embedding)])
    assert store.add([]) == []


def test_the_last_node_of_an_id_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first, second = embedded([TextNode(id_="pump", text="one"), TextNode(id_="pump", text="two")])
    assert store.add([first, second]) == ["pump", "pump"]
    assert [node.get_content() for node in store.get_nodes(["pump"])] == ["two"]
    assert "pump" not in found(store, asked("sparse", "primed"))


def test_another_embed_model_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(IncompatibleIndexError, match="made by 'llama_index/HashEmbedding/hash'"):
        HybridVectorStore.open(tmp_path / "kb", embed_model=HashEmbedding(model_name="other"))
    KnowledgeBase.create("words", root=tmp_path).close()
    with pytest.raises(ConfigError, match="'words' was created without an embedder"):
        HybridVectorStore.open("words", root=tmp_path)
    with pytest.raises(IncompatibleIndexError, match="made with"):
        HybridVectorStore.open(tmp_path / "kb", language="de")


def test_the_model_is_asked_for_its_dimension_and_no_more(tmp_path: Path) -> None:
    model = Counting()
    store = HybridVectorStore.open(tmp_path / "kb", embed_model=model)
    assert model.seen == ["dimension"]
    store.add(embedded(nodes()))
    store.close()
    again = HybridVectorStore.open(tmp_path / "kb", embed_model=model)
    assert found(again, asked("hybrid")) == found(store, asked("hybrid"))
    assert model.seen == ["dimension"]
    assert HybridRetriever([again.client]).retrieve(QUESTION)[0].node_id == "valve"
    assert model.seen == ["dimension", QUESTION]


# What is found


def test_each_mode_searches_what_it_says(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = HashEmbedding()
    cosines = {node.node_id: float(np.dot(model._embed(node.text), model._embed(QUESTION))) for node in nodes()}
    assert found(store, asked("default")) == pytest.approx({name: c for name, c in cosines.items() if c > 0})
    keywords = {
        node.node_id: node.score for node in BM25Retriever.from_nodes(nodes(), language="en").retrieve(QUESTION)
    }
    assert list(keywords) == ["valve", "pump"]
    assert found(store, asked("sparse")) == found(store, asked("text_search")) == keywords
    by_default = found(store, asked("hybrid"))
    assert (next(iter(by_default)), set(by_default)) == ("valve", {"pump", *found(store, asked("default"))})
    both = found(opened(tmp_path / "rrf", fusion=RRF()), asked("hybrid"))
    assert both["valve"] == 0.5 / 61 + 0.5 / 61
    assert set(both) == {"pump", *found(store, asked("default"))}


def test_alpha_weighs_vectors_and_0_is_0(tmp_path: Path) -> None:
    vectors = {"near": [1.0, 0.0], "named": [0.5, 0.5]}
    store = opened(tmp_path, vectored(vectors, {"named": "zebra"}), fusion=RRF())
    query = [1.0] + [0.0] * 15

    def scores(alpha: float | None) -> dict[str, float]:
        mode = VectorStoreQueryMode.HYBRID
        return found(store, VectorStoreQuery(query, 9, query_str="zebra", mode=mode, alpha=alpha))

    assert scores(0) == scores(0.0) == {"named": 1 / 61}
    assert scores(1) == {"near": 1 / 61, "named": 1 / 62}
    assert scores(0.25) == {"named": 0.75 / 61 + 0.25 / 62, "near": 0.25 / 61}
    assert scores(None) == scores(0.5) == {"named": 0.5 / 61 + 0.5 / 62, "near": 0.5 / 61}
    without_vector = VectorStoreQuery(None, 9, query_str="zebra", mode=VectorStoreQueryMode.HYBRID, alpha=0)
    assert found(store, without_vector) == {"named": 1 / 61}
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="alpha is the weight of vectors"):
            scores(alpha)


def test_mmr_takes_next_what_is_near_and_unlike_what_was_taken(tmp_path: Path) -> None:
    vectors = {"best": [1.0, 0.05], "twin": [1.0, 0.06], "other": [0.5, -0.5], "far": [-1.0, 0.0]}
    store = opened(tmp_path, vectored(vectors, {}))
    query = VectorStoreQuery([1.0] + [0.0] * 15, similarity_top_k=2, mode=VectorStoreQueryMode.MMR)
    assert list(found(store, query)) == ["best", "other"]
    assert list(found(store, replace(query, mmr_threshold=1.0))) == ["best", "twin"]
    assert store.query(query, mmr_threshold=1.0) == asyncio.run(store.aquery(query, mmr_threshold=1.0))
    assert store.query(query, mmr_threshold=1.0).ids == ["best", "twin"]
    assert list(found(store, replace(query, similarity_top_k=9))) == ["best", "other", "twin"]
    assert list(found(store, replace(query, node_ids=["twin", "far", "other"]))) == ["twin", "other"]
    own = SimpleVectorStore()
    own.add(vectored({name: vector for name, vector in vectors.items() if name != "far"}, {}))
    for threshold in (0.3, 0.5, 1.0):
        assert own.query(query, mmr_threshold=threshold).ids == store.query(query, mmr_threshold=threshold).ids
    with pytest.raises(ConfigError, match="mmr_threshold is a number from 0 to 1"):
        store.query(query, mmr_threshold=1.5)
    with pytest.raises(ConfigError, match="mode 'mmr' searches by vector"):
        store.query(VectorStoreQuery(query_str="pump", mode=VectorStoreQueryMode.MMR))


async def test_an_index_asks_for_mmr(tmp_path: Path) -> None:
    index = VectorStoreIndex.from_vector_store(opened(tmp_path), HashEmbedding())
    options: dict[str, Any] = {"vector_store_query_mode": "mmr", "similarity_top_k": 2}
    retriever = index.as_retriever(**options, vector_store_kwargs={"mmr_threshold": 1.0})
    ids = [node.node_id for node in retriever.retrieve(QUESTION)]
    assert ids == [node.node_id for node in index.as_retriever(similarity_top_k=2).retrieve(QUESTION)]
    assert ids == [node.node_id for node in await retriever.aretrieve(QUESTION)]


def test_mmr_needs_the_vectors(tmp_path: Path) -> None:
    store = HybridVectorStore.open(tmp_path / "kb", dense=SimpleVectorStore(), language="en")
    store.add(embedded(nodes()))
    with pytest.raises(ConfigError, match="compares the nodes' vectors, which are in dense"):
        store.query(asked("mmr"))


def test_candidates_are_not_limited_to_k(tmp_path: Path) -> None:
    """Neither side has `both` among its first two; together they put it first."""
    vectors = {"a": [1.0, 0.0], "b": [0.9, 0.1], "both": [0.8, 0.3], "c": [0.0, 1.0], "d": [0.0, 1.0]}
    texts = {"c": "zebra zebra", "d": "zebra zebra", "both": "a zebra among other animals"}
    store = opened(tmp_path, vectored(vectors, texts), fusion=RRF())
    query = VectorStoreQuery([1.0] + [0.0] * 15, 1, query_str="zebra", mode=VectorStoreQueryMode.HYBRID)
    assert found(store, query) == {"both": 0.5 / 63 + 0.5 / 63}
    assert list(store.query(VectorStoreQuery(query.query_embedding, 2)).ids or ()) == ["a", "b"]


def test_counts(tmp_path: Path) -> None:
    store = opened(tmp_path)
    text = "water pump"
    assert len(found(store, asked("sparse", text))) == 4
    assert len(found(store, asked("sparse", text, k=1))) == 1
    assert len(found(store, asked("sparse", text, k=1, sparse_top_k=3))) == 3
    assert len(found(store, asked("hybrid", text, k=1, hybrid_top_k=3))) == 3
    assert len(found(store, asked("hybrid", text, k=2, sparse_top_k=50))) == 2
    assert len(found(store, asked("hybrid", text, alpha=0.0, sparse_top_k=2))) == 2
    by_words = [
        NodeWithScore(node=node) for node in store.query(asked("hybrid", text, k=4, sparse_top_k=1)).nodes or ()
    ]
    assert sum("bm25" in (provenance(node) or {})["channels"] for node in by_words) == 1
    for mode in MODES:
        assert found(store, asked(mode, text, k=0)) == {}
        with pytest.raises(ConfigError, match="k is a whole number"):
            store.query(asked(mode, text, k=-1))


def test_nothing_is_made_up(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert found(store, asked("sparse", "zebra")) == {}
    for mode in MODES:
        assert found(store, VectorStoreQuery(query_str=" ", mode=VectorStoreQueryMode(mode), similarity_top_k=9)) == {}
    store.clear()
    for mode in MODES:
        assert found(store, asked(mode)) == {}


def test_no_query_stays_for_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for mode in MODES:
        first = found(store, asked(mode, "alarm sounds", filters=where("key", 3)))
        assert list(first) == ["alarm"]
        fresh = HybridVectorStore.open(tmp_path / "kb")
        assert found(store, asked(mode)) == found(fresh, asked(mode)) != first
    index = VectorStoreIndex.from_vector_store(store, HashEmbedding())
    retriever = index.as_retriever(vector_store_query_mode="hybrid", similarity_top_k=1)
    assert [retriever.retrieve(text)[0].node_id for text in ("alarm sounds", QUESTION)] == ["alarm", "valve"]


def test_a_query_that_says_too_little_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    vector = HashEmbedding()._embed(QUESTION)
    hybrid = VectorStoreQueryMode.HYBRID
    for query, message in (
        (
            VectorStoreQuery(mode=VectorStoreQueryMode.SVM),
            "unknown vector_store_query_mode 'svm'. Known: default, hybrid, mmr",
        ),
        (VectorStoreQuery(mode=VectorStoreQueryMode.SEMANTIC_HYBRID), "unknown vector_store_query_mode"),
        (VectorStoreQuery(query_str="pump"), "mode 'default' searches by vector: give query_embedding"),
        (VectorStoreQuery(query_str="pump", mode=hybrid), "give query_embedding"),
        (VectorStoreQuery(), "give query_embedding"),
        (VectorStoreQuery(vector, mode=VectorStoreQueryMode.SPARSE), "give query_str"),
        (VectorStoreQuery(vector, mode=hybrid), "give query_str"),
        (VectorStoreQuery(vector, query_str="pump", mode=hybrid, sparse_top_k=-1), "sparse_top_k is a whole number"),
        (VectorStoreQuery(vector[:3], query_str="pump"), "dimension 3, the index 16"),
    ):
        with pytest.raises(ConfigError, match=message):
            store.query(query)
    with pytest.raises(ConfigError, match="takes no 'alhpa'"):
        store.query(asked("hybrid"), alhpa=1)


# Filters


FILTERS = {
    "==": (where("page_label", "2"), "filter alarm"),
    "!=": (where("page_label", "2", "!="), "pump valve"),
    ">": (where("key", 1, ">"), "filter alarm"),
    ">=": (where("key", 1, ">="), "valve filter alarm"),
    "<": (where("key", 1, "<"), "pump"),
    "<=": (where("key", 1, "<="), "pump valve"),
    "in": (where("key", [0, 3], "in"), "pump alarm"),
    "nin": (where("key", [0, 3], "nin"), "valve filter"),
    "any": (where("tags", ["pump", "alarm"], "any"), "pump alarm"),
    "all": (where("tags", ["pump"], "all"), "pump"),
    "contains": (where("tags", "valve", "contains"), "valve"),
    "text_match": (where("file_name", "manual", "text_match"), "pump valve filter alarm"),
    "text_match_insensitive": (where("file_name", "MAN", "text_match_insensitive"), "pump valve filter alarm"),
    "is_empty": (where("owner", None, "is_empty"), "pump valve filter alarm"),
    "nested": (
        MetadataFilters(
            condition=FilterCondition.OR,
            filters=[
                MetadataFilters(filters=[*where("key", 3).filters, *where("page_label", "2").filters]),
                MetadataFilters(filters=where("key", 1, ">=").filters, condition=FilterCondition.NOT),
            ],
        ),
        "pump alarm",
    ),
}


@pytest.mark.parametrize(("filters", "passing"), list(FILTERS.values()), ids=list(FILTERS))
def test_filters_hold_in_every_mode(tmp_path: Path, filters: MetadataFilters, passing: str) -> None:
    store = opened(tmp_path)
    assert set(FILTERS) == {*(operator.value for operator in FilterOperator), "nested"}
    names = set(passing.split())
    assert {node.node_id for node in store.get_nodes(filters=filters)} == names
    text = "the water pump"
    for mode in MODES:
        every = found(store, asked(mode, text))
        assert set(found(store, asked(mode, text, filters=filters))) == names & set(every)
    store.delete_nodes(filters=filters)
    assert {node.node_id for node in store.get_nodes()} == {node.node_id for node in nodes()} - names


def test_documents_and_nodes_narrow_before_ranking(tmp_path: Path) -> None:
    more = [TextNode(id_=f"other{at}", text=QUESTION) for at in range(300)]
    store = opened(tmp_path, embedded([*nodes(), *more]))
    for mode in MODES:
        assert list(found(store, asked(mode, k=1, doc_ids=["manual"]))) == ["valve"]
        assert list(found(store, asked(mode, k=1, doc_ids=["other7", "none"]))) == ["other7"]
        assert found(store, asked(mode, doc_ids=[])) == {}
        whole = found(store, asked(mode, doc_ids=["manual"]))
        some = found(store, asked(mode, node_ids=["valve", "pump", "gone"]))
        assert set(some) == {"valve", "pump"}
        if mode != "hybrid":
            assert some == {name: score for name, score in whole.items() if name in some}
        assert set(found(store, asked(mode, node_ids=["valve", "other1"], doc_ids=["manual"]))) == {"valve"}
        assert set(found(store, asked(mode, node_ids=["valve", "pump"], filters=where("key", 0)))) == {"pump"}
        assert len(found(store, asked(mode, node_ids=[]))) == 9


# What changes


def test_nodes_are_got_and_deleted_by_ids_and_filters(tmp_path: Path) -> None:
    store = opened(tmp_path)

    def ids(*chosen: Any) -> list[str]:
        return [node.node_id for node in store.get_nodes(*chosen)]

    assert ids() == ["alarm", "filter", "pump", "valve"]
    assert ids(["valve", "gone", "alarm"]) == ["valve", "alarm"]
    assert ids(["valve", "alarm"], where("key", 3)) == ["alarm"]
    assert ids([]) == []
    store.delete_nodes([])
    store.delete_nodes(["valve", "alarm", "gone"], where("key", 3))
    assert ids() == ["filter", "pump", "valve"]
    store.delete_nodes(["pump"])
    assert ids() == ["filter", "valve"]
    for nothing in (None, MetadataFilters(filters=[])):
        with pytest.raises(ConfigError, match=r"say which nodes to delete.*clear\(\) deletes all"):
            store.delete_nodes(filters=nothing)
    nothing, third = MetadataFilters(filters=[]), where("key", 3).filters[0]
    for group in ([nothing], [third, nothing]):
        with pytest.raises(ConfigError, match="a part that says nothing"):
            store.delete_nodes(filters=MetadataFilters(filters=group, condition=FilterCondition.OR))
    assert ids() == ["filter", "valve"]
    store.clear()
    assert ids() == []


def test_a_document_goes_in_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = TextNode(id_="alone", text="a pump of no document")
    store = opened(tmp_path, embedded([*nodes(), alone]))
    commits: list[int] = []
    append = wal.append

    def counted(path: Path, end: int, content: bytes) -> int:
        commits.append(1)
        return append(path, end, content)

    monkeypatch.setattr(wal, "append", counted)
    store.delete("nobody")
    store.delete("manual")
    assert commits == [1]
    assert list(found(store, asked("sparse"))) == ["alone"]
    store.delete("alone")
    assert len(store.client) == 0


def test_returned_nodes_are_the_callers_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for node in [*store.get_nodes(), *(store.query(asked("hybrid")).nodes or ())]:
        node.metadata["tags"].append("written by the caller")
        node.relationships.clear()
    assert [node.metadata["tags"][0] for node in store.get_nodes(filters=where("tags", "valve", "contains"))] == [
        "valve"
    ]
    assert all(node.ref_doc_id == "manual" and len(node.metadata["tags"]) == 2 for node in store.get_nodes())


async def test_the_async_twins_leave_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, set[threading.Thread]] = {}

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            ran.setdefault(name, set()).add(threading.current_thread())
            return function(*args, **kwargs)

        return method

    store = opened(tmp_path, [])
    expected = opened(tmp_path / "other").query(asked("hybrid")).ids
    for name in ("add", "delete", "get", "clear", "view"):
        monkeypatch.setattr(KnowledgeBase, name, recorded(name, getattr(KnowledgeBase, name)))
    assert await store.async_add(embedded(nodes())) == [node.node_id for node in nodes()]
    assert (await store.aquery(asked("hybrid"))).ids == expected
    await store.adelete_nodes(["alarm"], where("key", 3))
    assert [node.node_id for node in await store.aget_nodes(["pump", "alarm"])] == ["pump"]
    await store.adelete("manual")
    assert len(store.client) == 0
    await store.async_add(embedded(nodes()))
    await store.aclear()
    assert await store.aget_nodes() == []
    assert ran.keys() == {"add", "delete", "get", "clear", "view"}
    assert threading.main_thread() not in set().union(*ran.values())
    with pytest.raises(ConfigError, match="takes no 'k'"):
        await store.adelete("manual", k=1)


def test_the_commits_of_others_are_seen_after_a_reload(tmp_path: Path) -> None:
    store = opened(tmp_path)
    reader = HybridVectorStore.open(tmp_path / "kb")
    store.add(embedded([TextNode(id_="new", text="a zebra")]))
    assert list(found(store, asked("sparse", "zebra"))) == ["new"]
    assert found(reader, asked("sparse", "zebra")) == {}
    assert reader.reload()
    assert list(found(reader, asked("sparse", "zebra"))) == ["new"]
    assert not reader.reload()
    store.close()
    reader.delete_nodes(["new"])
    assert store.reload()
    assert found(store, asked("sparse", "zebra")) == {}


# Indexes and pipelines


def pipeline(store: HybridVectorStore, model: HashEmbedding, strategy: DocstoreStrategy) -> IngestionPipeline:
    splitter = SentenceSplitter(chunk_size=10, chunk_overlap=0, tokenizer=str.split, include_metadata=False)
    return IngestionPipeline(
        transformations=[splitter, model],
        docstore=SimpleDocumentStore(),
        vector_store=store,
        docstore_strategy=strategy,
        disable_cache=True,
    )


def documents(**changed: str) -> list[Document]:
    texts = {
        "manual": "The pump is primed before the first start. Close the valve and drain the pump before winter.",
        "guide": "The filter is rinsed every month. An alarm sounds when the level is too high.",
        "note": "A zebra was seen.",
    }
    return [Document(id_=name, text=text) for name, text in {**texts, **changed}.items() if text]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("strategy", list(DocstoreStrategy))
def test_pipelines_keep_the_store_up_to_date(tmp_path: Path, strategy: DocstoreStrategy, is_async: bool) -> None:
    store, model = opened(tmp_path, []), Counting()
    ingestion = pipeline(store, model, strategy)

    def run(given: list[Document]) -> list[str]:
        """The texts that a run embeds."""
        model.seen.clear()
        asyncio.run(ingestion.arun(documents=given)) if is_async else ingestion.run(documents=given)
        return list(model.seen)

    def held() -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {}
        for node in store.get_nodes():
            texts.setdefault(node.ref_doc_id or "", []).append(node.get_content())
        return texts

    assert len(run(documents())) == len(store.client) == 5
    assert run(documents()) == []
    assert {name: len(texts) for name, texts in held().items()} == {"manual": 2, "guide": 2, "note": 1}
    assert run(documents(note="An okapi was seen.", manual="")) == ["An okapi was seen."]
    assert list(found(store, asked("sparse", "okapi"))) == list(found(store, asked("hybrid", "okapi", alpha=0.0)))
    if strategy == DocstoreStrategy.DUPLICATES_ONLY:
        assert sorted(held()["note"]) == ["A zebra was seen.", "An okapi was seen."]
    else:
        assert held()["note"] == ["An okapi was seen."]
        assert found(store, asked("sparse", "zebra")) == {}
    assert ("manual" in held()) == (strategy != DocstoreStrategy.UPSERTS_AND_DELETE)


def test_documents_that_are_not_split_are_replaced_and_deleted_too(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    ingestion = pipeline(store, HashEmbedding(), DocstoreStrategy.UPSERTS_AND_DELETE)
    ingestion.transformations = ingestion.transformations[1:]
    ingestion.run(documents=documents())
    ingestion.run(documents=documents(manual="", note="An okapi was seen."))
    assert {node.node_id: node.get_content()[:8] for node in store.get_nodes()} == {
        "guide": "The filt",
        "note": "An okapi",
    }


async def test_an_index_over_the_store(tmp_path: Path) -> None:
    store, model = opened(tmp_path, [], fusion=RRF()), Counting()
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents(), storage_context=context, embed_model=model)
    assert len(store.client) == 3
    retriever = index.as_retriever(
        vector_store_query_mode="hybrid", alpha=0.25, sparse_top_k=5, similarity_top_k=2, filters=None
    )
    model.seen.clear()
    best, *_ = again = retriever.retrieve(QUESTION)
    assert model.seen == [QUESTION]
    assert again == await retriever.aretrieve(QUESTION)
    assert (best.node.ref_doc_id, best.score) == ("manual", 0.75 / 61 + 0.25 / 61)
    assert (provenance(best) or {})["channels"]["bm25"]["matched_terms"] == ["drain", "pump", "before", "winter"]
    text_search = index.as_retriever(vector_store_query_mode="text_search")
    model.seen.clear()
    assert [node.node.ref_doc_id for node in text_search.retrieve("zebra")] == ["note"]
    assert model.seen == []
    index.insert(Document(id_="new", text="A gnu was seen."))
    assert index.refresh_ref_docs(documents(note="An okapi was seen.")) == [False, False, True]
    index.delete_ref_doc("new", delete_from_docstore=True)
    await index.adelete_ref_doc("guide")
    assert sorted(node.get_content()[:8] for node in store.get_nodes()) == ["An okapi", "The pump"]
    reopened = VectorStoreIndex.from_vector_store(HybridVectorStore.open(tmp_path / "kb"), embed_model=model)
    assert reopened.as_retriever(vector_store_query_mode="sparse").retrieve("okapi")[0].node.ref_doc_id == "note"


def test_the_store_feeds_the_other_classes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    keywords = BM25Retriever.from_vector_store(store, language="en").retrieve(QUESTION)
    assert {node.node_id: node.score for node in keywords} == found(store, asked("sparse"))
    index = VectorStoreIndex.from_vector_store(store, HashEmbedding())
    assert HybridRetriever(channels={"both": index}).retrieve(QUESTION)[0].node_id == "valve"


# Elsewhere


def test_a_storage_context_persists_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path)
    StorageContext.from_defaults(vector_store=store).persist(tmp_path / "storage")
    again = HybridVectorStore.from_persist_dir(str(tmp_path / "storage"))
    context = StorageContext.from_defaults(persist_dir=str(tmp_path / "storage"), vector_store=again)
    index = VectorStoreIndex([], storage_context=context, embed_model=HashEmbedding())
    assert index.as_retriever(vector_store_query_mode="hybrid").retrieve(QUESTION)[0].node_id == "valve"


def test_a_copy_taken_while_others_write_is_one_commit(tmp_path: Path) -> None:
    store = opened(tmp_path)
    more = [TextNode(id_=f"n{at:04d}", text="zebra", embedding=[1.0] * 16) for at in range(5000)]

    class Busy(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
        """Somebody fills the log and makes a segment of it, after the first file was copied."""

        cachable = False
        done = False

        def put_file(self, *args: Any, **kwargs: Any) -> None:
            super().put_file(*args, **kwargs)
            if not self.done:
                self.done = True
                store.add(more)

    fs = Busy()
    store.persist(str(tmp_path / "copies" / "one"), fs)
    assert fs.done
    assert len(HybridVectorStore.from_persist_path(tmp_path / "copies" / "one").client) == 5004
    assert KnowledgeBase.open(tmp_path / "copies" / "one").verify() == []


def test_what_is_no_copy_is_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file.json").write_text("{}")
    for name in ("mine", "file.json"):
        with pytest.raises(ConfigError, match="is there already and is no knowledge base"):
            store.persist(str(tmp_path / name))
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    store.persist(tmp_path / "kb")
    assert len(HybridVectorStore.open(tmp_path / "kb").client) == 4
    for path in (str(tmp_path / "none"), "memory://none"):
        with pytest.raises(ConfigError, match="holds no persisted HybridVectorStore"):
            HybridVectorStore.from_persist_path(path)


def test_a_copy_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    store = opened(tmp_path)

    class Full(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
        cachable = False

        def put_file(self, *args: Any, **kwargs: Any) -> None:
            raise OSError("no space left")

    store.persist(str(tmp_path / "copies" / "one"))
    with pytest.raises(OSError, match="no space left"):
        store.persist(str(tmp_path / "copies" / "one"), Full())
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["one"]
    assert len(HybridVectorStore.from_persist_path(tmp_path / "copies" / "one").client) == 4


def test_is_a_vector_store_with_async_twins_of_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert BasePydanticVectorStore in type(store).__mro__
    for name in ("async_add", "adelete", "adelete_nodes", "aget_nodes", "aclear", "aquery"):
        assert getattr(HybridVectorStore, name) is not getattr(BasePydanticVectorStore, name)
    assert (store.class_name(), store.stores_text, store.is_embedding_query) == ("HybridVectorStore", True, True)
    assert isinstance(store.client, KnowledgeBase)
    assert repr(store) == str(store) == f"HybridVectorStore({store.client!r})"


# Copies


def test_a_pickled_or_deep_copy_opens_the_base_again(tmp_path: Path) -> None:
    store = opened(tmp_path, fusion=RRF())
    scores = found(store, asked("hybrid"))
    for again in (pickle.loads(pickle.dumps(store)), copy.deepcopy(store)):
        assert type(again) is HybridVectorStore
        assert again.client is not store.client
        assert found(again, asked("hybrid")) == scores
        assert again.get_nodes() == store.get_nodes()
        with pytest.raises(LockedError):
            again.clear()


def test_a_store_over_another_is_not_pickled_and_a_deep_copy_is_over_the_same(tmp_path: Path) -> None:
    dense = SimpleVectorStore()
    store = HybridVectorStore.open(tmp_path / "kb", dense=dense)
    store.add(embedded(nodes()))
    with pytest.raises(ConfigError, match=r"open it again, HybridVectorStore\.open\(Path\(.*dense="):
        pickle.dumps(store)
    again = copy.deepcopy(store)
    assert again.dense is dense
    assert found(again, asked("hybrid")) == found(store, asked("hybrid"))


def test_a_store_is_read_back_from_its_dict_and_json(tmp_path: Path) -> None:
    plain = opened(tmp_path)
    for again in (HybridVectorStore.from_dict(plain.to_dict()), HybridVectorStore.from_json(plain.to_json())):
        assert again.client.path == plain.client.path
        assert found(again, asked("hybrid")) == found(plain, asked("hybrid"))
    plain.close()
    dense = SimpleVectorStore()
    store = HybridVectorStore.open(tmp_path / "other", dense=dense, fusion=RRF())
    store.add(embedded(nodes()))
    for given, missing in (({"dense": dense}, "fusion=RRF"), ({"fusion": RRF()}, "dense=SimpleVectorStore")):
        with pytest.raises(ConfigError, match=rf"had {missing}.* give it again"):
            HybridVectorStore.from_dict(store.to_dict(), **given)
    again = HybridVectorStore.from_json(store.to_json(), dense=dense, fusion=RRF())
    assert found(again, asked("hybrid")) == found(store, asked("hybrid"))
    for wrong, message in (
        ({"class_name": "HybridVectorStore"}, "no path of a knowledge base"),
        ({"path": str(tmp_path / "gone")}, "there is no knowledge base 'gone'"),
    ):
        with pytest.raises(ConfigError, match=message):
            HybridVectorStore.from_dict(wrong)
    assert not (tmp_path / "gone").exists()


def test_a_path_that_is_given_as_a_name_is_told_how_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"a folder is given as a Path: Path\('{tmp_path}/kb'\)"):
        HybridVectorStore.open(f"{tmp_path}/kb", embed_model=HashEmbedding())
    with pytest.raises(ConfigError, match=r"Path\('kbs\\\\manual'\)"):
        HybridVectorStore.open("kbs\\manual", root=tmp_path, embed_model=HashEmbedding())
    with pytest.raises(ConfigError) as told:
        HybridVectorStore.open("-kb", root=tmp_path, embed_model=HashEmbedding())
    assert "Path:" not in str(told.value)


@pytest.mark.parametrize("text", ["", " \n", None])
def test_a_query_of_filters_alone_finds_what_passes_them(tmp_path: Path, text: str | None) -> None:
    store = opened(tmp_path)
    first, second = sorted(node.node_id for node in store.get_nodes(filters=where("page_label", "1")))
    for mode in MODES:
        query = VectorStoreQuery(
            query_str=text,
            similarity_top_k=9,
            mode=VectorStoreQueryMode(mode),
            filters=where("page_label", "1"),
        )
        for found in (store.query(query), asyncio.run(store.aquery(query))):
            assert (found.ids, found.similarities) == ([first, second], None)
        assert store.query(replace(query, similarity_top_k=1)).ids == [first]
        assert store.query(replace(query, node_ids=[second, "nosuch"])).ids == [second]
        assert store.query(replace(query, filters=where("page_label", "99"))).ids == []
    store.close()


def test_a_retriever_that_makes_its_filters_itself_may_leave_the_query_empty(tmp_path: Path) -> None:
    store = opened(tmp_path)
    told = Answering(
        answer='{"query": "", "filters": [{"key": "page_label", "value": "1", "operator": "=="}], "top_k": 9}'
    )
    index = VectorStoreIndex.from_vector_store(store, embed_model=HashEmbedding())
    info = VectorStoreInfo(content_info="manuals", metadata_info=[])
    retriever = VectorIndexAutoRetriever(index, vector_store_info=info, llm=told, max_top_k=9)
    found = retriever.retrieve("what is on the first page?")
    assert {one.node_id for one in found} == {n.node_id for n in store.get_nodes(filters=where("page_label", "1"))}
    assert {one.score for one in found} == {None}
    store.close()
