"""A ranking in the order of scores that a reranker gave its first hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voicevault_retrievers.core.types import Ranking, Vote, ranked


def rescored(ranking: Ranking, stage: str, scores: Sequence[float], own: Sequence[float] | None = None) -> Ranking:
    """The first hits in the order of new scores, with the stage's votes; the rest follow unscored, in their order.

    `own` are the stage's own scores, where the new ones are made of more than these.
    """
    head = ranking.hits[: len(scores)]
    said = {hit.id: float(score) for hit, score in zip(head, scores if own is None else own, strict=True)}
    ordered = ranked(replace(hit, score=float(score)) for hit, score in zip(head, scores, strict=True))
    voted = [hit.voted(Vote(stage, rank, said[hit.id])) for rank, hit in enumerate(ordered, 1)]
    rest = [replace(hit, score=None) for hit in ranking.hits[len(scores) :]]
    return replace(ranking, hits=(*voted, *rest))
