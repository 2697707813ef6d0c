"""Native LangChain classes over the core: conversion and delegation, no retrieval logic.

The extra `agents` adds `RetrievalMiddleware`.
"""

from typing import TYPE_CHECKING, Any

from voicevault_retrievers._support.extras import require

if TYPE_CHECKING:
    from voicevault_retrievers.langchain.middleware import RetrievalMiddleware as RetrievalMiddleware

try:
    from voicevault_retrievers.langchain.bm25 import BM25Index, BM25Retriever
    from voicevault_retrievers.langchain.channels import RetrieverChannel, VectorStoreChannel, as_channel
    from voicevault_retrievers.langchain.compressors import (
        CrossEncoderReranker,
        LLMReranker,
        MMRFilter,
        NearDuplicateFilter,
        PageDiversityFilter,
        RecencyReranker,
        RelevanceFilter,
        WeightedReranker,
    )
    from voicevault_retrievers.langchain.context import (
        ContextBuilder,
        ContextReorder,
        content_blocks,
        resolve_citations,
    )
    from voicevault_retrievers.langchain.convert import chunk_of, document_of, flatten_provenance, remove_provenance
    from voicevault_retrievers.langchain.foreign_stages import skippable
    from voicevault_retrievers.langchain.index import HybridIndex
    from voicevault_retrievers.langchain.models import LangChainEmbedder, LocalEmbeddings
    from voicevault_retrievers.langchain.parents import ParentExpander
    from voicevault_retrievers.langchain.query import QueryExpander
    from voicevault_retrievers.langchain.retrievers import HybridRetriever, VectorRetriever
    from voicevault_retrievers.langchain.staged_retriever import StagedRetriever
    from voicevault_retrievers.langchain.tools import given_citations, retrieval_tool
    from voicevault_retrievers.langchain.vector_store import HybridStore
except ModuleNotFoundError:
    require("langchain_core", extra="langchain")
    raise

__all__ = [
    "BM25Index",
    "BM25Retriever",
    "ContextBuilder",
    "ContextReorder",
    "CrossEncoderReranker",
    "HybridIndex",
    "HybridRetriever",
    "HybridStore",
    "LLMReranker",
    "LangChainEmbedder",
    "LocalEmbeddings",
    "MMRFilter",
    "NearDuplicateFilter",
    "PageDiversityFilter",
    "ParentExpander",
    "QueryExpander",
    "RecencyReranker",
    "RelevanceFilter",
    "RetrieverChannel",
    "StagedRetriever",
    "VectorRetriever",
    "VectorStoreChannel",
    "WeightedReranker",
    "as_channel",
    "chunk_of",
    "content_blocks",
    "document_of",
    "flatten_provenance",
    "given_citations",
    "remove_provenance",
    "resolve_citations",
    "retrieval_tool",
    "skippable",
]


if not TYPE_CHECKING:  # a type checker sees the import above

    def __getattr__(name: str) -> Any:
        """Import `RetrievalMiddleware` on first access: it alone needs the extra `agents`."""
        if name != "RetrievalMiddleware":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from voicevault_retrievers.langchain.middleware import RetrievalMiddleware

        return RetrievalMiddleware
