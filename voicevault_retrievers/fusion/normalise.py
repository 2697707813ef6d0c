"""A list's scores on one scale. Montague, Aslam (2001), CIKM, "Relevance score normalization for metasearch".

All take and give scores by chunk id, higher is better, and do not depend on the order of the list. A positive factor on
all scores, or (but for `between`) a number added to all, changes nothing but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def between(scores: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """`(score - low) / (high - low)`; 1 where the two are equal, since each score is then the highest."""
    low, high = low / 2, high / 2  # halves are exact, and no difference of them overflows
    if high == low:
        return dict.fromkeys(scores, 1.0)
    return {chunk_id: (score / 2 - low) / (high - low) for chunk_id, score in scores.items()}


def min_max(scores: Mapping[str, float]) -> dict[str, float]:
    """From 0 for the lowest to 1 for the highest (the paper's "Standard"); 1 for one score, or equal ones."""
    return between(scores, min(scores.values()), max(scores.values())) if scores else {}


def sum_to_one(scores: Mapping[str, float]) -> dict[str, float]:
    """From 0 for the lowest, all of them 1 together (the paper's "Sum"); equal shares for equal scores."""
    shifted = min_max(scores)
    total = math.fsum(shifted.values())
    return {chunk_id: score / total for chunk_id, score in shifted.items()}


def zscore(scores: Mapping[str, float]) -> dict[str, float]:
    """Mean 0 and deviation 1 (the paper's "ZMUV", over n and not n - 1); 0 for one score, or equal ones."""
    shifted = min_max(scores)  # the result is the same, and neither a sum nor a square overflows
    if not shifted:
        return {}
    mean = math.fsum(shifted.values()) / len(shifted)
    centred = {chunk_id: score - mean for chunk_id, score in shifted.items()}
    sd = math.sqrt(math.fsum([score * score for score in centred.values()]) / len(centred))
    return {chunk_id: score / sd for chunk_id, score in centred.items()} if sd else centred
