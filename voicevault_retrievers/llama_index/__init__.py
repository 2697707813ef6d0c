"""Native LlamaIndex classes over the core: conversion and delegation, no retrieval logic."""

from voicevault_retrievers._support.extras import require

try:
    from voicevault_retrievers.llama_index.base import PipelineRetriever
    from voicevault_retrievers.llama_index.bm25 import BM25Retriever
    from voicevault_retrievers.llama_index.channels import RetrieverChannel, as_channel
    from voicevault_retrievers.llama_index.citations import CitationPostprocessor, citations_of, resolve_citations
    from voicevault_retrievers.llama_index.convert import NodeWithProvenance, provenance
    from voicevault_retrievers.llama_index.events import SearchDegradedEvent, SearchStepEndEvent, SearchStepStartEvent
    from voicevault_retrievers.llama_index.filters import filter_of
    from voicevault_retrievers.llama_index.foreign_stages import skippable
    from voicevault_retrievers.llama_index.hybrid import HybridRetriever
    from voicevault_retrievers.llama_index.models import LlamaIndexEmbedder
    from voicevault_retrievers.llama_index.parents import ParentExpansionPostprocessor, SentenceWindowPostprocessor
    from voicevault_retrievers.llama_index.postprocessors import CrossEncoderRerank, PageDiversityPostprocessor
    from voicevault_retrievers.llama_index.query import QueryExpander
    from voicevault_retrievers.llama_index.query_engine import CitedQueryEngine
    from voicevault_retrievers.llama_index.rerankers import (
        LLMRerank,
        MMRPostprocessor,
        NearDuplicatePostprocessor,
        RecencyPostprocessor,
        RelevancePostprocessor,
        WeightedRerank,
    )
    from voicevault_retrievers.llama_index.retrievers import VectorRetriever
    from voicevault_retrievers.llama_index.store_channels import VectorStoreChannel
    from voicevault_retrievers.llama_index.synthesis import CitedSynthesizer, cite_prompts
    from voicevault_retrievers.llama_index.tools import RetrievalTool, conversation_citations, given_citations
    from voicevault_retrievers.llama_index.vector_store import HybridVectorStore
except ModuleNotFoundError:
    require("llama_index.core", extra="llama-index")
    raise

__all__ = [
    "BM25Retriever",
    "CitationPostprocessor",
    "CitedQueryEngine",
    "CitedSynthesizer",
    "CrossEncoderRerank",
    "HybridRetriever",
    "HybridVectorStore",
    "LLMRerank",
    "LlamaIndexEmbedder",
    "MMRPostprocessor",
    "NearDuplicatePostprocessor",
    "NodeWithProvenance",
    "PageDiversityPostprocessor",
    "ParentExpansionPostprocessor",
    "PipelineRetriever",
    "QueryExpander",
    "RecencyPostprocessor",
    "RelevancePostprocessor",
    "RetrievalTool",
    "RetrieverChannel",
    "SearchDegradedEvent",
    "SearchStepEndEvent",
    "SearchStepStartEvent",
    "SentenceWindowPostprocessor",
    "VectorRetriever",
    "VectorStoreChannel",
    "WeightedRerank",
    "as_channel",
    "citations_of",
    "cite_prompts",
    "conversation_citations",
    "filter_of",
    "given_citations",
    "provenance",
    "resolve_citations",
    "skippable",
]
