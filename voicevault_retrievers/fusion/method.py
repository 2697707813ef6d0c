"""What a fusion method is, and what it has to go by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from voicevault_retrievers.alike import Alike
from voicevault_retrievers.types import ChannelKind, Ranking, Spread

Contributions: TypeAlias = Mapping[str, Mapping[str, float]]
"""For each channel, chunk ids and what it adds to the fused score of each."""


@dataclass(frozen=True)
class Evidence:
    """What one channel says for one query.

    `ranking` is what it found. The others are there where the method is `exact` and the channel can tell: the exact
    score of every hit of any channel (one that it lacks has none), how its scores are distributed over what matches,
    how alike it finds a sample of the chunks in their languages, and the ids of some of all chunks that match.
    """

    ranking: Ranking
    kind: ChannelKind = "hybrid"
    scores: Mapping[str, float] | None = None
    spread: Spread | None = None
    alike: Alike | None = None
    sample: tuple[str, ...] | None = None

    @property
    def listed(self) -> dict[str, float]:
        """The scores of its hits, best first; those that have none are left out."""
        return {hit.chunk.id: hit.score for hit in self.ranking if hit.score is not None}


class Method(ABC):
    """How rankings become one: what each channel adds to the fused score of each chunk.

    A method that is `exact` goes by the exact scores of all hits in all channels and by how these are distributed: the
    channels are asked for both.
    """

    exact = False

    @abstractmethod
    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        """What each channel adds, for every hit of its ranking at least; finite numbers, higher is better."""

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        """What it could not go by, and what it did instead."""
        return ()


def all_ids(found: Mapping[str, Evidence]) -> Counter[str]:
    """The ids of all hits, and how many channels found each."""
    return Counter(chunk_id for evidence in found.values() for chunk_id in evidence.ranking.ids)
