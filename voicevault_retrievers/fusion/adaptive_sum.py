"""The default fusion: a convex combination whose weights are found anew for each query, without labels.

What weights go by is told by the two lists and the exact scores of their hits alone, as in query performance
prediction (Shtok et al., 2012, TOIS, "Predicting query performance by query-drift estimation": the best hits stand out
from those below). No constant of a collection is kept, so documents that nobody asks for change nothing, and an engine
that gives exact scores ranks as a base on disk does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import number
from voicevault_retrievers.fusion.method import Column, Contributions, Evidence, at
from voicevault_retrievers.fusion.normalise import ScoreMethod

BEST = 10
"""Hits of a list that are looked at: how far the first stands above the last of them, and which others confirm."""
CONFIRMING = 3
"""Of these so many that the keyword channel scores highest."""
ENOUGH = 0.8
"""The share of a query's terms that a collection has where it speaks the query's language."""
LEAST = 0.05
"""What is left of a weight where nothing speaks for it, so that its hits keep their order."""


@dataclass(frozen=True)
class AdaptiveSum(ScoreMethod):
    """Each channel adds `weight * share * score`, scores exact for all hits of all channels and scaled for this query.

    A keyword score is divided by the list's highest. Its share is how far that stands above the tenth (1 less their
    ratio: 0 where ten chunks match alike), times the square of how much of the query the collection knows: which share
    of the query's terms some chunk has, of which four fifths are all. So it counts little where many chunks share the
    query's words, and where the query is in another language than the chunks.

    Of a cosine its place counts between the lowest of all hits, which becomes .05, and 1, which becomes 1.05: embedders
    whose cosines are all high count as those that use the whole range. Its share is `semantic` times how far the
    highest stands above the lowest on the way to 1, times how far keywords confirm its ten best hits: of the highest
    keyword score the three of them that have most have a mean share, and its square counts. What an embedder finds that
    does not speak the documents' language shares no words with the query. Keywords that do not know the query confirm
    and refute nothing.

    Other kinds are scaled as keywords are, and confirm nothing. No factor is below .05. `semantic` did best at 3 over
    the development collections (docs/explanation/fusion.md). A chunk that a channel cannot score counts as its last hit, where the
    kind is semantic, and else as no match; a note says so.
    """

    semantic: float = 3.0
    exact = True

    def __post_init__(self) -> None:
        number("semantic", self.semantic)

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        shares = self.shares(found)
        return {name: weights[name] * shares[name] * _scaled(one) for name, one in found.items()}

    def shares(self, found: Mapping[str, Evidence]) -> dict[str, float]:
        """What each channel's scaled scores are multiplied by, besides its weight."""
        return {
            name: self.semantic * _at_least(_height(one)) * _at_least(_confirmed(one, found))
            if one.kind == "semantic"
            else _at_least(_standing_out(one)) * _at_least(_understood(one) ** 2)
            for name, one in found.items()
        }

    def notes(self, found: Mapping[str, Evidence]) -> tuple[str, ...]:
        if said := super().notes(found):
            return said
        blind = sorted(name for name, one in found.items() if one.lacks)
        instead = "others' hits count as the last there, or, where the kind is not semantic, as no match"
        return (f"no exact scores of {', '.join(blind)}: {instead}",) if blind else ()


def _at_least(factor: float) -> float:
    return LEAST + (1 - LEAST) * min(max(factor, 0.0), 1.0)


def _standing_out(one: Evidence) -> float:
    """How far the best hit stands above the tenth, in [0, 1]; 1 where there is none."""
    scores = one.listed[:BEST].tolist()
    if not scores or scores[0] <= 0:
        return 0.0
    return 1 - max(scores[-1], 0.0) / scores[0] if len(scores) == BEST else 1.0


def _understood(one: Evidence) -> float:
    """How much of the query's language the channel's collection speaks, in [0, 1]."""
    return 1.0 if one.coverage is None else min(one.coverage / ENOUGH, 1.0)


def _room(one: Evidence) -> tuple[float, float]:
    """The lowest score of all hits, and what lies between it and the highest that is possible."""
    if not len(one.known):
        return 0.0, 1.0
    lowest, highest = float(one.known.min()), float(one.known.max())
    return lowest, max(1.0, highest) - lowest or 1.0


def _height(one: Evidence) -> float:
    """How far the best hit stands above the lowest, as a share of what is possible."""
    lowest, room = _room(one)
    return (float(one.listed.max(initial=lowest)) - lowest) / room


def _confirmed(one: Evidence, found: Mapping[str, Evidence]) -> float:
    """How far keywords confirm the best hits of a channel, in [0, 1]; 1 where none can say."""
    best = one.places[:BEST]
    witnesses = [other for other in found.values() if other.kind == "keyword" and len(other.places) and len(best)]
    return max((1 - _understood(other) ** 2 * (1 - _known_by(other, best) ** 2) for other in witnesses), default=1.0)


def _known_by(other: Evidence, places: NDArray[np.intp]) -> float:
    """The mean share of a list's highest score that those of some chunks have which have the most of it."""
    highest = float(other.listed.max())
    if highest <= 0:
        return 1.0
    scores: list[float] = other.scores[places].tolist()
    known = (score / highest for score in scores if score > 0)  # not where it is not known
    best = sorted((min(share, 1.0) for share in known), reverse=True)[:CONFIRMING]
    return sum(best) / min(CONFIRMING, len(places))


def _scaled(one: Evidence) -> Column:
    """A channel's scores of the chunks that it can score, scaled for the query; 0 for others, or if it found nothing.

    A semantic channel that cannot tell those of others has its last hit's for them.
    """
    if not len(one.places):
        return np.zeros(len(one.scores))
    highest, unknown = float(one.listed.max()), np.isnan(one.scores)
    if one.kind == "semantic":
        lowest, room = _room(one)
        others = 0.0 if one.tells else LEAST + (float(one.listed.min()) - lowest) / room
        return np.where(unknown, others, LEAST + (one.scores - lowest) / room)
    if highest <= 0:  # some formulas score what matches at 0 or below
        room = highest - float(one.known.min()) or 1.0
        return at(one, 1 + (one.listed - highest) / room)
    return np.where(unknown, 0.0, one.scores / highest)
