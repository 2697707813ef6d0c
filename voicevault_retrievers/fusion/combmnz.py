"""CombMNZ. Fox, Shaw (1994), TREC-2, "Combination of multiple searches"; Lee (1997), SIGIR, for the normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Contributions, Evidence, at, finders
from voicevault_retrievers.fusion.normalise import ScoreMethod, min_max


@dataclass(frozen=True)
class CombMNZ(ScoreMethod):
    """Each channel adds `n * weight * score`, with scores min-max normalised over its list.

    n is the number of channels that found the chunk, so the sum is n times that of `WeightedSum`.
    """

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        n = finders(found)
        return {name: at(one, n[one.places] * weights[name] * min_max(one.listed)) for name, one in found.items()}
