"""Keyword and vector search in one request, fused by Milvus."""

from __future__ import annotations

from typing import Any, Protocol

from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Query, Vector
from voicevault_retrievers.engines.channels import (
    Asked,
    AskedWording,
    EngineBM25,
    EngineDense,
    SearchedEngine,
)
from voicevault_retrievers.engines.fused import FusedLeaf


class MilvusFusing(SearchedEngine, Protocol):
    """The part of `MilvusEngine` that the channel needs."""

    def fusing(
        self, vector: Vector, asked: Asked, k: int, rank: int, depth: int, filters: tuple[Filter | None, Filter | None]
    ) -> Steps[list[Found]]: ...


class MilvusFused(FusedLeaf[MilvusFusing]):
    """Keyword and vector search in one request, which Milvus fuses by reciprocal ranks.

    Scores are sums of `1 / (k + rank)`, ranks from 1, over the first `depth` hits of each ranking, as float32, higher
    is better. The vector ranking is that of `dense()`, and behind it chunks with a cosine of 0 or less, which `dense()`
    leaves out. The keyword ranking is that of Milvus' BM25 function; with exact
    statistics, and in Milvus Lite, it uses estimates of BM25 (frequency and length are quantised), so that chunks with
    nearly equal scores may be ordered differently than by `bm25()`. A filter that Milvus cannot apply exactly raises
    FilterNotSupportedError: fuse the two channels here then.
    """

    def __init__(
        self,
        engine: MilvusFusing,
        *,
        k: float = 60,
        depth: int = 100,
        name: str = "milvus",
        **options: Any,
    ) -> None:
        super().__init__(engine, name, k, depth, EngineBM25(engine, **options), EngineDense(engine))

    def _fusing(self, query: Query, asked: AskedWording, vector: Vector, k: int) -> Steps[list[Match]]:
        filters = query.where, query.require
        found = yield from self.engine.fusing(vector, asked, k, self.k, max(self.depth, k), filters)
        return [Match(chunk, score) for chunk, score in found]

    def __repr__(self) -> str:
        return f"MilvusFused({self.engine!r}, k={self.k}, depth={self.depth})"
