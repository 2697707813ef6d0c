"""Native LangChain classes over the core: conversion and delegation, no retrieval logic."""

from voicevault_retrievers.extras import require

try:
    from voicevault_retrievers.langchain.bm25 import BM25Retriever
    from voicevault_retrievers.langchain.channels import RetrieverChannel, VectorStoreChannel, as_channel
    from voicevault_retrievers.langchain.compressors import CrossEncoderReranker, PageDiversityFilter
    from voicevault_retrievers.langchain.convert import chunk_of, document_of
    from voicevault_retrievers.langchain.embedder import LangChainEmbedder
    from voicevault_retrievers.langchain.index import HybridIndex
    from voicevault_retrievers.langchain.retrievers import HybridRetriever, VectorRetriever
except ModuleNotFoundError:
    require("langchain_core", extra="langchain")
    raise

__all__ = [
    "BM25Retriever",
    "CrossEncoderReranker",
    "HybridIndex",
    "HybridRetriever",
    "LangChainEmbedder",
    "PageDiversityFilter",
    "RetrieverChannel",
    "VectorRetriever",
    "VectorStoreChannel",
    "as_channel",
    "chunk_of",
    "document_of",
]
