"""Stages that refine a ranking: rerankers, caps by page, diversity."""

from voicevault_retrievers.models.weights import PROFILES
from voicevault_retrievers.rerank.calibration import (
    CALIBRATIONS,
    MATCHED,
    Calibration,
    MatchedShare,
    Threshold,
    brier_score,
    calibration_error,
    fit_calibration,
)
from voicevault_retrievers.rerank.cross_encoder import CrossEncoderRerank, rank_passages
from voicevault_retrievers.rerank.grouping import GroupBy, Grouped
from voicevault_retrievers.rerank.likeness import Cosines, Likeness, Shingles
from voicevault_retrievers.rerank.llm import LLMRerank
from voicevault_retrievers.rerank.max_sim import MaxSimRerank, TokenEmbedder, max_sim
from voicevault_retrievers.rerank.mmr import MMR
from voicevault_retrievers.rerank.near_duplicates import NearDuplicates
from voicevault_retrievers.rerank.page_cap import PageCap
from voicevault_retrievers.rerank.recency import RecencyRerank
from voicevault_retrievers.rerank.relevance import CalibratedRelevance, RelevanceThreshold
from voicevault_retrievers.rerank.scorers import (
    CallableScorer,
    OnnxScorer,
    OpenVinoScorer,
    SentenceTransformerScorer,
    load_scorer,
    shared_scorer,
)
from voicevault_retrievers.rerank.weighted import WeightedRerank
from voicevault_retrievers.rerank.windows import WindowSelector, best_window

__all__ = [
    "CALIBRATIONS",
    "MATCHED",
    "MMR",
    "PROFILES",
    "CalibratedRelevance",
    "Calibration",
    "CallableScorer",
    "Cosines",
    "CrossEncoderRerank",
    "GroupBy",
    "Grouped",
    "LLMRerank",
    "Likeness",
    "MatchedShare",
    "MaxSimRerank",
    "NearDuplicates",
    "OnnxScorer",
    "OpenVinoScorer",
    "PageCap",
    "RecencyRerank",
    "RelevanceThreshold",
    "SentenceTransformerScorer",
    "Shingles",
    "Threshold",
    "TokenEmbedder",
    "WeightedRerank",
    "WindowSelector",
    "best_window",
    "brier_score",
    "calibration_error",
    "fit_calibration",
    "load_scorer",
    "max_sim",
    "rank_passages",
    "shared_scorer",
]
