"""Over a framework's store the default fusion has scores, also where the store gives none, or of another scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core.schema import TextNode

from tests.frameworks.langchain_parts import Hashed
from tests.frameworks.llama_index_parts import HashEmbedding
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.core.types import Result

TEXTS = {f"t{at}": f"the pump of harbour number {at} has {at * at} valves" for at in range(12)}
QUESTION = "harbour valves 9"


class Counted(Hashed):
    """Counts the texts that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(len(texts))
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return super().embed_documents([text])[0]


class Bare(VectorStore):
    """A store that finds documents and gives no scores."""

    def __init__(self, inner: InMemoryVectorStore, embeddings: Embeddings | None) -> None:
        self.inner = inner
        self._embeddings = embeddings

    @property
    def embeddings(self) -> Embeddings | None:
        return self._embeddings

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return self.inner.similarity_search(query, k)

    @classmethod
    def from_texts(cls, texts: Iterable[str], *args: Any, **kwargs: Any) -> Bare:
        raise NotImplementedError


def documents() -> list[Document]:
    return [Document(text, id=name) for name, text in TEXTS.items()]


def searched(store: Any) -> Result:
    channels = {"bm25": langchain.BM25Retriever.from_documents(documents()), "dense": store}
    return langchain.HybridRetriever(channels=channels).search(QUESTION, 5)


def order(result: Result) -> list[tuple[str, float]]:
    return [(hit.id, round(hit.score or 0.0, 6)) for hit in result.hits]


def test_a_plain_retriever_of_a_store_is_fused_by_scores_as_the_store_is() -> None:
    store = InMemoryVectorStore.from_documents(documents(), Hashed())
    expected = searched(store)
    assert not [failure for failure in expected.errors if "no score" in failure.message]
    assert order(searched(store.as_retriever(search_kwargs={"k": 100}))) == order(expected)


def test_the_k_and_filter_of_a_plain_retriever_hold() -> None:
    store = InMemoryVectorStore.from_documents(documents(), Hashed())
    own = {"k": 3, "filter": lambda document: document.id > "t2"}
    found = langchain.as_channel(store.as_retriever(search_kwargs=own)).search(QUESTION, 10)
    assert len(found) == 3
    assert {hit.id for hit in found if hit.id <= "t2"} == set()
    assert None not in {hit.score for hit in found}


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_a_store_without_scores_is_compared_by_its_embeddings_in_one_batch_and_once(run: str) -> None:
    embeddings = Counted()
    inner = InMemoryVectorStore.from_documents(documents(), Hashed())
    channel = langchain.as_channel(Bare(inner, embeddings))

    async def search() -> Any:
        return channel.search(QUESTION, 10) if run == "sync" else await channel.asearch(QUESTION, 10)

    found = await search()
    assert embeddings.batches == [10]
    exact = langchain.as_channel(inner).search(QUESTION, 10)
    assert found.ids == exact.ids
    assert np.allclose([hit.score for hit in found], [hit.score for hit in exact])
    await search()
    assert embeddings.batches == [10]


def test_a_store_without_scores_and_embeddings_is_fused_by_ranks_and_says_so() -> None:
    inner = InMemoryVectorStore.from_documents(documents(), Hashed())
    result = searched(Bare(inner, None))
    assert [failure.message for failure in result.errors] == [
        "hits of dense have no score, so all channels are fused by RRF(k=60)"
    ]


@pytest.mark.parametrize("space", ["l2", "cosine", "ip"])
def test_chroma_in_llama_index_gives_cosines(space: str) -> None:
    chromadb, chroma = map(pytest.importorskip, ("chromadb", "llama_index.vector_stores.chroma"))
    collection = chromadb.EphemeralClient().create_collection(
        f"scores-{space}", configuration={"hnsw": {"space": space}}
    )
    embeddings = Hashed()
    nodes = [
        TextNode(id_=name, text=text, embedding=embeddings.embed_documents([text])[0]) for name, text in TEXTS.items()
    ]
    store = chroma.ChromaVectorStore(chroma_collection=collection)
    store.add(nodes)
    found = llama_index.as_channel(store, embed_model=HashEmbedding()).search(QUESTION, 12)
    asked = np.array(embeddings.embed_query(QUESTION))
    cosines = {node.node_id: float(np.dot(node.embedding or [], asked)) for node in nodes}
    assert len(found) == 12
    for hit in found:
        assert hit.score == pytest.approx(cosines[hit.id], abs=1e-5)
