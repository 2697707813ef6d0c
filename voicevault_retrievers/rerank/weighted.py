"""Reranking by a weighted sum of signals: fused score, cosine, BM25 score, position in the document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

from voicevault_retrievers._support.checks import flag, number, seconds_or_none, whole_or_none
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.types import ChannelKind, Failure, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.rerank.blending import rescored


class Signal(NamedTuple):
    """One signal of one hit: its value, higher is better, its weight, and `adds`, its part of the sum."""

    value: float | None
    weight: float
    adds: float


def summed(ranking: Ranking, stage: str, signals: Sequence[Mapping[str, Signal]]) -> Ranking:
    """The first hits, one per entry of `signals`, ordered by their sums; the rest follow unscored.

    A score is `math.fsum` of the signals' `adds`. The stage's vote has a part for each signal: the value as its score,
    the weight, `adds` as its contribution, and its rank by `adds`.
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


WEIGHTS: Mapping[str, float] = {"fused": 0.4, "semantic": 0.3, "keyword": 0.2, "position": 0.1}


class WeightedRerank(Stage):
    """Orders hits by a weighted sum of four signals: all hits, of which it requests at least 100, or the first `depth`.

    Hits beyond `depth` follow unscored, in their order.

    `fused` is the sum of the channels' contributions (`Hit.fused`). With `scale_fused` it is divided by the highest
    among the candidates; None scales only where the highest is above 1, so that RRF is not scaled and no fused score
    outweighs the other signals. `semantic` is the cosine, at least 0. `keyword` is the BM25 score divided by the
    highest among the candidates, at least -1. `position` is `1 - chunk_index / max(1, chunks_in_file - 1)`, from the
    metadata under these keys.

    Cosine and BM25 score are the highest votes of the semantic and the keyword channels. `dense`, where given, computes
    the cosines that no channel gave: then the stage is blocking, under `timeout` seconds.

    Unknown signals add 0: of a channel that did not find the hit or gave no score, of a hit without a position, and the
    fused score without a fusion. Where positions have a weight and no hit has one, a note says so. `weights` override
    those in `WEIGHTS`. The stage's vote has a part for each signal; their contributions add up to the score exactly.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        depth: int | None = None,
        scale_fused: bool | None = None,
        dense: Channel | None = None,
        timeout: float | None = None,
        chunk_index_key: str = "chunk_index",
        chunks_in_file_key: str = "chunks_in_file",
        name: str = "weighted",
    ) -> None:
        super().__init__()
        if dense is not None and not isinstance(dense, Channel):
            raise ConfigError(f"dense is a channel that tells exact scores, or None, not a {type(dense).__name__}")
        self.weights = _weights(weights or {})
        self.depth = whole_or_none("depth", depth)
        self.scale_fused = scale_fused if scale_fused is None else flag("scale_fused", scale_fused)
        self.dense = dense
        self.blocking = dense is not None
        self.timeout = seconds_or_none("timeout", timeout)
        self.chunk_index_key = chunk_index_key
        self.chunks_in_file_key = chunks_in_file_key
        self.name = name

    def needs(self, k: int) -> int:
        return max(k, self.depth or DEPTH)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        head = ranking.hits[: self.depth]
        cosines, notes = self._cosines(query, head)
        values = {
            "fused": _known((hit.chunk.id, hit.fused) for hit in head),
            "semantic": cosines,
            "keyword": _known((hit.chunk.id, _best(hit, "keyword")) for hit in head),
            "position": _known((hit.chunk.id, self._position(hit.chunk.metadata)) for hit in head),
        }
        scaled = {name: self._scaled(name, known) for name, known in values.items()}
        signals = [
            {
                name: Signal(known[chunk_id], self.weights[name], self.weights[name] * scaled[name][chunk_id])
                for name, known in values.items()
                if chunk_id in known
            }
            for chunk_id in (hit.chunk.id for hit in head)
        ]
        return summed(ranking, self.name, signals).failing(*notes, *self._unplaced(head, values["position"]))

    def _scaled(self, signal: str, values: Mapping[str, float]) -> Mapping[str, float]:
        if signal == "semantic":
            return {chunk_id: max(0.0, cosine) for chunk_id, cosine in values.items()}
        top = max(values.values(), default=0.0)
        scales = top > 1 if self.scale_fused is None else self.scale_fused
        if signal == "keyword" or (signal == "fused" and scales):
            return {chunk_id: max(-1.0, value / top) if top > 0 else 0.0 for chunk_id, value in values.items()}
        return values

    def _cosines(self, query: Query, hits: Sequence[Hit]) -> tuple[dict[str, float], list[Failure]]:
        """The known cosines, with a note where `dense` cannot compute the missing ones."""
        cosines = _known((hit.chunk.id, _best(hit, "semantic")) for hit in hits)
        missing = [hit.chunk.id for hit in hits if hit.chunk.id not in cosines]
        if self.dense is None or not missing:
            return cosines, []
        found = self.dense.scores(query, missing)
        if found is None:
            message = f"{self.dense.name} cannot tell the scores of given chunks: {len(missing)} hits have no cosine"
            return cosines, [Failure(self.name, "NoScores", message, degrades=False)]
        return {**cosines, **{chunk_id: found[chunk_id] for chunk_id in missing if chunk_id in found}}, []

    def _unplaced(self, hits: Sequence[Hit], positions: Mapping[str, float]) -> list[Failure]:
        """A note where positions have a weight and no hit has a position."""
        if not hits or positions or not self.weights["position"]:
            return []
        said = f"no hit has {self.chunk_index_key!r} and {self.chunks_in_file_key!r}: places in documents add nothing"
        return [Failure(self.name, "NoPositions", said, degrades=False)]

    def _position(self, metadata: Mapping[str, Any]) -> float | None:
        """1 for the first chunk of a file, 0 for the last; None where the metadata lacks the numbers."""
        index, count = _count(metadata.get(self.chunk_index_key)), _count(metadata.get(self.chunks_in_file_key))
        return None if index is None or count is None else max(0.0, 1.0 - index / max(1, count - 1))

    def __repr__(self) -> str:
        return (
            f"WeightedRerank({self.weights}, depth={self.depth}, scale_fused={self.scale_fused}, dense={self.dense!r}, "
            f"timeout={self.timeout}, chunk_index_key={self.chunk_index_key!r}, "
            f"chunks_in_file_key={self.chunks_in_file_key!r}, name={self.name!r})"
        )


def _weights(given: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"weights is a mapping of signals to numbers, such as {WEIGHTS}, not {given!r}")
    for name, weight in given.items():
        if name not in WEIGHTS:
            raise unknown("signal in weights", name, WEIGHTS)
        number(f"the weight of {name!r}", weight)
    weights = {**WEIGHTS, **given}
    if not any(weights.values()):
        raise ConfigError("the weights of all signals are 0: nothing would be ordered")
    return weights


def _best(hit: Hit, kind: ChannelKind) -> float | None:
    """The highest score that a channel of this kind gave the hit; None where there is none."""
    leaves = (leaf for vote in hit.votes for leaf in vote.leaves())
    return max((leaf.score for leaf in leaves if leaf.kind == kind and leaf.score is not None), default=None)


def _known(values: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    return {chunk_id: value for chunk_id, value in values if value is not None}


def _count(value: Any) -> int | None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return int(value) if real and 0 <= value < 2**53 and value == int(value) else None
