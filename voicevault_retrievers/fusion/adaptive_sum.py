"""The default fusion: a convex combination whose weights are estimated per query, without labels.

The estimates use only the two lists and the exact scores of their hits, as in query performance prediction (Shtok et
al., 2012, TOIS, "Predicting query performance by query-drift estimation": the best hits stand out from those below). No
statistic of the collection is stored, so documents that no query finds change nothing, and an engine with exact scores
ranks like a knowledge base on disk.
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
"""The depth of a list for the estimates: the gap is from the first to the tenth hit, and the best ten are confirmed."""
CONFIRMING = 3
"""The number of those hits, by highest keyword score, that confirm a semantic list."""
ENOUGH = 0.8
"""The share of a query's terms from which the collection counts as being in the query's language."""
LEAST = 0.05
"""The lowest factor, so that a channel's hits keep their order."""


@dataclass(frozen=True)
class AdaptiveSum(ScoreMethod):
    """Each channel adds `weight * share * score`. Scores are exact for all hits of all channels, and scaled per query.

    A keyword score is divided by the list's highest. Its share is the product of two factors: 1 minus the ratio of the
    tenth score to the highest (0 where ten chunks match alike), and the square of the coverage, the share of the
    query's terms that occur in some chunk, of which four fifths count as all. So keywords count little where many
    chunks share the query's words, and where the query is in another language than the chunks.

    A cosine is scaled linearly from the lowest of all hits, which becomes .05, to 1, which becomes 1.05, so that
    embedders whose cosines are all high are comparable with those that use the whole range. Its share is `semantic`
    times the highest scaled cosine (less .05), times the confirmation by keywords of its ten best hits: the square of
    the mean of the three highest keyword scores among them, relative to the highest keyword score. What an embedder
    finds that does not know the documents' language shares no words with the query. Keywords of low coverage neither
    confirm nor refute.

    Other kinds are scaled like keywords, and confirm nothing. No factor is below .05. A `semantic` of 3 did best over
    the development collections (docs/explanation/fusion.md). A chunk that a channel cannot score counts as the last hit
    of a semantic channel, and as no match of any other channel; a note says so.
    """

    semantic: float = 3.0
    exact = True

    def __post_init__(self) -> None:
        number("semantic", self.semantic)

    def scored(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Contributions:
        shares = self.shares(found)
        return {name: weights[name] * shares[name] * _scaled(one) for name, one in found.items()}

    def shares(self, found: Mapping[str, Evidence]) -> dict[str, float]:
        """The factor of each channel's scaled scores, besides its weight."""
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
    """1 minus the ratio of the tenth score to the highest, in [0, 1]; 1 for fewer than ten hits."""
    scores = one.listed[:BEST].tolist()
    if not scores or scores[0] <= 0:
        return 0.0
    return 1 - max(scores[-1], 0.0) / scores[0] if len(scores) == BEST else 1.0


def _understood(one: Evidence) -> float:
    """How far the channel's collection is in the query's language, in [0, 1]."""
    return 1.0 if one.coverage is None else min(one.coverage / ENOUGH, 1.0)


def _room(one: Evidence) -> tuple[float, float]:
    """The lowest score of all hits, and the distance from it to the highest possible score."""
    if not len(one.known):
        return 0.0, 1.0
    lowest, highest = float(one.known.min()), float(one.known.max())
    return lowest, max(1.0, highest) - lowest or 1.0


def _height(one: Evidence) -> float:
    """The distance of the best hit from the lowest, as a share of the largest possible distance."""
    lowest, room = _room(one)
    return (float(one.listed.max(initial=lowest)) - lowest) / room


def _confirmed(one: Evidence, found: Mapping[str, Evidence]) -> float:
    """How far keyword channels confirm the best hits of a channel, in [0, 1]; 1 where no keyword channel can."""
    best = one.places[:BEST]
    witnesses = [other for other in found.values() if other.kind == "keyword" and len(other.places) and len(best)]
    return max((1 - _understood(other) ** 2 * (1 - _known_by(other, best) ** 2) for other in witnesses), default=1.0)


def _known_by(other: Evidence, places: NDArray[np.intp]) -> float:
    """The mean of the highest keyword scores among some chunks, each relative to the list's highest score."""
    highest = float(other.listed.max())
    if highest <= 0:
        return 1.0
    scores: list[float] = other.scores[places].tolist()
    known = (score / highest for score in scores if score > 0)  # drops NaN, an unknown score
    best = sorted((min(share, 1.0) for share in known), reverse=True)[:CONFIRMING]
    return sum(best) / min(CONFIRMING, len(places))


def _scaled(one: Evidence) -> Column:
    """A channel's scores, scaled for the query; 0 for chunks that it cannot score, or where it found nothing.

    A semantic channel without exact scores gives the score of its last hit to the chunks that only others found.
    """
    if not len(one.places):
        return np.zeros(len(one.scores))
    highest, unknown = float(one.listed.max()), np.isnan(one.scores)
    if one.kind == "semantic":
        lowest, room = _room(one)
        others = 0.0 if one.tells else LEAST + (float(one.listed.min()) - lowest) / room
        return np.where(unknown, others, LEAST + (one.scores - lowest) / room)
    if highest <= 0:  # some formulas score matches at 0 or below
        room = highest - float(one.known.min()) or 1.0
        return at(one, 1 + (one.listed - highest) / room)
    return np.where(unknown, 0.0, one.scores / highest)
