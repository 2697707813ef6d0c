"""Reranking: a closer look at the first hits."""

from voicevault_retrievers.rerank.cross_encoder import CrossEncoderRerank, rank_passages
from voicevault_retrievers.rerank.scorers import CallableScorer, OnnxScorer, SentenceTransformerScorer, load_scorer

__all__ = [
    "CallableScorer",
    "CrossEncoderRerank",
    "OnnxScorer",
    "SentenceTransformerScorer",
    "load_scorer",
    "rank_passages",
]
