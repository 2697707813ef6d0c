"""Reciprocal Rank Fusion. Cormack, Clarke, Büttcher (2009), SIGIR, "Reciprocal rank fusion outperforms Condorcet"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voicevault_retrievers.checks import number
from voicevault_retrievers.types import Ranking


@dataclass(frozen=True)
class RRF:
    """Each channel adds `weight / (k + rank)`, rank from 1; scores and their scales play no part."""

    k: float = 60

    def __post_init__(self) -> None:
        number("RRF's k", self.k)

    def contributions(
        self, rankings: Mapping[str, Ranking], weights: Mapping[str, float]
    ) -> dict[str, dict[str, float]]:
        """For each channel, what it adds to the fused score of each chunk that it found."""
        return {
            name: {hit.chunk.id: weights[name] / (self.k + rank) for rank, hit in enumerate(ranking, 1)}
            for name, ranking in rankings.items()
        }
