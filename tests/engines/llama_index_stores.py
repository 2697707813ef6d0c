"""Empty LlamaIndex vector stores of each kind, on real engines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryResult

SIZE = 16
KINDS = ["simple", "other", "chroma", "chroma-http", "qdrant", "postgres", "postgres-jsonb"]
PUSHED = {"simple", "chroma", "chroma-http", "qdrant", "postgres", "postgres-jsonb"}

Maker = Callable[..., BasePydanticVectorStore]

_NAMES = (f"nodes{at}" for at in count())  # no other tests on the same servers have these names


class Other(SimpleVectorStore):
    """A store of which nothing is known."""


def number(name: str) -> str:
    """An id that every store takes: Qdrant takes no other strings."""
    return str(uuid5(NAMESPACE_URL, name))


class Counted:
    """Counts the queries of a store's class."""

    def __init__(self, store: BasePydanticVectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        query = type(store).query

        def counting(own: Any, asked: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
            self.asked += 1
            return query(own, asked, **options)

        monkeypatch.setattr(type(store), "query", counting)


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def make(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes an empty store of the kind."""
    if kind in ("simple", "other"):
        yield SimpleVectorStore if kind == "simple" else Other
    elif kind == "qdrant":
        yield _qdrant()
    elif kind.startswith("chroma"):
        chromadb = pytest.importorskip("chromadb")
        options = {"settings": chromadb.config.Settings(anonymized_telemetry=False)}
        if kind == "chroma":
            yield _chroma(chromadb.PersistentClient(str(tmp_path_factory.mktemp("chroma")), **options))
        else:
            client = chromadb.HttpClient("127.0.0.1", request.getfixturevalue("chroma_port"), **options)
            yield _chroma(client)
            for server in (client._server, client._admin_client._server):
                server._session.close()  # which closing the client does not do
    else:
        pytest.importorskip("llama_index.vector_stores.postgres")
        yield _postgres(request.getfixturevalue("postgres"), use_jsonb=kind == "postgres-jsonb")


def _chroma(client: Any) -> Maker:
    store = pytest.importorskip("llama_index.vector_stores.chroma").ChromaVectorStore
    configuration = {"hnsw": {"space": "cosine"}}
    return lambda: store(
        chroma_collection=client.create_collection(next(_NAMES), embedding_function=None, configuration=configuration)
    )


def _qdrant() -> Maker:
    qdrant_client = pytest.importorskip("qdrant_client")
    store = pytest.importorskip("llama_index.vector_stores.qdrant").QdrantVectorStore
    client, aclient = qdrant_client.QdrantClient(":memory:"), qdrant_client.AsyncQdrantClient(":memory:")
    aclient._client.collections = client._client.collections  # one store behind both, as on a server
    return lambda: store(next(_NAMES), client=client, aclient=aclient, index_doc_id=False)


def _postgres(address: str, **options: Any) -> Maker:
    from sqlalchemy import NullPool

    store = pytest.importorskip("llama_index.vector_stores.postgres").PGVectorStore
    drivers = (address.replace("+psycopg", f"+{driver}") for driver in ("psycopg2", "asyncpg"))
    sync, awaited = drivers
    return lambda **more: store(
        connection_string=sync,
        async_connection_string=awaited,
        table_name=next(_NAMES),
        embed_dim=SIZE,
        create_engine_kwargs={"poolclass": NullPool},  # a connection belongs to one event loop
        **{**options, **more},
    )
