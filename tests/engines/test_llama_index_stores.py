"""Real LlamaIndex vector stores as channels: filters, scores, ids, deletion, each sync and async."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from tests.engines.awkward import FILTERS, VALUES, WHERE, metadata, passing
from tests.engines.llama_index_stores import PUSHED, Counted, Maker, kind, make, number
from tests.frameworks.llama_index_parts import HashEmbedding
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, as_channel
from voicevault_retrievers.llama_index.store_channels import VectorStoreChannel

__all__ = ["kind", "make"]

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")

QUESTION = "how is the pump flushed"


def awkward(kind: str) -> list[TextNode]:
    """Nodes with metadata that engines differ on; LlamaIndex gives Chroma scalars alone."""
    held = [value for value in VALUES if not kind.startswith("chroma") or not isinstance(value, list | dict)]
    every = [*metadata(held), {"doc_id": "mine"}, {"_node_type": "own", "v": "a"}, {"_node_content": "mine"}]
    return [TextNode(id_=number(f"n{at}"), text=f"text {at}", metadata=each) for at, each in enumerate(every)]


def indexed(store: BasePydanticVectorStore, nodes: list[TextNode]) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=context, embed_model=HashEmbedding())


@pytest.fixture(scope="module")
def filled(kind: str, make: Maker) -> VectorStoreIndex:
    return indexed(make(), awkward(kind))


@pytest.fixture(scope="module")
def every(filled: VectorStoreIndex) -> Ranking:
    """All that the index holds, in the order of its store."""
    return VectorStoreChannel(filled).search(QUESTION, len(VALUES) + 10)


# Filters

MORE: list[dict[str, Any]] = [
    {"doc_id": "mine"},
    {"_node_type": "own"},
    {"doc_id": {"$exists": False}},
    {"_node_content": {"$ne": "other"}},
    {"$not": {"v": ""}},
    {"v": "x' OR '1'='1"},
    {"v": {"$ne": "50% :v \\"}},
    {"v' = '1": {"$exists": False}},
]


@pytest.mark.parametrize("where", [*FILTERS, *MORE], ids=lambda where: str(where)[:60])
async def test_a_filter_means_what_it_means_everywhere(
    filled: VectorStoreIndex, every: Ranking, where: dict[str, Any]
) -> None:
    assert len(every) == len(filled.docstore.docs or every)
    expected = passing(every, where)
    query = Query(QUESTION, where=where, require={"gone": {"$exists": False}})
    whole, few = VectorStoreChannel(filled).search(query, len(every)), VectorStoreChannel(filled).search(query, 2)
    assert (whole.ids, few.ids) == (expected, expected[:2])
    assert whole.errors == few.errors == ()
    assert few == await VectorStoreChannel(filled).asearch(query, 2)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(where=WHERE)
def test_so_does_any_other_filter(filled: VectorStoreIndex, every: Ranking, where: dict[str, Any]) -> None:
    assert VectorStoreChannel(filled).search(Query(QUESTION, where=where), len(every)).ids == passing(every, where)


def many(n: int) -> list[TextNode]:
    """N nodes, of which every hundredth passes `{"v": "rare"}`, and has a year of its own."""
    return [
        TextNode(
            id_=number(f"{n} {at}"),
            text=f"text {at}",
            metadata={"v": "rare" if at % 100 == 99 else f"common {at % 7}", "n": at % 100},
        )
        for at in range(n)
    ]


@pytest.fixture(scope="module")
def three_hundred(make: Maker) -> VectorStoreIndex:
    return indexed(make(), many(300))


RARE = [
    {"v": "rare"},
    {"n": 99},
    {"v": {"$in": ["rare", "none"]}},
    {"v": {"$nin": [f"common {at}" for at in range(7)]}},
    {"$not": {"v": {"$in": [f"common {at}" for at in range(7)]}}},
]


@pytest.mark.parametrize("where", RARE, ids=str)
def test_what_a_store_can_say_is_left_to_it(
    kind: str, three_hundred: VectorStoreIndex, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(three_hundred.vector_store, monkeypatch)
    found = VectorStoreChannel(three_hundred).search(Query(QUESTION, where=where), 3)
    assert {hit.id for hit in found} == {number(f"300 {at}") for at in (99, 199, 299)}
    assert counted.asked == 1 if kind in PUSHED else 1 < counted.asked <= 1 + math.ceil(math.log2(300 / 3))


async def test_a_stores_retriever_filters_alike(filled: VectorStoreIndex) -> None:
    for where in ({"v": {"$gte": 1}}, {"$not": {"w": "x"}}):
        expected = VectorStoreChannel(filled).search(Query(QUESTION, where=where), 9).ids
        channel = as_channel(filled.as_retriever(similarity_top_k=4))
        query = Query(QUESTION, where=where)
        assert channel.search(query, 9).ids == expected[:4] == (await channel.asearch(query, 9)).ids
        assert len(channel.search(QUESTION, 9)) == 4


# Scores, ids, deletion, joining


async def test_scores_are_the_stores(kind: str, filled: VectorStoreIndex) -> None:
    model = HashEmbedding()
    (vector,) = (model.get_query_embedding(QUESTION),)
    retrieved = filled.as_retriever(similarity_top_k=5).retrieve(QUESTION)
    for query in (
        Query(QUESTION),
        Query("", vectors={"": vector}),
        Query(QUESTION, require={"gone": {"$exists": False}}),
    ):
        found = VectorStoreChannel(filled).search(query, 5)
        assert [hit.id for hit in found] == [node.node_id for node in retrieved]
        assert found == await VectorStoreChannel(filled).asearch(query, 5)
    cosines = [
        sum(a * b for a, b in zip(vector, model.get_text_embedding(node.get_content("embed")), strict=True))
        for node in retrieved
    ]
    assert [hit.score for hit in found] == pytest.approx(cosines, abs=1e-5)


async def test_what_is_deleted_is_not_found(make: Maker) -> None:
    index = indexed(
        make(), [TextNode(id_=number(f"kept {at}"), text=f"text {at}", metadata={"v": at}) for at in range(4)]
    )
    channel = VectorStoreChannel(index)
    ids = [number(f"kept {at}") for at in range(4)]
    assert {hit.id: hit.text for hit in channel.search(QUESTION, 9)} == {ids[at]: f"text {at}" for at in range(4)}
    index.vector_store.delete_nodes([ids[1]])
    assert (
        set(channel.search(QUESTION, 9).ids)
        == {ids[0], ids[2], ids[3]}
        == set((await channel.asearch(QUESTION, 9)).ids)
    )
    assert channel.search(Query(QUESTION, where={"v": 1}), 9).ids == ()


async def test_it_joins_with_keywords_under_one_filter(make: Maker) -> None:
    texts = ["the pump is flushed", "flush the pump", "the pump is red", "a red lamp", "the door", "pump and door"]
    nodes = [TextNode(id_=number(text), text=text, metadata={"page": at % 2}) for at, text in enumerate(texts)]
    channels = {"bm25": BM25Retriever.from_nodes(nodes), "dense": indexed(make(), nodes)}
    retriever = HybridRetriever(channels=channels, require={"page": 1}, k=6)
    found = retriever.retrieve("pump")
    assert {node.node_id for node in found} == {number(text) for text in texts[1::2]}
    told = found[0].provenance
    assert set(told["channels"]) == {"bm25", "dense"}
    assert "degraded" not in told
    assert [node.node_id for node in await retriever.aretrieve("pump")] == [node.node_id for node in found]
    assert retriever.with_options(where={"page": 0}).retrieve("pump") == []


def test_bm25_is_made_of_what_it_holds(kind: str, make: Maker) -> None:
    index = indexed(make(), many(1001))
    bm25 = BM25Retriever.from_vector_store(index)
    assert {hit.id for hit in bm25.search("text", 2000).hits} == {number(f"1001 {at}") for at in range(1001)}
    (hit,) = bm25.search("1000").hits
    assert (hit.id, hit.chunk.metadata["n"]) == (number("1001 1000"), 0)


@pytest.mark.parametrize("kind", ["qdrant"], indirect=True)
def test_all_of_qdrant_is_listed(make: Maker) -> None:
    """Its own listing ends at 9,999."""
    store = make()
    store.add([TextNode(id_=number(str(at)), text=f"text {at}", embedding=[1.0, at / 10_000]) for at in range(10_001)])
    assert len(BM25Retriever.from_vector_store(store).search("text", 20_000).hits) == 10_001
    store.clear()
    assert BM25Retriever.from_vector_store(store).retrieve("text") == []


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
async def test_an_index_of_postgres_gives_as_many_as_are_wanted(make: Maker) -> None:
    """It gives 40 where it is told no more, and filters after that."""
    hnsw = {"hnsw_m": 16, "hnsw_ef_construction": 64, "hnsw_ef_search": 40}
    index = indexed(make(hnsw_kwargs=hnsw), many(1200))
    channel = VectorStoreChannel(index)
    assert len(channel.search(QUESTION, 300)) == 300 == len(await channel.asearch(QUESTION, 300))
    query = Query(QUESTION, where={"n": {"$in": [1, 2, 3]}})
    assert len(channel.search(query, 10)) == 10 == len(await channel.asearch(query, 10))
    found = channel.search(query, 36)
    assert [note.kind for note in found.errors] == ["FilterDepth"]
    assert found == await channel.asearch(query, 36)


@pytest.mark.parametrize("kind", ["postgres", "postgres-jsonb"], indirect=True)
def test_postgres_orders_numbers_that_are_declared(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    index = indexed(make(indexed_metadata_keys={("n", "double precision")}), many(300))
    counted = Counted(index.vector_store, monkeypatch)
    for where, expected in (({"n": {"$gt": 98.5}}, 3), ({"n": {"$gte": 98, "$lt": 99}}, 3), ({"n": {"$lte": -1}}, 0)):
        assert len(VectorStoreChannel(index).search(Query(QUESTION, where=where), 3)) == expected
    assert counted.asked == 3
