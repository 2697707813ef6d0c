"""Hybrid retrieval for LangChain and LlamaIndex.

The core stands alone: channels (`BM25`, `VectorChannel`), `fuse`, stages joined by `>>`, `Pipeline`, `KnowledgeBase`.
`voicevault_retrievers.langchain` and `voicevault_retrievers.llama_index` hold the native classes over it.
"""

from voicevault_retrievers.channel import Channel, Leaf, Match, Rewriter, Stage
from voicevault_retrievers.context import ContextBuilder, Turn, resolve_citations
from voicevault_retrievers.dense import VectorChannel
from voicevault_retrievers.diversity import PageCap
from voicevault_retrievers.explain import explain, provenance
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline import Pipeline, compose
from voicevault_retrievers.presets import load_preset
from voicevault_retrievers.query import RuleExpansion
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.types import (
    Chunk,
    Citation,
    Context,
    Failure,
    Hit,
    Query,
    Ranking,
    Result,
    Route,
    Variant,
    Vote,
)

__version__ = "0.1.0"

__all__ = [
    "BM25",
    "RRF",
    "Analyzer",
    "Bases",
    "Channel",
    "Chunk",
    "Citation",
    "Context",
    "ContextBuilder",
    "CrossEncoderRerank",
    "Failure",
    "Hit",
    "KnowledgeBase",
    "Leaf",
    "Match",
    "PageCap",
    "Pipeline",
    "Query",
    "Ranking",
    "Result",
    "Rewriter",
    "Route",
    "RuleExpansion",
    "Stage",
    "Turn",
    "Variant",
    "VectorChannel",
    "Vote",
    "compose",
    "explain",
    "fuse",
    "load_preset",
    "provenance",
    "resolve_citations",
]
