"""What a fusion method is, and what it has to go by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from voicevault_retrievers.types import ChannelKind, Ranking

Contributions: TypeAlias = Mapping[str, Mapping[str, float]]
"""For each channel, chunk ids and what it adds to the fused score of each."""


@dataclass(frozen=True)
class Evidence:
    """What one channel says for one query.

    `ranking` is what it found. The others are there where the method is `exact` and the channel can tell: the exact
    score of every hit of any channel (one that it lacks has none), and the share of the query's terms that some chunk
    has, in [0, 1].
    """

    ranking: Ranking
    kind: ChannelKind = "hybrid"
    scores: Mapping[str, float] | None = None
    coverage: float | None = None

    @cached_property
    def listed(self) -> Mapping[str, float]:
        """The scores of its hits, best first; those that have none are left out."""
        pairs = zip(self.ranking.ids, self.ranking.scores, strict=True)
        return {chunk_id: score for chunk_id, score in pairs if score is not None}


class Method(ABC):
    """How rankings become one: what each channel adds to the fused score of each chunk.

    A method that is `exact` goes by the exact scores of all hits in all channels: the channels are asked for them.
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
