"""Measuring retrieval on judged questions."""

from voicevault_retrievers.evaluation.judged import Judged, evaluate, load_judged, place_of
from voicevault_retrievers.evaluation.metrics import ndcg, recall

__all__ = ["Judged", "evaluate", "load_judged", "ndcg", "place_of", "recall"]
