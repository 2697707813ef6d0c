"""CombMNZ. Fox, Shaw (1994), TREC-2, "Combination of multiple searches"; Lee (1997), SIGIR, for the normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Contributions, Evidence, all_ids
from voicevault_retrievers.fusion.normalise import min_max
from voicevault_retrievers.fusion.scored import ScoreMethod


@dataclass(frozen=True)
class CombMNZ(ScoreMethod):
    """Each channel adds `n * weight * score`, of scores min-max normalised over its list.

    n is the number of channels that found the chunk, so the sum is n times that of `WeightedSum`.
    """

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        n = all_ids(found)
        return {
            name: {chunk_id: n[chunk_id] * weights[name] * s for chunk_id, s in min_max(evidence.listed).items()}
            for name, evidence in found.items()
        }
