"""Distribution-based score fusion. Mazzeschi (2023), "Distribution-based score fusion"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from voicevault_retrievers.fusion.method import Contributions, Evidence, at
from voicevault_retrievers.fusion.normalise import ScoreMethod, zscore


@dataclass(frozen=True)
class DistributionBased(ScoreMethod):
    """Each channel adds `weight * score`, with scores scaled from 3 deviations below its list's mean to 3 above.

    These bounds become 0 and 1, and scores beyond them are clipped. A single hit, or equal scores, get 1/2. The
    standard deviation is over n, as in LlamaIndex; Qdrant divides by n - 1.
    """

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        return {
            name: at(one, weights[name] * np.clip(0.5 + zscore(one.listed) / 6, 0.0, 1.0))
            for name, one in found.items()
        }
