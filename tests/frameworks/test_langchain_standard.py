"""LangChain's own suites for retrievers and for document indexes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import DocumentIndex
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite

from tests.frameworks.langchain_parts import by_length
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain
from voicevault_retrievers.core.types import Hit
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import ExactVectors
from voicevault_retrievers.langchain import (
    BM25Index,
    BM25Retriever,
    HybridIndex,
    HybridRetriever,
    PageDiversityFilter,
    StagedRetriever,
    VectorRetriever,
    chunk_of,
    document_of,
)
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.options import Rerank
from voicevault_retrievers.rerank import CallableScorer

CHUNKS = [chunk_of(Document(f"pump {word}", id=word)) for word in ("valve", "motor", "seal", "filter", "hose")]


class Standard(RetrieversIntegrationTests):
    kind: type[BaseRetriever]

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return self.kind

    @property
    def retriever_query_example(self) -> str:
        return "pump"


class TestBM25Retriever(Standard):
    kind = BM25Retriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"bm25": BM25.from_chunks(CHUNKS)}


class TestVectorRetriever(Standard):
    kind = VectorRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": ExactVectors.build(CHUNKS, HashEmbedder()), "embeddings": HashEmbedder()}


class TestHybridRetriever(Standard):
    kind = HybridRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        dense = VectorChannel.from_chunks(CHUNKS, HashEmbedder())
        return {"channels": {"bm25": BM25.from_chunks(CHUNKS), "dense": dense}}


class TestBM25IndexRetriever(Standard):
    kind = BM25Index

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"bm25": BM25.from_chunks(CHUNKS)}


class TestStagedRetriever(Standard):
    kind = StagedRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        store.add_documents([document_of(Hit(chunk)) for chunk in CHUNKS])
        return {"retriever": store.as_retriever(), "stages": [PageDiversityFilter()]}


class TestHybridRetrieverOfEverything(TestHybridRetriever):
    """Expanded, reranked, capped, over a vector store too."""

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        store.add_documents([document_of(Hit(chunk)) for chunk in CHUNKS])
        channels = {**super().retriever_constructor_params["channels"], "store": store}
        scorer = CallableScorer(by_length, name="by length")
        return {"channels": channels, "expansion": True, "rerank": Rerank(scorer, max_chunks_per_page=1)}


class TestBM25Index(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self) -> DocumentIndex:
        return BM25Index()


class TestBM25IndexAsync(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self) -> DocumentIndex:
        return BM25Index()


def test_every_retriever_class_has_the_suite() -> None:
    tested = {value.kind for value in _suites()}
    offered = {
        value
        for name in langchain.__all__
        if isinstance(value := getattr(langchain, name), type) and issubclass(value, BaseRetriever)
    }
    assert offered - tested == {HybridIndex}  # in test_langchain_index, with its folder


def _suites() -> list[Any]:
    return [
        value
        for value in globals().values()
        if isinstance(value, type) and issubclass(value, Standard) and value is not Standard
    ]
