"""The convex combination. Bruch, Gai, Ingber (2023), TOIS, "An analysis of fusion functions for hybrid retrieval".

This is the paper's TM2C2: scores are scaled from the theoretical minimum, which becomes 0, to the list's highest score,
which becomes 1. The fused score is `alpha * semantic + (1 - alpha) * lexical`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from voicevault_retrievers._support.checks import flag, number
from voicevault_retrievers.core.types import ChannelKind
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.method import Column, Contributions, Evidence
from voicevault_retrievers.fusion.normalise import ScoreMethod, between

LOWEST: Mapping[ChannelKind, float] = {"semantic": -1.0}
"""The theoretical minimum of a score: -1 for a cosine, 0 for BM25 and every other kind."""


@dataclass(frozen=True)
class Convex(ScoreMethod):
    """Each channel adds `share * weight * score`, with scores in [0, 1].

    `alpha`, in [0, 1], is the share of the semantic channels, and 1 - alpha that of all others. Channels of the same
    side split its share evenly; where only one side found anything, it has the whole. Weights multiply the share; with
    an alpha of None there are only weights. A score below the theoretical minimum replaces the minimum.

    With `exact`, a channel also scores the chunks that only others found, at most as high as its own last hit. A
    channel without exact scores, or any channel without `exact`, adds 0 for these chunks, as for the theoretical
    minimum.
    """

    alpha: float | None = 0.5
    exact: bool = True

    def __post_init__(self) -> None:
        if self.alpha is not None and number("alpha", self.alpha) > 1:
            raise ConfigError(f"alpha is between 0 and 1, or None, not {self.alpha!r}")
        flag("exact", self.exact)

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        shares = self._shares(found)
        return {name: shares[name] * weights[name] * _normalised(one) for name, one in found.items()}

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        blind = sorted(name for name, one in found.items() if one.lacks)
        said = super().notes(found)
        if said or not blind or not self.exact:
            return said
        return (f"no exact scores of {', '.join(blind)}: what only others found counts as the lowest there",)

    def _shares(self, found: Mapping[str, Evidence]) -> dict[str, float]:
        semantic = {name: evidence.kind == "semantic" for name, evidence in found.items()}
        sides = Counter(semantic[name] for name, evidence in found.items() if len(evidence.places))
        if self.alpha is None:
            return dict.fromkeys(found, 1.0)
        whole = {True: self.alpha, False: 1 - self.alpha} if len(sides) == 2 else {True: 1.0, False: 1.0}
        return {name: whole[side] / max(sides[side], 1) for name, side in semantic.items()}


def _normalised(one: Evidence) -> Column:
    if not len(one.places):
        return np.zeros(len(one.scores))
    last, highest = float(one.listed.min()), float(one.listed.max())
    scores = np.minimum(one.scores, last)
    scores[one.places] = one.listed
    lowest = min(LOWEST.get(one.kind, 0.0), float(np.nanmin(scores)))
    return np.where(np.isnan(scores), 0.0, between(scores, lowest, highest))
