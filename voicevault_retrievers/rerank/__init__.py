"""Reranking: a closer look at the first hits."""

from voicevault_retrievers.rerank.cross_encoder import CrossEncoderRerank, rank_passages
from voicevault_retrievers.rerank.llm import LLMRerank
from voicevault_retrievers.rerank.recency import RecencyRerank
from voicevault_retrievers.rerank.scorers import CallableScorer, OnnxScorer, SentenceTransformerScorer, load_scorer
from voicevault_retrievers.rerank.weighted import WeightedRerank

__all__ = [
    "CallableScorer",
    "CrossEncoderRerank",
    "LLMRerank",
    "OnnxScorer",
    "RecencyRerank",
    "SentenceTransformerScorer",
    "WeightedRerank",
    "load_scorer",
    "rank_passages",
]
