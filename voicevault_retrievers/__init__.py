"""Hybrid retrieval for LangChain and LlamaIndex.

The core stands alone: channels (`BM25`, `VectorChannel`), `fuse`, stages joined by `>>`, `Pipeline`, `KnowledgeBase`.
`voicevault_retrievers.langchain` and `voicevault_retrievers.llama_index` hold the native classes over it. A name loads
what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voicevault_retrievers.answers import ContextBuilder, Turn, resolve_citations
    from voicevault_retrievers.answers.claims import acheck_claims, check_claims
    from voicevault_retrievers.answers.flare import Flare
    from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
    from voicevault_retrievers.core.explanation import provenance
    from voicevault_retrievers.core.leaf import LeafChannel, Match
    from voicevault_retrievers.core.stages import skippable
    from voicevault_retrievers.core.types import (
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
    from voicevault_retrievers.dense import VectorChannel
    from voicevault_retrievers.display import explain
    from voicevault_retrievers.fusion import (
        ISR,
        RRF,
        AdaptiveSum,
        Borda,
        CombMNZ,
        Convex,
        DistributionBased,
        WeightedSum,
        fuse,
    )
    from voicevault_retrievers.fusion.hybrid import hybrid_search
    from voicevault_retrievers.lexical import BM25, BM25F
    from voicevault_retrievers.models.generation import CallableTextModel
    from voicevault_retrievers.models.language import OllamaModel, OpenAIModel
    from voicevault_retrievers.pipeline.builder import compose
    from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
    from voicevault_retrievers.pipeline.pipeline import Pipeline
    from voicevault_retrievers.pipeline.presets import load_preset
    from voicevault_retrievers.pipeline.samples import shipped
    from voicevault_retrievers.query import (
        RM3,
        AcronymExpansion,
        CompoundExpansion,
        FollowUp,
        HyDE,
        ModelExpansion,
        ModelFollowUp,
        ModelRouter,
        Routes,
        RuleExpansion,
        RuleRouter,
        SpellingExpansion,
        SynonymExpansion,
        Together,
    )
    from voicevault_retrievers.rerank import (
        MMR,
        CrossEncoderRerank,
        LLMRerank,
        NearDuplicates,
        PageCap,
        RecencyRerank,
        RelevanceThreshold,
        WeightedRerank,
    )
    from voicevault_retrievers.store import Bases, KnowledgeBase, Source, TenantIndex, question_index, update_graph
    from voicevault_retrievers.structure import ContextWriter, ParentExpansion
    from voicevault_retrievers.structure.graph import EmbeddedGraph, GraphChannel, GraphExpansion
    from voicevault_retrievers.structure.questions import QuestionChannel
    from voicevault_retrievers.text import Analyzer

__version__ = "0.1.0"

__all__ = [
    "BM25",
    "BM25F",
    "ISR",
    "MMR",
    "RM3",
    "RRF",
    "AcronymExpansion",
    "AdaptiveSum",
    "Analyzer",
    "Bases",
    "Borda",
    "CallableTextModel",
    "Channel",
    "Chunk",
    "Citation",
    "CombMNZ",
    "CompoundExpansion",
    "Context",
    "ContextBuilder",
    "ContextWriter",
    "Convex",
    "CrossEncoderRerank",
    "DistributionBased",
    "EmbeddedGraph",
    "Expand",
    "Failure",
    "Flare",
    "FollowUp",
    "Fusion",
    "GraphChannel",
    "GraphExpansion",
    "Hit",
    "HyDE",
    "KnowledgeBase",
    "LLMRerank",
    "LeafChannel",
    "Match",
    "ModelExpansion",
    "ModelFollowUp",
    "ModelRouter",
    "NearDuplicates",
    "OllamaModel",
    "OpenAIModel",
    "PageCap",
    "ParentExpansion",
    "Pipeline",
    "Query",
    "QuestionChannel",
    "Ranking",
    "RecencyRerank",
    "RelevanceThreshold",
    "Rerank",
    "Result",
    "Rewriter",
    "Route",
    "Routes",
    "RuleExpansion",
    "RuleRouter",
    "Source",
    "SpellingExpansion",
    "Stage",
    "SynonymExpansion",
    "TenantIndex",
    "Together",
    "Turn",
    "Variant",
    "VectorChannel",
    "Vote",
    "WeightedRerank",
    "WeightedSum",
    "acheck_claims",
    "check_claims",
    "compose",
    "explain",
    "fuse",
    "hybrid_search",
    "load_preset",
    "provenance",
    "question_index",
    "resolve_citations",
    "shipped",
    "skippable",
    "update_graph",
]

_HOMES = {
    "AcronymExpansion": "query",
    "AdaptiveSum": "fusion",
    "Analyzer": "text",
    "BM25": "lexical",
    "BM25F": "lexical",
    "Bases": "store",
    "Borda": "fusion",
    "CallableTextModel": "models.generation",
    "Channel": "core.channel",
    "Chunk": "core.types",
    "Citation": "core.types",
    "CombMNZ": "fusion",
    "CompoundExpansion": "query",
    "Context": "core.types",
    "ContextBuilder": "answers",
    "ContextWriter": "structure",
    "Convex": "fusion",
    "CrossEncoderRerank": "rerank",
    "DistributionBased": "fusion",
    "EmbeddedGraph": "structure.graph",
    "Expand": "pipeline.options",
    "Failure": "core.types",
    "Flare": "answers.flare",
    "FollowUp": "query",
    "Fusion": "pipeline.options",
    "GraphChannel": "structure.graph",
    "GraphExpansion": "structure.graph",
    "Hit": "core.types",
    "HyDE": "query",
    "ISR": "fusion",
    "KnowledgeBase": "store",
    "LLMRerank": "rerank",
    "LeafChannel": "core.leaf",
    "MMR": "rerank",
    "Match": "core.leaf",
    "ModelExpansion": "query",
    "ModelFollowUp": "query",
    "ModelRouter": "query",
    "NearDuplicates": "rerank",
    "OllamaModel": "models.language",
    "OpenAIModel": "models.language",
    "PageCap": "rerank",
    "RelevanceThreshold": "rerank",
    "ParentExpansion": "structure",
    "Pipeline": "pipeline.pipeline",
    "Query": "core.types",
    "QuestionChannel": "structure.questions",
    "RM3": "query",
    "RRF": "fusion",
    "Ranking": "core.types",
    "RecencyRerank": "rerank",
    "Rerank": "pipeline.options",
    "Result": "core.types",
    "Rewriter": "core.channel",
    "Route": "core.types",
    "Routes": "query",
    "RuleExpansion": "query",
    "RuleRouter": "query",
    "Source": "store",
    "SpellingExpansion": "query",
    "Stage": "core.channel",
    "SynonymExpansion": "query",
    "TenantIndex": "store",
    "Together": "query",
    "Turn": "answers",
    "Variant": "core.types",
    "VectorChannel": "dense",
    "Vote": "core.types",
    "WeightedRerank": "rerank",
    "WeightedSum": "fusion",
    "acheck_claims": "answers.claims",
    "check_claims": "answers.claims",
    "compose": "pipeline.builder",
    "explain": "display",
    "fuse": "fusion",
    "hybrid_search": "fusion.hybrid",
    "load_preset": "pipeline.presets",
    "provenance": "core.explanation",
    "question_index": "store",
    "resolve_citations": "answers",
    "shipped": "pipeline.samples",
    "skippable": "core.stages",
    "update_graph": "store",
}


if not TYPE_CHECKING:  # a type checker sees the imports above, and so knows a name that is none

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
