"""Spreading activation from nodes of a graph to the chunks around them.

After Crestani (1997), "Application of spreading activation techniques in information retrieval", Artificial
Intelligence Review 11, section 3, with its constraints on distance and fan-out, and nodes that fire once:

    score(v) = sum over edges (u, v) with d(u) < d(v), u fired last before v, of score(u) * weight(u, v) * decay

which is the sum, over the shortest paths to v, of decay ** distance times the weights of their edges. A step from a
chunk to a reference that it states is free and without decay, so that distance counts the chunks on a path.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from voicevault_retrievers.core.execution import steps
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Predicate
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.structure.graph.store import Edge, GraphStore
from voicevault_retrievers.text.references.reference import chunk_id, is_chunk, label

BACKWARDS: Mapping[str, str] = MappingProxyType(
    {"cites": "cited by", "is": "is", "defines": "defined by", "in": "holds"}
)
"""What relations are called when they are walked against their direction."""


class StoreCall(NamedTuple):
    """What a walk asks of its store: the method, and its one argument. It is sent what that gives."""

    method: str
    argument: Sequence[str]


class Reached(NamedTuple):
    """A node that activation reached, and the steps of the path that brought most of it, nodes and relations."""

    score: float
    path: tuple[str, ...]


T = TypeVar("T")
_Step: TypeAlias = tuple[float, tuple[str, ...]]


def run(store: GraphStore, walk: Steps[T]) -> T:
    """What a walk over a store gives."""
    return steps.run(walk, lambda call: getattr(store, call.method)(call.argument))


async def arun(store: Any, walk: Steps[T]) -> T:
    """`run` over a store with async methods."""
    return await steps.arun(walk, lambda call: getattr(store, f"a{call.method}")(call.argument))


@dataclass
class Walk:
    """How far to go, for whom. `permits` says whether a chunk's metadata does; None permits all.

    What is not permitted is not passed through and not counted: a walk goes as it would in a graph of the permitted
    chunks alone. `fan_out` is to how many nodes one passes activation, over its heaviest edges, ties by ascending id.
    """

    depth: int
    decay: float
    fan_out: int
    permits: Predicate | None = None
    chunks: dict[str, Chunk | None] = field(default_factory=dict)
    """The chunks that were looked up on the way."""

    def from_(self, starts: Mapping[str, Reached]) -> Steps[dict[str, Reached]]:
        """The chunks that are reached from some nodes, by id, without those that it started from."""
        seen, found = set(starts), dict[str, Reached]()
        frontier = dict(starts)
        for _ in range(self.depth):
            stated = yield from self.edges(filter(is_chunk, frontier))
            free = _passed(stated, frontier, seen, self.fan_out, 1.0, chunks=False)
            onward = _passed(stated, frontier, seen, self.fan_out, self.decay, chunks=True)
            fired = {node: reached for node, reached in frontier.items() if not is_chunk(node)} | _joined(free)
            seen.update(fired)
            edges = yield from self.edges(fired)
            for node, path in _passed(edges, fired, seen, self.fan_out, self.decay).items():
                onward[node].extend(path)
            frontier = _joined(onward)
            seen.update(frontier)
            found.update((chunk_id(node), reached) for node, reached in frontier.items() if is_chunk(node))
            if not frontier:
                break
        return found

    def looked_up(self, ids: Iterable[str]) -> Steps[dict[str, Chunk]]:
        """Those of the given chunks that are in the store and permitted."""
        wanted = list(dict.fromkeys(ids))
        unknown = [one for one in wanted if one not in self.chunks]
        if unknown:
            got: Mapping[str, Chunk] = yield StoreCall("chunks", unknown)
            self.chunks.update((one, got.get(one)) for one in unknown)
        held = {one: chunk for one in wanted if (chunk := self.chunks[one]) is not None}
        return {one: chunk for one, chunk in held.items() if self.permits is None or self.permits(chunk.metadata)}

    def edges(self, nodes: Iterable[str]) -> Steps[list[Edge]]:
        """The edges at nodes that may be walked."""
        wanted = sorted(nodes)
        if not wanted:
            return []
        edges: list[Edge] = yield StoreCall("edges", wanted)
        if self.permits is None:
            return edges
        permitted = yield from self.looked_up(one for edge in edges for one in _chunks_of(edge))
        return [edge for edge in edges if edge.owner and all(one in permitted for one in _chunks_of(edge))]


def _chunks_of(edge: Edge) -> list[str]:
    """The chunks that an edge tells of: the one that states it, and those at its ends."""
    ends = [chunk_id(node) for node in (edge.source, edge.target) if is_chunk(node)]
    return [edge.owner, *ends] if edge.owner else ends


def _passed(
    edges: Iterable[Edge],
    active: Mapping[str, Reached],
    seen: Collection[str],
    fan_out: int,
    decay: float,
    *,
    chunks: bool | None = None,
) -> defaultdict[str, list[_Step]]:
    """What active nodes pass to those not seen: only to chunks, or only to references, where `chunks` says so."""
    ways: defaultdict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for edge in edges:
        for one, other, relation in (
            (edge.source, edge.target, edge.relation),
            (edge.target, edge.source, BACKWARDS.get(edge.relation, f"{edge.relation} of")),
        ):
            if one in active and other not in seen and (chunks is None or is_chunk(other) is chunks):
                ways[one].append((-edge.weight, other, relation))
    passed: defaultdict[str, list[_Step]] = defaultdict(list)
    for one, found in ways.items():
        score, path = active[one]
        for weight, other, relation in sorted(found)[:fan_out]:
            passed[other].append((score * -weight * decay, (*path, relation, label(other))))
    return passed


def _joined(passed: Mapping[str, Sequence[_Step]]) -> dict[str, Reached]:
    """What nodes have together of all that was passed to them, with the path of the largest part."""
    return {
        node: Reached(math.fsum(score for score, _ in steps), min(steps, key=lambda step: (-step[0], step[1]))[1])
        for node, steps in passed.items()
    }
