"""Measuring retrieval on judged questions."""

from voicevault_retrievers.evaluation.metrics import ndcg, recall

__all__ = ["ndcg", "recall"]
