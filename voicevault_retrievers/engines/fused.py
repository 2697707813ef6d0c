"""Channels that leave the fusion of keywords and vectors to an engine."""

from __future__ import annotations

from abc import abstractmethod

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import Query, Ranking, Variant, Vector
from voicevault_retrievers.engines.channels import AskedWording, E, EngineBM25, EngineDense, EngineLeaf
from voicevault_retrievers.fusion import RRF, fuse


def common_wording(query: Query) -> Variant | None:
    """The only wording of a query, of weight 1, that keywords and vectors are searched for; None for others."""
    own, others = query.texts_for("bm25", "keyword"), query.texts_for("dense", "semantic")
    return own[0] if own == others and len(own) == 1 and own[0].weight == 1.0 else None


class FusedLeaf(EngineLeaf[E]):
    """Keyword and vector search that an engine fuses by RRF in one request; scores are RRF's, higher is better.

    `k` is RRF's constant, `depth` the number of hits of each search. A query with several wordings, with weights, or
    with a wording for one of the two channels is searched channel by channel and fused here.
    """

    def __init__(self, engine: E, name: str, k: float, depth: int, bm25: EngineBM25, dense: EngineDense) -> None:
        super().__init__(engine, name, "hybrid", timeout=bm25.timeout)
        self.k = whole("k", k)
        self.depth = whole("depth", depth)
        self.bm25, self.dense = bm25, dense
        self._apart = fuse({"bm25": bm25, "dense": dense}, method=RRF(self.k), depth=self.depth)

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        weights = query.weights or {}
        equal = all(weights.get(name, 1.0) == 1.0 for name in ("bm25", "dense"))
        if equal and common_wording(query) is not None and self._tells(query):
            return (yield from super().plan(query, k))
        return (yield from self._apart.plan(query, k))

    def _finding(self, query: Query, wording: Variant, k: int) -> Steps[list[Match]]:
        vectors = yield from self.dense.embedded(query, (wording,))
        if vectors is None:
            return []
        return (yield from self._fusing(query, AskedWording(self.bm25, query, wording), vectors[0], k))

    def _tells(self, query: Query) -> bool:
        """Whether the engine applies the query's filter exactly, so that what does not pass takes no ranks."""
        return True

    @abstractmethod
    def _fusing(self, query: Query, asked: AskedWording, vector: Vector, k: int) -> Steps[list[Match]]:
        """At most k matches that the engine has fused, best first."""

    def warm_up(self) -> None:
        self.dense.warm_up()
