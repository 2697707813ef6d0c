"""Methods that go by scores, and what they all do where there are none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from voicevault_retrievers.fusion.method import Contributions, Evidence, Method
from voicevault_retrievers.fusion.rrf import RRF

BY_RANK = RRF()


class ScoreMethod(Method):
    """A method that goes by scores. Where any hit of any channel has none, all are fused by `RRF(60)`; a note says so.

    To mix the two would compare ranks with scores.
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
    # Hits without a score come last in a ranking, so its last one tells.
    return sorted(name for name, one in found.items() if len(one.places) and np.isnan(one.listed[-1]))
