"""Keywords and vectors in one round trip to a search server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from voicevault_retrievers._support.checks import flag
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Chunk, Query, Vector
from voicevault_retrievers.engines.channels import Asked, AskedWording, EngineBM25, EngineDense, SearchedEngine
from voicevault_retrievers.engines.fused import FusedLeaf
from voicevault_retrievers.engines.keywords import KeywordHit


class ElasticSearch(SearchedEngine, Protocol):
    """The part of `ElasticEngine` that the channel needs."""

    def fusing(
        self, asked: Asked, vector: Vector, query: Query, depth: int, native: tuple[int, int] | None
    ) -> Steps[tuple[list[KeywordHit], list[Found]]]: ...


class ElasticFused(FusedLeaf[ElasticSearch]):
    """Keyword and vector search in one round trip, fused by RRF; see `FusedLeaf`.

    A score is the sum of `1 / (k + rank)` over the two rankings of `depth`, ranks from 1. The server sends both
    rankings, which are fused here. With `native` it fuses them itself: Elasticsearch with its `rrf` retriever, which
    needs a licence, OpenSearch (2.19 and later) with a search pipeline. A filter that the server cannot evaluate
    exactly raises FilterNotSupportedError.
    """

    def __init__(
        self,
        engine: ElasticSearch,
        k: float,
        depth: int,
        native: bool = False,
        *,
        name: str = "fused",
        **options: Any,
    ) -> None:
        super().__init__(engine, name, k, depth, EngineBM25(engine, **options), EngineDense(engine))
        self.native = flag("native", native)

    def _fusing(self, query: Query, asked: AskedWording, vector: Vector, k: int) -> Steps[list[Match]]:
        native = (self.k, k) if self.native else None
        words, near = yield from self.engine.fusing(asked, vector, query, max(self.depth, k), native)
        if self.native and not near:
            said = (f"RRF in the server, k {self.k}",)
            found = [Match(hit.chunk, hit.score, asked.words(hit.forms), said) for hit in words]
            return sorted(found, key=_best_first)[:k]
        return sorted(self._by_ranks(asked, words, near), key=_best_first)[:k]

    def _by_ranks(self, asked: AskedWording, words: Sequence[KeywordHit], near: Sequence[Found]) -> list[Match]:
        chunks: dict[str, Chunk] = {}
        ranks: dict[str, list[str]] = {}
        scores: dict[str, float] = {}
        terms = {hit.chunk.id: asked.words(hit.forms) for hit in words}
        for name, ranking in (("keywords", [hit.chunk for hit in words]), ("vectors", [one.chunk for one in near])):
            for rank, chunk in enumerate(ranking, 1):
                chunks[chunk.id] = chunk
                ranks.setdefault(chunk.id, []).append(f"{name} {rank}")
                scores[chunk.id] = scores.get(chunk.id, 0.0) + 1 / (self.k + rank)
        return [
            Match(chunk, scores[one], terms.get(one, ()), (f"RRF, k {self.k}, of ranks: {', '.join(ranks[one])}",))
            for one, chunk in chunks.items()
        ]

    def __repr__(self) -> str:
        return f"{self.engine!r}.fused(k={self.k}, depth={self.depth}, native={self.native})"


def _best_first(match: Match) -> tuple[float, str]:
    return -(match.score or 0.0), match.chunk.id
