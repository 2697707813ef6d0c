"""Native LlamaIndex classes over the core: conversion and delegation, no retrieval logic."""

from voicevault_retrievers.extras import require

try:
    from voicevault_retrievers.llama_index.base import PipelineRetriever
    from voicevault_retrievers.llama_index.bm25 import BM25Retriever
    from voicevault_retrievers.llama_index.channels import as_channel
    from voicevault_retrievers.llama_index.embedder import LlamaIndexEmbedder
    from voicevault_retrievers.llama_index.hybrid import HybridRetriever
    from voicevault_retrievers.llama_index.node import NodeWithProvenance, provenance
    from voicevault_retrievers.llama_index.postprocessors import CrossEncoderRerank, PageDiversityPostprocessor
    from voicevault_retrievers.llama_index.retrievers import VectorRetriever
    from voicevault_retrievers.llama_index.vector_store import HybridVectorStore
except ModuleNotFoundError:
    require("llama_index.core", extra="llama-index")
    raise

__all__ = [
    "BM25Retriever",
    "CrossEncoderRerank",
    "HybridRetriever",
    "HybridVectorStore",
    "LlamaIndexEmbedder",
    "NodeWithProvenance",
    "PageDiversityPostprocessor",
    "PipelineRetriever",
    "VectorRetriever",
    "as_channel",
    "provenance",
]
