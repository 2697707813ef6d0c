"""Reranking by a sum of signals, which the stage's vote spells out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from voicevault_retrievers.core.types import Ranking, Vote
from voicevault_retrievers.rerank.rescoring import rescored


class Signal(NamedTuple):
    """What one signal says of one hit: its value, higher is better, and `adds`, its part of the sum."""

    value: float | None
    weight: float
    adds: float


def summed(ranking: Ranking, stage: str, signals: Sequence[Mapping[str, Signal]]) -> Ranking:
    """The first hits, one for each entry of `signals`, in the order of the sums; the rest follow unscored.

    A score is `math.fsum` of what its signals add. The stage's vote has a part for each: the value as its score, the
    weight, what it adds as its contribution, and its rank by what this signal adds.
    """
    head = ranking.ids[: len(signals)]
    votes = _votes(dict(zip(head, signals, strict=True)))
    sums = [math.fsum(signal.adds for signal in own.values()) for own in signals]
    scored = rescored(ranking, stage, sums)
    hits = [
        hit.voted(replace(vote, parts=tuple(votes[hit.chunk.id]))) if (vote := hit.vote(stage)) else hit
        for hit in scored.hits[: len(head)]
    ]
    return replace(scored, hits=(*hits, *scored.hits[len(head) :]))


def _votes(signals: Mapping[str, Mapping[str, Signal]]) -> dict[str, list[Vote]]:
    votes: dict[str, list[Vote]] = {chunk_id: [] for chunk_id in signals}
    for name in dict.fromkeys(name for own in signals.values() for name in own):
        said = {chunk_id: own[name] for chunk_id, own in signals.items() if name in own}
        order = sorted(said, key=lambda chunk_id: (-said[chunk_id].adds, chunk_id))
        for rank, chunk_id in enumerate(order, 1):
            value, weight, adds = said[chunk_id]
            votes[chunk_id].append(Vote(name, rank, value, weight, adds))
    return votes
