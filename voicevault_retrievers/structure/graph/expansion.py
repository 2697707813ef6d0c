"""Expansion by graph neighbours: finds sections that the best hits refer to, though the query does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from voicevault_retrievers._support.checks import number, seconds_or_none, whole
from voicevault_retrievers.core.access_control import with_rights_of
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import ChannelKind, Hit, Query, Ranking, Vote, ranked
from voicevault_retrievers.structure.graph.channel import checked_decay, checked_store, matches, seen
from voicevault_retrievers.structure.graph.store import GraphStore
from voicevault_retrievers.structure.graph.walk import Reached, Walk, arun, run
from voicevault_retrievers.text.references.reference import chunk_node


class GraphExpansion(Stage):
    """Adds the graph neighbours of the first `seeds` hits, and ranks all hits again.

    The hit of rank r starts with 1/r. Each seed's score spreads through the graph (see `walk`), and a chunk adds
    `weight` times what it receives to its own. Seeds receive nothing. At most `limit` new chunks are added; they pass
    the query's filters. Votes have the path to a chunk in `via`. `depth`, `decay`, `fan_out` are as of `GraphChannel`.
    The stage asks for `pool` hits, so that up to there a smaller k gives a prefix of a larger one.
    """

    blocking = True
    refills = False

    def __init__(
        self,
        store: GraphStore,
        *,
        seeds: int = 3,
        limit: int = 10,
        weight: float = 1.0,
        pool: int = 50,
        depth: int = 1,
        decay: float = 0.5,
        fan_out: int = 50,
        timeout: float | None = None,
        name: str = "graph_expansion",
    ) -> None:
        super().__init__()
        self.store = checked_store(store)
        self.seeds = whole("seeds", seeds)
        self.limit = whole("limit", limit, least=0)
        self.weight = number("weight", weight)
        self.pool = whole("pool", pool)
        self.depth = whole("depth", depth)
        self.decay = checked_decay(decay)
        self.fan_out = whole("fan_out", fan_out)
        self.timeout = seconds_or_none("timeout", timeout)
        self.name = name
        self.awaits = hasattr(store, "aedges")

    def needs(self, k: int) -> int:
        return max(k, self.pool)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        query = with_rights_of(query, ranking)
        received, added = run(seen(self.store, query), self._spread(query, ranking))
        return self._joined(ranking, received, added)

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        """`refine` on the running event loop."""
        query = with_rights_of(query, ranking)
        received, added = await arun(seen(self.store, query), self._spread(query, ranking))
        return self._joined(ranking, received, added)

    def _spread(self, query: Query, ranking: Ranking) -> Steps[tuple[Mapping[str, Reached], list[Match]]]:
        permits = None if query.require is None else compile_filter(query.require)
        walk = Walk(self.depth, self.decay, self.fan_out, permits, query.blocked)
        first = enumerate(ranking.hits[: self.seeds], 1)
        reached = yield from walk.from_({chunk_node(hit.id): Reached(1.0 / rank, (hit.id,)) for rank, hit in first})
        held = set(ranking.ids)
        others = {one: found for one, found in reached.items() if one not in held}
        added = yield from matches(walk, query, others, self.limit)
        return reached, added

    def _joined(self, ranking: Ranking, received: Mapping[str, Reached], added: list[Match]) -> Ranking:
        hits = [
            replace(hit, score=1.0 / rank + self.weight * received[hit.id].score if hit.id in received else 1.0 / rank)
            for rank, hit in enumerate(ranking, 1)
        ]
        hits += [Hit(match.chunk, self.weight * (match.score or 0.0)) for match in added]
        ordered = ranked(hits)
        return replace(ranking, hits=tuple(self._voted(hit, at, received) for at, hit in enumerate(ordered, 1)))

    def _voted(self, hit: Hit, rank: int, received: Mapping[str, Reached]) -> Hit:
        found = received.get(hit.id)
        if found is None:
            return hit
        kind: ChannelKind | None = None if hit.votes else "graph"
        return hit.voted(Vote(self.name, rank, found.score, weight=self.weight, kind=kind, via=found.path))

    def __repr__(self) -> str:
        return (
            f"GraphExpansion({self.store!r}, seeds={self.seeds}, limit={self.limit}, weight={self.weight}, "
            f"pool={self.pool}, depth={self.depth}, decay={self.decay}, fan_out={self.fan_out}, "
            f"timeout={self.timeout}, name={self.name!r})"
        )
