"""Real LangChain vector stores as channels: filters, scores, ids, deletion, each sync and async."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from tests.engines.awkward import FILTERS, UNHELD, VALUES, WHERE, metadata, passing
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, RetrieverChannel, VectorStoreChannel

pytestmark = pytest.mark.filterwarnings("ignore:legacy embedding function config")  # Chroma says so of each collection

SIZE = 8
QUESTION = "how is the pump flushed"


class Counting(DeterministicFakeEmbedding):
    """Counts the questions: each search embeds its own."""

    asked: int = 0

    def embed_query(self, text: str) -> list[float]:
        self.asked += 1
        return super().embed_query(text)


def embeddings() -> Counting:
    return Counting(size=SIZE)


def number(name: str) -> str:
    """An id that every store takes: Qdrant takes no other strings, and PGVector holds one in one collection only."""
    return str(uuid5(NAMESPACE_URL, name))


# Stores

Maker = Callable[..., Any]
KINDS = ["memory", "other", "chroma", "chroma-http", "faiss", "qdrant", "pgvector", "pgvectorstore"]
PUSHED = {"memory", "chroma", "chroma-http", "faiss", "qdrant", "pgvector"}

_NAMES = (f"store{at}" for at in count())  # a kind may be made again on its server when other tests have run


class Other(InMemoryVectorStore):
    """A store of which nothing is known."""


def chroma(client: Any, name: str, space: str = "cosine") -> Any:
    from langchain_chroma import Chroma

    configuration = {"hnsw": {"space": space}}
    return Chroma(name, embeddings(), client=client, collection_configuration=configuration)  # type: ignore[arg-type]


def faiss(name: str, index: str = "IndexFlatL2", strategy: str = "EUCLIDEAN_DISTANCE") -> Any:
    library = pytest.importorskip("faiss")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package says on import that it is no longer cared for
        stores = pytest.importorskip("langchain_community.vectorstores.faiss")
        docstore = pytest.importorskip("langchain_community.docstore.in_memory").InMemoryDocstore()
    return stores.FAISS(
        embeddings(), getattr(library, index)(SIZE), docstore, {}, distance_strategy=stores.DistanceStrategy[strategy]
    )


def qdrant(name: str, distance: str = "Cosine") -> Any:
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    models = pytest.importorskip("qdrant_client.models")
    measured = models.Distance(distance)
    client.create_collection(name, models.VectorParams(size=SIZE, distance=measured))
    return pytest.importorskip("langchain_qdrant").QdrantVectorStore(client, name, embeddings(), distance=measured)


def pgvector(engine: Any, name: str, strategy: str = "cosine") -> Any:
    from langchain_postgres import PGVector
    from langchain_postgres.vectorstores import DistanceStrategy

    strategy = DistanceStrategy(strategy)
    return PGVector(embeddings(), connection=engine, collection_name=name, distance_strategy=strategy)


def pgvectorstore(engine: Any, name: str, strategy: str = "COSINE_DISTANCE") -> Any:
    from langchain_postgres import PGVectorStore
    from langchain_postgres.v2.indexes import DistanceStrategy

    engine.init_vectorstore_table(name, SIZE)
    return PGVectorStore.create_sync(engine, embeddings(), name, distance_strategy=DistanceStrategy[strategy])


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    """Makes an empty store, of a metric where it has several."""
    with ExitStack() as cleaning:
        maker = _maker(kind, request, tmp_path_factory, cleaning)
        yield lambda *metric: maker(next(_NAMES), *metric)


def _maker(kind: str, request: pytest.FixtureRequest, folders: pytest.TempPathFactory, cleaning: ExitStack) -> Maker:
    if kind in ("memory", "other"):
        return lambda name: (InMemoryVectorStore if kind == "memory" else Other)(embeddings())
    if kind.startswith("chroma"):
        pytest.importorskip("langchain_chroma")
        chromadb = pytest.importorskip("chromadb")
        options = {"settings": chromadb.config.Settings(anonymized_telemetry=False)}
        if kind == "chroma":
            client = chromadb.PersistentClient(str(folders.mktemp("chroma")), **options)
        else:
            client = chromadb.HttpClient("127.0.0.1", request.getfixturevalue("chroma_port"), **options)
            for server in (client._server, client._admin_client._server):
                cleaning.callback(server._session.close)  # which closing the client does not do
        return partial(chroma, client)
    if kind in ("faiss", "qdrant"):
        return {"faiss": faiss, "qdrant": qdrant}[kind]
    pytest.importorskip("langchain_postgres")
    address = request.getfixturevalue("postgres")
    if kind == "pgvector":
        from sqlalchemy import create_engine

        engine = create_engine(address)
        cleaning.callback(engine.dispose)
        return partial(pgvector, engine)
    from langchain_postgres import PGEngine

    own = PGEngine.from_connection_string(address)
    cleaning.callback(lambda: own._run_as_sync(own.close()))
    return partial(pgvectorstore, own)


# What they hold


def awkward(kind: str, prefix: str = "awkward") -> list[Document]:
    held = [value for at, value in enumerate(VALUES) if at not in UNHELD or not kind.startswith("chroma")]
    return [
        Document(f"text {at}", id=number(f"{prefix} {at}"), metadata=each) for at, each in enumerate(metadata(held))
    ]


@pytest.fixture(scope="module")
def filled(kind: str, make: Maker) -> VectorStore:
    store: VectorStore = make()
    store.add_documents(awkward(kind))
    return store


@pytest.fixture(scope="module")
def every(filled: VectorStore) -> Ranking:
    """All that the store holds, in its order."""
    return VectorStoreChannel(filled).search(QUESTION, len(VALUES) + 10)


@pytest.mark.parametrize("where", FILTERS, ids=lambda where: str(where)[:60])
async def test_a_filter_means_what_it_means_everywhere(
    filled: VectorStore, every: Ranking, where: dict[str, Any]
) -> None:
    channel = VectorStoreChannel(filled)
    expected = passing(every, where)
    query = Query(QUESTION, where=where, require={"gone": {"$exists": False}})
    whole, few = channel.search(query, len(every)), channel.search(query, 2)
    assert (whole.ids, few.ids) == (expected, expected[:2])
    assert whole.errors == few.errors == ()
    assert few == await channel.asearch(query, 2)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(where=WHERE)
def test_so_does_any_other_filter(filled: VectorStore, every: Ranking, where: dict[str, Any]) -> None:
    channel = VectorStoreChannel(filled)
    assert channel.search(Query(QUESTION, where=where), len(every)).ids == passing(every, where)


@pytest.mark.parametrize("where", [{"v": {"$gte": 1}}, {"$not": {"w": "x"}}], ids=str)
async def test_a_stores_retriever_filters_alike(filled: VectorStore, where: dict[str, Any]) -> None:
    query = Query(QUESTION, where=where)
    expected = VectorStoreChannel(filled).search(query, 4).ids
    for options, k in (({}, 4), ({"search_kwargs": {"k": 1}}, 1)):  # which its owner gave it
        channel = RetrieverChannel(filled.as_retriever(**options))
        assert channel.search(query, 4).ids == expected[:k] == (await channel.asearch(query, 4)).ids


def many(store: VectorStore, n: int) -> list[str]:
    """Adds n documents, of which every hundredth passes `{"v": "rare"}`; gives their ids."""
    documents = [
        Document(
            f"text {at}",
            id=number(f"{n} {at}"),
            metadata={"v": "rare" if at % 100 == 99 else f"common {at % 7}"},
        )
        for at in range(n)
    ]
    return store.add_documents(documents)


async def test_what_a_store_can_say_is_left_to_it(kind: str, make: Maker) -> None:
    store = make()
    ids = many(store, 300)
    channel = VectorStoreChannel(store)
    for where in ({"v": "rare"}, {"v": {"$in": ["rare", "none"]}}, {"v": {"$nin": [f"common {n}" for n in range(7)]}}):
        store.embeddings.asked = 0
        found = channel.search(Query(QUESTION, where=where), 3)
        assert set(found.ids) == set(ids[99::100])
        asks = store.embeddings.asked
        own = kind == "other"  # a store without scores, whose documents' cosines are computed here
        assert asks == 1 if kind in PUSHED else 1 < asks <= 1 + own + math.ceil(math.log2(300 / 3))
        assert found == await channel.asearch(Query(QUESTION, where=where), 3)


# Scores

Score = Callable[[Any, Any], float]


def cosine(one: Any, two: Any) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def distance(one: Any, two: Any) -> float:
    return float(np.linalg.norm(one - two))


SCORES: list[tuple[str, tuple[str, ...], Score | None]] = [
    ("memory", (), cosine),
    ("chroma", ("cosine",), cosine),
    ("chroma", ("l2",), lambda one, two: 1 - distance(one, two) ** 2 / math.sqrt(2)),
    ("chroma-http", ("cosine",), cosine),
    ("faiss", ("IndexFlatL2", "EUCLIDEAN_DISTANCE"), lambda one, two: 1 - distance(one, two) ** 2 / math.sqrt(2)),
    ("faiss", ("IndexFlatIP", "MAX_INNER_PRODUCT"), None),
    ("faiss", ("IndexFlatL2", "JACCARD"), None),
    ("qdrant", ("Cosine",), lambda one, two: (cosine(one, two) + 1) / 2),
    ("qdrant", ("Euclid",), lambda one, two: 1 - distance(one, two) / math.sqrt(2)),
    ("qdrant", ("Dot",), None),
    ("qdrant", ("Manhattan",), None),
    ("pgvector", ("cosine",), cosine),
    ("pgvector", ("l2",), lambda one, two: 1 - distance(one, two) / math.sqrt(2)),
    ("pgvector", ("inner",), None),
    ("pgvectorstore", ("COSINE_DISTANCE",), cosine),
    ("pgvectorstore", ("EUCLIDEAN",), lambda one, two: 1 - distance(one, two) / math.sqrt(2)),
    ("pgvectorstore", ("INNER_PRODUCT",), None),
]


async def test_scores_are_relevance_or_cosines(kind: str, make: Maker) -> None:
    texts = {number(text): text for text in ("pump", "seal", "hose", "lamp", "door")}
    vectors = {key: np.array(embeddings().embed_documents([text])[0]) for key, text in texts.items()}
    question = np.array(embeddings().embed_query(QUESTION))
    for metric, expected in ((metric, score) for name, metric, score in SCORES if name == kind):
        store = make(*metric)
        store.add_documents([Document(text, id=key, metadata={"v": 1}) for key, text in texts.items()])
        channel = VectorStoreChannel(store)
        found = channel.search(Query(QUESTION, where={"v": 1}), 5)
        assert [hit.text for hit in found] == [
            document.page_content for document in store.similarity_search(QUESTION, 5)
        ]
        scores = [(expected or cosine)(question, vectors[hit.id]) for hit in found]
        scores = scores if expected else np.minimum.accumulate(scores).tolist()  # in the store's own order
        assert [hit.score for hit in found] == pytest.approx(scores, abs=1e-5)
        assert found == await channel.asearch(Query(QUESTION, where={"v": 1}), 5)


# Ids, deletion, joining


async def test_ids_are_those_that_were_given_and_what_is_deleted_is_not_found(make: Maker) -> None:
    store = make()
    ids = [number(f"kept {at}") for at in range(4)]
    texts = {key: f"text {at}" for at, key in enumerate(ids)}
    documents = [Document(text, id=key, metadata={"v": at}) for at, (key, text) in enumerate(texts.items())]
    assert store.add_documents(documents) == ids
    channel = VectorStoreChannel(store)
    assert {hit.id: hit.text for hit in channel.search(QUESTION, 9)} == texts
    store.delete([ids[1]])
    remaining = {ids[0], ids[2], ids[3]}
    assert set(channel.search(QUESTION, 9).ids) == remaining == set((await channel.asearch(QUESTION, 9)).ids)
    assert channel.search(Query(QUESTION, where={"v": 1}), 9).ids == ()


async def test_it_joins_with_keywords_under_one_filter(make: Maker) -> None:
    texts = ["the pump is flushed", "flush the pump", "the pump is red", "a red lamp", "the door", "pump and door"]
    documents = [Document(t, id=number(t), metadata={"page": at % 2, "_": t}) for at, t in enumerate(texts)]
    store = make()
    store.add_documents(documents)
    retriever = HybridRetriever(
        channels={"bm25": BM25Retriever.from_documents(documents), "dense": store}, require={"page": 1}, k=6
    )
    found = retriever.invoke("pump")
    assert {document.id for document in found} == {number(text) for text in texts[1::2]}
    assert set(found[0].metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    assert "degraded" not in found[0].metadata["voicevault"]
    assert [d.id for d in await retriever.ainvoke("pump")] == [d.id for d in found]
    assert retriever.invoke("pump", where={"page": 0}) == []
    assert len(retriever.invoke("pump", where={"page": {"$gte": 1}})) == 3


def test_bm25_is_made_of_what_it_holds(kind: str, make: Maker) -> None:
    store = make()
    ids = many(store, 1001)  # Qdrant's listing has pages of 1000
    if kind == "pgvectorstore":
        with pytest.raises(ConfigError, match="cannot list"):
            BM25Retriever.from_vector_store(store)
    listed = {"ids": ids} if kind == "pgvectorstore" else {}
    bm25 = BM25Retriever.from_vector_store(store, **listed)
    assert len(bm25.bm25.index) == 1001
    (hit,) = bm25.search("1000").hits
    assert hit.id == ids[1000]
    assert hit.chunk in {found.chunk for found in VectorStoreChannel(store).search(QUESTION, 1001)}


async def test_an_async_engine_of_postgres_filters_alike(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("langchain_postgres")
    from langchain_postgres import PGVector
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(request.getfixturevalue("postgres"))
    store = PGVector(embeddings(), connection=engine, collection_name="awaited")
    await store.aadd_documents(awkward("pgvector", "awaited"))
    channel = VectorStoreChannel(store)
    every = await channel.asearch(QUESTION, 100)
    for where in ({"v": {"$gte": 1}}, {"$not": {"v": "a"}}, {"v": {"$exists": False}}):
        found = await channel.asearch(Query(QUESTION, where=where), 100)
        assert found.ids == passing(every, where) != ()
    await engine.dispose()
