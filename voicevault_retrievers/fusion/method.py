"""What a fusion method is, and what it has to go by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.types import ChannelKind, Ranking

Column: TypeAlias = NDArray[np.float64]
"""A number for each chunk of a pool."""
Contributions: TypeAlias = Mapping[str, Column]
"""For each channel, what it adds to the fused score of each chunk of the pool: 0 where it says nothing."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one channel says for one query of the chunks of a pool, as columns.

    `places` are those of the channel's own hits in the pool, best first. `scores` has a number for each chunk of the
    pool: for its hits as it listed them, NaN for hits without a score. For the others it is NaN but where the method is
    `exact` and the channel tells their exact scores; `tells` says whether it does. `coverage` is the share of the
    query's terms that some chunk has, in [0, 1], where a method is exact and the channel knows.
    """

    kind: ChannelKind
    places: NDArray[np.intp]
    scores: Column
    tells: bool = False
    coverage: float | None = None

    @cached_property
    def listed(self) -> Column:
        """The scores of its hits, best first."""
        return self.scores[self.places]

    @cached_property
    def known(self) -> Column:
        """The scores of all chunks that it can score, in no order that means anything."""
        return self.scores[~np.isnan(self.scores)]

    @property
    def lacks(self) -> bool:
        """Whether it found something, and others found what it cannot score."""
        return not self.tells and 0 < len(self.places) < len(self.scores)


class Pool:
    """The chunks that any of several rankings has, each once."""

    def __init__(self, rankings: Mapping[str, Ranking]) -> None:
        self.rankings = rankings
        held: dict[str, int] = {}
        self._places = {
            name: np.array([held.setdefault(one, len(held)) for one in ranking.ids], dtype=np.intp)
            for name, ranking in rankings.items()
        }
        self._held = held
        self.ids = list(held)

    def missing(self, name: str) -> list[str]:
        """The chunks that a ranking lacks."""
        others = np.ones(len(self.ids), dtype=np.bool_)
        others[self._places[name]] = False
        return [self.ids[at] for at in np.flatnonzero(others).tolist()]

    def evidence(
        self, name: str, kind: ChannelKind, others: Mapping[str, float] | None = None, coverage: float | None = None
    ) -> Evidence:
        """What a channel says: by its ranking, and the exact scores of chunks that it lacks (None: it cannot tell)."""
        ranking, places = self.rankings[name], self._places[name]
        scores = np.full(len(self.ids), np.nan)
        if others:
            scores[[self._held[one] for one in others]] = list(others.values())
        hits = ranking.hits
        scores[places] = hits.scores if isinstance(hits, Listing) else np.array(ranking.scores, dtype=np.float64)
        return Evidence(kind, places, scores, others is not None, coverage)


class Method(ABC):
    """How rankings become one: what each channel adds to the fused score of each chunk.

    A method that is `exact` goes by the exact scores of all hits in all channels: the channels are asked for them.
    """

    exact = False

    @abstractmethod
    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        """What each channel adds to each chunk of the pool; finite numbers, higher is better."""

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        """What it could not go by, and what it did instead."""
        return ()


def at(one: Evidence, values: Column, others: float = 0.0) -> Column:
    """A column with the values of a channel's hits, best first, in their places, and one number for all others."""
    column = np.full(len(one.scores), others)
    column[one.places] = values
    return column


def ranks(one: Evidence) -> Column:
    """The ranks of a channel's hits, from 1."""
    return np.arange(1.0, len(one.places) + 1)


def finders(found: Mapping[str, Evidence]) -> Column:
    """How many channels found each chunk of the pool."""
    counts: Column = np.sum([at(one, np.ones(len(one.places))) for one in found.values()], axis=0)
    return counts
