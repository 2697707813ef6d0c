"""Reranking: a closer look at the first hits."""

from voicevault_retrievers.dense.weights import PROFILES
from voicevault_retrievers.rerank.calibration import (
    CALIBRATIONS,
    Calibration,
    Threshold,
    brier_score,
    calibration_error,
    fit_calibration,
)
from voicevault_retrievers.rerank.cross_encoder import CrossEncoderRerank, rank_passages
from voicevault_retrievers.rerank.llm import LLMRerank
from voicevault_retrievers.rerank.matched import MATCHED, MatchedShare
from voicevault_retrievers.rerank.max_sim import MaxSimRerank, TokenEmbedder, max_sim
from voicevault_retrievers.rerank.recency import RecencyRerank
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
    "PROFILES",
    "Calibration",
    "CallableScorer",
    "CrossEncoderRerank",
    "LLMRerank",
    "MatchedShare",
    "MaxSimRerank",
    "OnnxScorer",
    "OpenVinoScorer",
    "RecencyRerank",
    "SentenceTransformerScorer",
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
