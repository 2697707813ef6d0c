"""Vector and keyword search, fused by RRF in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from voicevault_retrievers.core.execution.plan import Call, CircuitBreaker, Plan, value_of
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Variant, Vector, Vote
from voicevault_retrievers.engines.channels import (
    Asked,
    AskedWording,
    EngineBM25,
    EngineDense,
    NoCollection,
    SearchedEngine,
    noted,
)
from voicevault_retrievers.engines.fused import common_wording
from voicevault_retrievers.engines.postgres.statements import Depth
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.fusion.fuse import Fused

BOTH = ("bm25", "dense")


class FusedRow(NamedTuple):
    """A hit of the fusion: its fused score, the forms that it has, and (rank, score) in each channel."""

    chunk: Chunk
    score: float
    forms: tuple[str, ...]
    ranks: tuple[tuple[int | None, float | None], ...]


class PostgresFusing(SearchedEngine, Protocol):
    """The part of `PostgresEngine` that the channel needs."""

    def fusing(self, asked: Asked, vector: Vector, depth: Depth) -> Steps[Sequence[FusedRow]]: ...


class ServerFused(Fused):
    """`fuse(bm25=..., dense=..., method=RRF(k))` over a collection, run as one statement by the server.

    A query with several wordings, or with a weight of 0, is searched channel by channel and fused here. The statement
    has the timeout of the keyword channel.
    """

    def __init__(self, engine: PostgresFusing, bm25: EngineBM25, dense: EngineDense, k: float, depth: int) -> None:
        channels = dict(zip(BOTH, (bm25, dense), strict=True))
        super().__init__(channels, method=RRF(k), weights={}, depth=depth, on_error="skip", name="hybrid")
        self.kind = "hybrid"
        self._engine = engine
        self._breaker = CircuitBreaker()
        self._timeout = bm25.timeout

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        wording = common_wording(query)
        if k == 0 or wording is None or not wording.text.strip() or not all(self._weights(query).values()):
            return (yield from super().plan(query, k))
        call = Call(
            self.name,
            lambda: self._engine.run(self._finding(query, wording, k)),
            lambda: self._engine.arun(self._finding(query, wording, k)),
            timeout=self._timeout,
            breaker=self._breaker,
            key=(self._breaker, query, k),
            kind="channel",
            texts=(query.text,),
            k=k,
        )
        (outcome,) = yield (call,)
        ranking: Ranking = value_of(outcome)
        return ranking

    def _finding(self, query: Query, wording: Variant, k: int) -> Steps[Ranking]:
        bm25: Any = self.channels["bm25"]
        dense: Any = self.channels["dense"]
        vectors = yield from dense.embedded(query, (wording,))
        asked = AskedWording(bm25, query, wording)
        weights = self._weights(query)
        depth = Depth(
            k,
            max(k, self.depths["bm25"]),
            max(k, self.depths["dense"]),
            self.method.k,  # type: ignore[attr-defined]  # RRF's
            (weights["bm25"], weights["dense"]),
        )
        rows: Sequence[FusedRow] = ()
        if vectors is not None:
            rows = yield from self._engine.fusing(asked, vectors[0], depth)
        if not rows and not (yield from self._engine.exists()):
            return Ranking(errors=tuple(noted(self.name, self._engine, [NoCollection()])))
        return Ranking(tuple(self._hit(wording.text, asked, weights, row) for row in rows))

    def _hit(self, text: str, asked: AskedWording, weights: Mapping[str, float], row: FusedRow) -> Hit:
        votes = []
        words, in_header = asked.words(row.forms), asked.header_words(row.chunk.header)
        for name, (rank, own), terms, above in zip(BOTH, row.ranks, (words, ()), (in_header, ()), strict=True):
            if rank is not None:
                part = weights[name] / (self.method.k + rank)  # type: ignore[attr-defined]  # as above
                kind = self.channels[name].kind
                votes.append(Vote(name, rank, own, weights[name], part, text, terms, kind=kind, header_terms=above))
        return Hit(row.chunk, row.score, tuple(votes))
