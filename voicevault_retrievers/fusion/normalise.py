"""The basis of methods that use scores: normalisations, and the fallback where hits have no scores.

All normalisations take and return scores of shape (n,), higher is better, and do not depend on the order of the list. A
positive factor on all scores, or (except for `between`) a constant added to all, changes only rounding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.fusion.method import Contributions, Evidence, Method
from voicevault_retrievers.fusion.rrf import RRF

Scores = NDArray[np.float64]


def between(scores: Scores, low: float, high: float) -> Scores:
    """`(score - low) / (high - low)`; 1 where the two are equal, as each score is then the highest."""
    low, high = low / 2, high / 2  # halving is exact, and a difference of halves cannot overflow
    if high == low:
        return np.ones(len(scores))
    return (scores / 2 - low) / (high - low)


def min_max(scores: Scores) -> Scores:
    """Scaled from 0 for the lowest to 1 for the highest (the paper's "Standard"); 1 for one score, or equal ones."""
    return between(scores, float(scores.min()), float(scores.max())) if len(scores) else scores


def sum_to_one(scores: Scores) -> Scores:
    """Scores shifted so that the lowest is 0, with a sum of 1 (the paper's "Sum"); equal scores have equal shares."""
    shifted = min_max(scores)
    return shifted / math.fsum(shifted.tolist()) if len(scores) else scores


def zscore(scores: Scores) -> Scores:
    """Mean 0 and standard deviation 1 (the paper's "ZMUV", over n and not n - 1); 0 for one score, or equal ones."""
    shifted = min_max(scores)  # gives the same result, and neither sums nor squares overflow
    if not len(shifted):
        return shifted
    centred = shifted - math.fsum(shifted.tolist()) / len(shifted)
    sd = math.sqrt(math.fsum((centred * centred).tolist()) / len(centred))
    return centred / sd if sd else centred


BY_RANK = RRF()


class ScoreMethod(Method):
    """A method that uses scores. Where any hit of any channel has none, `RRF(60)` fuses all channels; a note says so.

    A mixture would compare ranks with scores.
    """

    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return BY_RANK.contributions(found, weights) if _unscored(found) else self.scored(found, weights)

    @abstractmethod
    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        """`contributions`, where every hit has a score."""

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        names = ", ".join(_unscored(found))
        return (f"hits of {names} have no score, so all channels are fused by {BY_RANK!r}",) if names else ()


def _unscored(found: Mapping[str, Evidence]) -> list[str]:
    # Hits without a score come last in a ranking, so its last hit decides.
    return sorted(name for name, one in found.items() if len(one.places) and np.isnan(one.listed[-1]))
