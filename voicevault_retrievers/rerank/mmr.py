"""Maximal marginal relevance: picks next the hit that is relevant and unlike the hits before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers.core.types import Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.rerank.likeness import By, Comparing


class MMR(Comparing):
    """Orders hits by maximal marginal relevance: all hits, of which it requests at least 100, or the first `depth`.

    Hits beyond `depth` follow unscored, in their order.

    Each place goes to the hit with the highest `lambda_mult * relevance - (1 - lambda_mult) * likeness`, where likeness
    is the highest similarity to a hit already placed; ties by ascending id. This value is the hit's score: in [-1, 1],
    and falling. `lambda_mult` is in [0, 1]; 1 uses relevance only. A hit's relevance is its score, scaled so that the
    highest is 1 and the lowest 0, or where a score is missing, its rank, scaled likewise. For `by` and `timeout` see
    `Comparing`.

    Carbonell, Goldstein (1998), "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
    Summaries". There relevance is the cosine with the query; here it comes from fusion and rerankers.
    """

    def __init__(
        self,
        lambda_mult: float = 0.7,
        *,
        by: By = "shingles",
        depth: int | None = None,
        timeout: float | None = None,
        name: str = "mmr",
    ) -> None:
        super().__init__(by, timeout)
        self.lambda_mult = share("lambda_mult", lambda_mult)
        self.depth = whole_or_none("depth", depth)
        self.name = name

    def needs(self, k: int) -> int:
        return max(k, self.depth or DEPTH)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        head = ranking.hits[: self.depth]
        if not head:
            return ranking
        by_id = sorted(range(len(head)), key=lambda at: head[at].chunk.id)
        hits = [head[at] for at in by_id]
        gains = self.lambda_mult * self.relevance(head)[by_id]
        costs = np.multiply(1 - self.lambda_mult, self.by.table(self.by.rows(hits)), dtype=np.float64)
        chosen = enumerate(_greedy(gains, costs), 1)
        voted = [_voted(hits[at], Vote(self.name, rank, score)) for rank, (at, score) in chosen]
        rest = [replace(hit, score=None) for hit in ranking.hits[len(head) :]]
        return replace(ranking, hits=(*voted, *rest))

    def relevance(self, hits: Sequence[Hit]) -> NDArray[np.float64]:
        """The relevance of each hit."""
        return _relevance(hits)

    def __repr__(self) -> str:
        return f"MMR({self.lambda_mult}, depth={self.depth}, {self._recipe()})"


def share(name: str, value: float) -> float:
    """Return the value where it is a number from 0 to 1; ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{name} is a number from 0 to 1, not {value!r}")
    return float(value)


def _relevance(hits: Sequence[Hit]) -> NDArray[np.float64]:
    given = [hit.score for hit in hits if hit.score is not None]
    # Halving keeps the difference of the largest numbers finite.
    values = np.array(given if len(given) == len(hits) else range(len(hits), 0, -1)) / 2
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.ones(len(hits))


def _greedy(gains: NDArray[np.float64], costs: NDArray[np.float64]) -> Iterator[tuple[int, float]]:
    """Yield the positions in the chosen order, each with its marginal relevance; ties by position."""
    worth = gains.copy()
    ahead = gains - costs  # row i bounds the worth of every position once i is chosen
    for _ in range(len(gains)):
        at = int(worth.argmax())
        yield at, float(worth[at])
        np.minimum(worth, ahead[at], out=worth)
        worth[at] = -np.inf


def _voted(hit: Hit, vote: Vote) -> Hit:
    """The hit with a vote and the vote's score, built directly, as this runs for many hits."""
    votes = (*(own for own in hit.votes if own.stage != vote.stage), vote)
    return Hit(hit.chunk, vote.score, votes, hit.context, hit.granted_by, hit.over_budget, require=hit.require)
