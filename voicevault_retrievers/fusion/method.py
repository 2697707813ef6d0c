"""The base class of fusion methods, and the evidence that they use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.types import ChannelKind, Ranking

Column: TypeAlias = NDArray[np.float64]
"""A number for each chunk of a pool."""
Contributions: TypeAlias = Mapping[str, Column]
"""For each channel, its contribution to the fused score of each chunk of the pool; 0 where it adds nothing."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """One channel's scores of the chunks of a pool, for one query, as columns.

    `places` are the positions of the channel's own hits in the pool, best first. `scores` has a number for each chunk
    of the pool: the listed score of a hit, NaN for a hit without a score. For other chunks it is NaN, unless the method
    is `exact` and the channel gives exact scores; `tells` says whether it does. `coverage` is the share of the query's
    terms that occur in some chunk, in [0, 1], where the method is exact and the channel knows.
    """

    kind: ChannelKind
    places: NDArray[np.intp]
    scores: Column
    tells: bool = False
    coverage: float | None = None

    @cached_property
    def listed(self) -> Column:
        """The scores of the channel's hits, best first."""
        return self.scores[self.places]

    @cached_property
    def known(self) -> Column:
        """All scores that are not NaN, in no particular order."""
        return self.scores[~np.isnan(self.scores)]

    @property
    def lacks(self) -> bool:
        """Whether the channel found something and cannot score chunks that only others found."""
        return not self.tells and 0 < len(self.places) < len(self.scores)


class Pool:
    """The distinct chunks of several rankings."""

    def __init__(self, rankings: Mapping[str, Ranking]) -> None:
        self.rankings = rankings
        self.ids = list(dict.fromkeys(chain.from_iterable(ranking.ids for ranking in rankings.values())))
        self._held = dict(zip(self.ids, range(len(self.ids)), strict=True))
        self._places = {name: self._at(ranking.ids) for name, ranking in rankings.items()}

    def _at(self, ids: Collection[str]) -> NDArray[np.intp]:
        return np.fromiter(map(self._held.__getitem__, ids), np.intp, len(ids))

    def missing(self, name: str) -> list[str]:
        """The chunks that a ranking does not contain."""
        others = np.ones(len(self.ids), dtype=np.bool_)
        others[self._places[name]] = False
        return [self.ids[at] for at in np.flatnonzero(others).tolist()]

    def evidence(
        self, name: str, kind: ChannelKind, others: Mapping[str, float] | None = None, coverage: float | None = None
    ) -> Evidence:
        """A channel's evidence: its ranking, and the exact scores of the other chunks (None: it cannot tell)."""
        ranking, places = self.rankings[name], self._places[name]
        scores = np.full(len(self.ids), np.nan)
        if others:
            scores[self._at(others)] = np.fromiter(others.values(), np.float64, len(others))
        hits = ranking.hits
        scores[places] = hits.scores if isinstance(hits, Listing) else np.array(ranking.scores, dtype=np.float64)
        return Evidence(kind, places, scores, others is not None, coverage)


class Method(ABC):
    """A fusion method: computes each channel's contribution to the fused score of each chunk.

    A method that is `exact` uses the exact scores of all hits in all channels, which the fusion asks the channels for.
    """

    exact = False

    @abstractmethod
    def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        """Each channel's contribution to each chunk of the pool; finite numbers, higher is better."""

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        """Notes on evidence that the method lacked, and what it did instead."""
        return ()


def at(one: Evidence, values: Column, others: float = 0.0) -> Column:
    """A column with values for a channel's hits, best first, and one number for all other chunks."""
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
