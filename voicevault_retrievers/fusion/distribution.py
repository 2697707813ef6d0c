"""Distribution-based score fusion. Mazzeschi (2023), "Distribution-based score fusion"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.fusion.method import Contributions, Evidence
from voicevault_retrievers.fusion.normalise import zscore
from voicevault_retrievers.fusion.scored import ScoreMethod


@dataclass(frozen=True)
class DistributionBased(ScoreMethod):
    """Each channel adds `weight * score`, of scores brought from 3 deviations below its list's mean to 3 above.

    These become 0 and 1, and what is beyond them too. One hit, or equal scores, are the mean: 1/2. The deviation is
    over n, as in LlamaIndex; in Qdrant it is over n - 1.
    """

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return {
            name: {
                chunk_id: weights[name] * min(max(0.5 + z / 6, 0.0), 1.0)
                for chunk_id, z in zscore(evidence.listed).items()
            }
            for name, evidence in found.items()
        }
