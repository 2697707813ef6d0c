"""HybridVectorStore over real vector stores: modes, filters, changes, indexes and pipelines, each sync and async."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from tests.engines.awkward import FILTERS, VALUES, WHERE, metadata
from tests.engines.llama_index_stores import PUSHED, Counted, Maker, kind, make, number
from tests.frameworks.llama_index_parts import TEXTS, HashEmbedding
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.llama_index import BM25Retriever, HybridVectorStore, provenance

__all__ = ["kind", "make"]

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")

MODEL = HashEmbedding()
QUESTION = "drain the pump before winter"
MODES = ("default", "sparse", "text_search", "hybrid")
BASES = itertools.count()


def over(make: Maker, folder: Path, nodes: Sequence[BaseNode] = (), **options: Any) -> HybridVectorStore:
    store = HybridVectorStore.open(folder / f"kb{next(BASES)}", dense=make(), language="en", **options)
    store.add(embedded(nodes))
    return store


def embedded(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    return [node.model_copy(update={"embedding": MODEL.get_text_embedding(node.get_content())}) for node in nodes]


def some() -> list[TextNode]:
    """Four chunks of a manual."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="manual")}
    return [
        TextNode(
            id_=number(name), text=text, relationships=source,
            metadata={"name": name, "tags": [name, {"n": at}], "key": at},
        )
        for at, (name, text) in enumerate(TEXTS.items())
    ]  # fmt: skip


def asked(mode: str, text: str = QUESTION, k: int = 9, **options: Any) -> VectorStoreQuery:
    vector = MODEL.get_query_embedding(text)
    return VectorStoreQuery(vector, k, query_str=text, mode=VectorStoreQueryMode(mode), **options)


def found(store: HybridVectorStore, query: VectorStoreQuery) -> dict[str, float]:
    """The names and scores of a query, sync and async, which agree."""
    result = store.query(query)
    assert result == asyncio.run(store.aquery(query))
    assert [node.node_id for node in result.nodes or ()] == result.ids
    names = [node.metadata.get("name") or node.get_content() for node in result.nodes or ()]
    return dict(zip(names, result.similarities or (), strict=True))


def where(key: str, value: Any, operator: str = "==") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=FilterOperator(operator))])


def cosine(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(MODEL.get_query_embedding(one), MODEL.get_query_embedding(other), strict=True))


# What is found


def test_each_mode_searches_what_it_says(kind: str, make: Maker, tmp_path: Path) -> None:
    store = over(make, tmp_path, some(), fusion=RRF())
    cosines = {name: cosine(QUESTION, text) for name, text in TEXTS.items()}
    nearest = sorted(cosines, key=lambda name: -cosines[name])
    by_vectors = found(store, asked("default"))
    assert list(by_vectors) == nearest
    assert by_vectors == pytest.approx(cosines, abs=1e-5)
    keywords = BM25Retriever.from_nodes(some(), language="en").retrieve(QUESTION)
    by_words = {node.metadata["name"]: node.score for node in keywords}
    assert found(store, asked("sparse")) == found(store, asked("text_search")) == by_words
    both = found(store, asked("hybrid"))
    assert both["valve"] == 0.5 / 61 + 0.5 / (61 + nearest.index("valve"))
    assert set(both) == set(TEXTS)


def test_weights_and_counts(make: Maker, tmp_path: Path) -> None:
    store = over(make, tmp_path, some(), fusion=RRF())
    nearest = list(found(store, asked("default")))
    assert found(store, asked("hybrid", alpha=0.0)) == {
        name: 1 / (61 + at) for at, name in enumerate(found(store, asked("sparse")))
    }
    assert found(store, asked("hybrid", alpha=1.0)) == {name: 1 / (61 + at) for at, name in enumerate(nearest)}
    assert len(found(store, asked("sparse", "water pump", k=1, sparse_top_k=3))) == 3
    assert len(found(store, asked("hybrid", k=1, hybrid_top_k=3))) == 3
    assert list(found(store, asked("default", k=2))) == nearest[:2]
    for mode in MODES:
        assert found(store, asked(mode, k=0)) == {}


def test_candidates_are_not_limited_to_k(make: Maker, tmp_path: Path) -> None:
    """Neither side has `both` among its first two; together they put it first."""
    vectors = {"a": (1.0, 0.0), "b": (0.9, 0.1), "both": (0.8, 0.3), "c": (0.0, 1.0), "d": (0.1, 1.0)}
    vectors |= {f"between {at}": (0.7, 0.4 + at / 100) for at in range(8)}
    texts = {"c": "zebra zebra", "d": "zebra zebra", "both": "a zebra among other animals"}
    store = over(make, tmp_path, fusion=RRF())
    store.add(
        [
            TextNode(
                id_=number(name), text=texts.get(name, "no"), metadata={"name": name}, embedding=[*vector] + [0.0] * 14
            )
            for name, vector in vectors.items()
        ]
    )
    query = VectorStoreQuery([1.0] + [0.0] * 15, 1, query_str="zebra", mode=VectorStoreQueryMode.HYBRID)
    assert found(store, query) == {"both": 0.5 / 63 + 0.5 / 63}


def test_no_query_stays_for_the_next(make: Maker, tmp_path: Path) -> None:
    store = over(make, tmp_path, some())
    for mode in MODES:
        first = found(store, asked(mode, "alarm sounds", filters=where("key", 3)))
        assert list(first) == ["alarm"]
        assert next(iter(found(store, asked(mode)))) != "alarm"
        assert next(iter(found(store, asked(mode, "alarm sounds")))) == "alarm"


# Filters


@pytest.fixture(scope="module")
def filled(make: Maker, tmp_path_factory: pytest.TempPathFactory) -> HybridVectorStore:
    """Holds metadata that engines differ on, also what the wrapped store does not take."""
    every = [*metadata(VALUES), {"doc_id": "mine"}, {"_node_type": "own", "v": "a"}, {"_node_content": "mine"}]
    nodes = [TextNode(id_=number(f"n{at}"), text=f"text {at}", metadata=each) for at, each in enumerate(every)]
    return over(make, tmp_path_factory.mktemp("filled"), nodes)


def ids(store: HybridVectorStore, mode: str, filters: Any = None, **options: Any) -> list[str]:
    result = store.query(asked(mode, "text 7", 99, filters=filters, **options))
    assert result.ids == asyncio.run(store.aquery(asked(mode, "text 7", 99, filters=filters, **options))).ids
    return list(result.ids or ())


@pytest.fixture(scope="module")
def every(filled: HybridVectorStore) -> dict[str, list[str]]:
    """All that is held, by the query mode, in its order."""
    return {mode: ids(filled, mode) for mode in ("default", "sparse")}


@pytest.mark.parametrize(
    "where", [*FILTERS[::4], {"doc_id": "mine"}, {"_node_type": "own"}, {"doc_id": {"$exists": False}}],
    ids=lambda where: str(where)[:60],
)  # fmt: skip
def test_a_filter_means_what_it_means_everywhere(
    filled: HybridVectorStore, every: dict[str, list[str]], where: dict[str, Any]
) -> None:
    passes = compile_filter(where)
    held = {node.node_id: node.metadata for node in filled.get_nodes()}
    for mode, names in every.items():
        assert len(names) == len(held)
        assert ids(filled, mode, where) == [name for name in names if passes(held[name])]
    assert set(ids(filled, "hybrid", where)) == {name for name, each in held.items() if passes(each)}


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(where=WHERE)
def test_so_does_any_other_filter(
    filled: HybridVectorStore, every: dict[str, list[str]], where: dict[str, Any]
) -> None:
    passes = compile_filter(where)
    held = {node.node_id: node.metadata for node in filled.get_nodes()}
    assert ids(filled, "default", where) == [name for name in every["default"] if passes(held[name])]


def test_documents_and_nodes_narrow_before_ranking(
    kind: str, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [
        TextNode(id_=number(f"other{at}"), text=f"{QUESTION} {at}", metadata={"name": f"other{at}"})
        for at in range(300)
    ]
    store = over(make, tmp_path, [*some(), *more])
    counted = Counted(store.dense, monkeypatch)
    for mode in MODES:
        assert list(found(store, asked(mode, k=1, doc_ids=["manual"]))) == ["valve"]
        assert list(found(store, asked(mode, k=1, doc_ids=[number("other7"), "none"]))) == ["other7"]
        assert found(store, asked(mode, doc_ids=[])) == {}
        some_ids = [number("valve"), number("pump"), "gone"]
        assert set(found(store, asked(mode, node_ids=some_ids))) == {"valve", "pump"}
        assert set(found(store, asked(mode, node_ids=some_ids, doc_ids=["none"]))) == set()
        assert set(found(store, asked(mode, node_ids=some_ids, filters=where("key", 0)))) == {"pump"}
        assert found(store, asked(mode, node_ids=["gone"])) == {}
    counted.asked = 0
    store.query(asked("default", k=1, doc_ids=["manual"]))
    assert (counted.asked == 1) == (kind in PUSHED)


# What changes


def test_nodes_are_replaced_deleted_and_cleared(make: Maker, tmp_path: Path) -> None:
    store = over(make, tmp_path, some())
    changed = TextNode(id_=number("pump"), text="a zebra", metadata={"name": "zebra"})
    store.add(embedded([changed]))
    for mode in MODES:
        assert next(iter(found(store, asked(mode, "a zebra")))) == "zebra"
        assert "pump" not in found(store, asked(mode, TEXTS["pump"]))
    assert len(store.client) == 4
    assert found(store, asked("default", "a zebra", k=1))["zebra"] == pytest.approx(1.0, abs=1e-5)
    store.delete_nodes([number("alarm"), number("valve")], where("key", 3))
    assert set(found(store, asked("default"))) == {"valve", "filter", "zebra"}
    store.delete_nodes(filters=where("key", 1))
    assert set(found(store, asked("default"))) == {"filter", "zebra"}
    store.delete("manual")
    store.delete("nobody")
    assert set(found(store, asked("default"))) == {"zebra"}
    store.delete(number("pump"))  # of no document, it is its own
    store.clear()
    store.clear()
    for mode in MODES:
        assert found(store, asked(mode)) == {}
    store.delete("manual")
    store.add(embedded(some()))
    assert set(found(store, asked("default"))) == set(TEXTS)


async def test_the_async_twins_change_alike(make: Maker, tmp_path: Path) -> None:
    store = over(make, tmp_path)
    given = [number(name) for name in TEXTS]
    assert await store.async_add(embedded(some())) == given
    assert await store.async_add(embedded(some()[:2])) == given[:2]
    await store.adelete_nodes(given[:1], where("key", 0))
    assert [node.node_id for node in await store.aget_nodes(given)] == given[1:]
    assert set((await store.aquery(asked("default"))).ids or ()) == set(given[1:])
    await store.adelete("manual")
    assert (await store.aquery(asked("default"))).ids == []
    await store.async_add(embedded(some()))
    await store.aclear()
    assert await store.aget_nodes() == []
    assert (await store.aquery(asked("hybrid"))).ids == []


# Indexes and pipelines


async def test_an_index_over_the_store(make: Maker, tmp_path: Path) -> None:
    store = over(make, tmp_path, fusion=RRF())
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(id_=name, text=text, metadata={"page": at}) for at, (name, text) in enumerate(TEXTS.items())]

    class Numbered(TransformComponent):
        def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
            return [_part(node) for node in nodes]

    VectorStoreIndex.from_documents(documents, context, embed_model=MODEL, transformations=[Numbered()])
    index = VectorStoreIndex.from_vector_store(store, MODEL)
    retriever = index.as_retriever(
        vector_store_query_mode="hybrid", alpha=0.25, sparse_top_k=5, similarity_top_k=2, filters=where("page", 1, "<=")
    )
    again = retriever.retrieve(QUESTION)
    best = again[0]
    assert again == await retriever.aretrieve(QUESTION)
    assert {node.node.ref_doc_id for node in again} == {"pump", "valve"}
    assert best.score == 0.75 / 61 + 0.25 / 61
    told = provenance(best) or {}
    assert (told["channels"]["bm25"]["matched_terms"], set(told["channels"])) == (
        ["drain", "pump", "before", "winter"], {"bm25", "dense"},
    )  # fmt: skip
    index.delete_ref_doc("valve")
    await index.adelete_ref_doc("alarm")
    assert {node.node.ref_doc_id for node in index.as_retriever(similarity_top_k=9).retrieve(QUESTION)} == {
        "pump",
        "filter",
    }


def _part(node: BaseNode) -> BaseNode:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=node.node_id)}
    return TextNode(id_=number(node.hash), text=node.get_content(), metadata=dict(node.metadata), relationships=source)


class Parts(TransformComponent):
    """A chunk for each sentence, with an id that every store takes."""

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        return [
            _part(Document(id_=node.node_id, text=sentence.strip()))
            for node in nodes
            for sentence in node.get_content().split(".")
            if sentence.strip()
        ]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("strategy", list(DocstoreStrategy))
def test_pipelines_keep_it_up_to_date(make: Maker, tmp_path: Path, strategy: DocstoreStrategy, is_async: bool) -> None:
    store = over(make, tmp_path)
    ingestion = IngestionPipeline(
        transformations=[Parts(), MODEL], docstore=SimpleDocumentStore(), vector_store=store,
        docstore_strategy=strategy, disable_cache=True,
    )  # fmt: skip

    def run(**texts: str) -> dict[str, set[str]]:
        given = [Document(id_=name, text=text) for name, text in texts.items()]
        asyncio.run(ingestion.arun(documents=given)) if is_async else ingestion.run(documents=given)
        result = store.query(asked("default", k=99))
        assert set(result.ids or ()) == {node.node_id for node in store.get_nodes()}
        held: dict[str, set[str]] = {}
        for node in result.nodes or ():
            held.setdefault(node.ref_doc_id or "", set()).add(node.get_content())
        return held

    first = {"manual": {"Prime the pump", "Drain it"}, "note": {"A zebra was seen"}}
    assert run(manual="Prime the pump. Drain it.", note="A zebra was seen.") == first
    second = run(note="An okapi was seen.")
    if strategy == DocstoreStrategy.DUPLICATES_ONLY:
        assert second == {**first, "note": {"A zebra was seen", "An okapi was seen"}}
    else:
        assert second["note"] == {"An okapi was seen"}
        assert ("manual" in second) == (strategy != DocstoreStrategy.UPSERTS_AND_DELETE)
    assert list(found(store, asked("sparse", "okapi"))) == ["An okapi was seen"]
