"""The linear combination of scores.

Fox, Shaw (1994), TREC-2, "Combination of multiple searches" (CombSUM). Lee (1997), SIGIR, "Analyses of multiple
evidence combination" (over min-max normalised scores). Montague, Aslam (2001), CIKM, for the other normalisations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from voicevault_retrievers.errors import unknown
from voicevault_retrievers.fusion.method import Column, Contributions, Evidence, at
from voicevault_retrievers.fusion.normalise import ScoreMethod, Scores, min_max, sum_to_one, zscore

NORMALISATIONS: Mapping[str, Callable[[Scores], Scores]] = {
    "none": lambda scores: scores,
    "min_max": min_max,
    "sum": sum_to_one,
    "zscore": zscore,
}


@dataclass(frozen=True)
class WeightedSum(ScoreMethod):
    """Each channel adds `weight * score`, with scores normalised over its list: "none", "min_max", "sum" or "zscore".

    For a chunk that it did not find, a channel adds 0, or its lowest normalised score where that is below 0 ("zscore",
    or "none" with negative scores), so that the chunk does not outrank the channel's last hit.
    """

    normalisation: str = "min_max"

    def __post_init__(self) -> None:
        if not isinstance(self.normalisation, str) or self.normalisation not in NORMALISATIONS:
            raise unknown("normalisation", self.normalisation, NORMALISATIONS)

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return {name: self._added(one, weights[name]) for name, one in found.items()}

    def _added(self, one: Evidence, weight: float) -> Column:
        scores = NORMALISATIONS[self.normalisation](one.listed)
        return weight * at(one, scores, float(scores.min(initial=0.0)))
