"""A bundle's embedding: of the right dimension it stands for the text, of another one it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQuery

from tests.frameworks.llama_index_parts import HashEmbedding, ListRetriever, nodes, scored
from tests.helpers import HashEmbedder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    HybridRetriever,
    HybridVectorStore,
    PipelineRetriever,
    VectorRetriever,
)

BOTH = r"dimension 7.*\b16\b"


def index() -> VectorStoreIndex:
    return VectorStoreIndex(nodes(), embed_model=HashEmbedding())


def chroma() -> Any:
    chromadb = pytest.importorskip("chromadb")
    stores = pytest.importorskip("llama_index.vector_stores.chroma")
    collection = chromadb.EphemeralClient().get_or_create_collection("embeddings")
    store = stores.ChromaVectorStore(chroma_collection=collection)
    store.add([node.model_copy(update={"metadata": {}, "embedding": [0.5] * 16}) for node in nodes()])
    return store


def base(folder: Path) -> HybridVectorStore:
    store = HybridVectorStore.open(folder / "base", embed_model=HashEmbedder(16))
    VectorStoreIndex(
        nodes(), embed_model=HashEmbedding(), storage_context=StorageContext.from_defaults(vector_store=store)
    )
    return store


BM25, MODEL = BM25Retriever.from_nodes, HashEmbedding
RETRIEVERS: dict[str, Callable[[Path], PipelineRetriever]] = {
    "vectors in memory": lambda _: VectorRetriever.from_nodes(nodes(), MODEL()),
    "vectors of an index": lambda _: VectorRetriever(index()),
    "vectors of a store": lambda _: VectorRetriever(chroma(), MODEL()),
    "vectors of this package's store": lambda folder: VectorRetriever(base(folder), MODEL()),
    "hybrid in memory": lambda _: HybridRetriever.from_nodes(nodes(), MODEL()),
    "hybrid of an index": lambda _: HybridRetriever.from_index(index()),
    "hybrid of a store": lambda _: HybridRetriever(
        channels={"bm25": BM25(nodes()), "dense": chroma()}, embed_model=MODEL()
    ),
    "hybrid of a retriever": lambda _: HybridRetriever(
        channels={"bm25": BM25(nodes()), "dense": index().as_retriever()}
    ),
    "hybrid of a base": lambda folder: HybridRetriever(base(folder).client),
    "a pipeline": lambda _: PipelineRetriever(HybridRetriever.from_nodes(nodes(), MODEL()).pipeline),
}


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_an_embedding_of_another_dimension_is_refused(name: str, tmp_path: Path) -> None:
    retriever = RETRIEVERS[name](tmp_path)
    wrong, right = QueryBundle("pump", embedding=[0.5] * 7), QueryBundle("pump", embedding=[0.5] * 16)
    for search in (retriever.retrieve, retriever.search, lambda bundle: retriever.retrieve_many([bundle])):
        with pytest.raises(ConfigError, match=BOTH):
            search(wrong)
    for asearch in (retriever.aretrieve, retriever.asearch, lambda bundle: retriever.aretrieve_many([bundle])):
        with pytest.raises(ConfigError, match=BOTH):
            await asearch(wrong)
    assert retriever.retrieve(right)
    assert await retriever.aretrieve(right)


def test_a_store_refuses_it_too(tmp_path: Path) -> None:
    store = base(tmp_path)
    for mode in ("default", "hybrid"):
        with pytest.raises(ConfigError, match=BOTH):
            store.query(VectorStoreQuery([0.5] * 7, 4, query_str="pump", mode=mode))  # type: ignore[arg-type]


async def test_it_is_ignored_where_no_dimension_can_be_compared() -> None:
    bundle = QueryBundle("pump", embedding=[0.5] * 7)
    keywords = BM25(nodes())
    assert keywords.retrieve(bundle) == keywords.retrieve("pump") == await keywords.aretrieve(bundle)
    foreign = ListRetriever(scored(("a", 0.1)))
    assert HybridRetriever(channels={"bm25": keywords, "dense": foreign}).retrieve(bundle)
    assert foreign.asked[0].embedding == bundle.embedding


class Down(HashEmbedding):
    """A model that does not answer."""

    def _embed(self, text: str) -> list[float]:
        raise OSError("no route to the model")


async def test_a_model_that_fails_is_reported_by_its_channel() -> None:
    retriever = HybridRetriever(channels={"bm25": BM25(nodes()), "dense": chroma()}, embed_model=Down())
    bundle = QueryBundle("pump", embedding=[0.5] * 7)
    for result in (retriever.search(bundle), await retriever.asearch(bundle)):
        assert result.hits
        assert [failure.stage for failure in result.errors] == ["dense"]
