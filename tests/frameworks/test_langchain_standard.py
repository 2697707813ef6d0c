"""LangChain's own suite for retrievers."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from tests.helpers import HashEmbedder
from voicevault_retrievers.dense.exact import ExactVectors, VectorChannel
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, VectorRetriever, chunk_of
from voicevault_retrievers.lexical import BM25

CHUNKS = [chunk_of(Document(f"pump {word}", id=word)) for word in ("valve", "motor", "seal", "filter", "hose")]


class Standard(RetrieversIntegrationTests):
    @property
    def retriever_query_example(self) -> str:
        return "pump"


class TestBM25Retriever(Standard):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return BM25Retriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"bm25": BM25.from_chunks(CHUNKS)}


class TestVectorRetriever(Standard):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return VectorRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": ExactVectors.build(CHUNKS, HashEmbedder()), "embeddings": HashEmbedder()}


class TestHybridRetriever(Standard):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return HybridRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        dense = VectorChannel.from_chunks(CHUNKS, HashEmbedder())
        return {"channels": {"bm25": BM25.from_chunks(CHUNKS), "dense": dense}}
