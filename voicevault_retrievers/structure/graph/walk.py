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

from voicevault_retrievers.core.blocking import Blocked, blocks
from voicevault_retrievers.core.execution import steps
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Predicate, compile_filter
from voicevault_retrievers.core.types import Chunk, Query, is_named
from voicevault_retrievers.structure.graph.store import Edge, GraphStore
from voicevault_retrievers.text.references.reference import Reference, chunk_id, is_chunk, label, work_of

BACKWARDS: Mapping[str, str] = MappingProxyType(
    {"cites": "cited by", "is": "is", "defines": "defined by", "in": "holds"}
)
"""The names of relations that are walked backwards."""


class StoreCall(NamedTuple):
    """A request of a walk to its store: the method and its one argument. The step receives the result."""

    method: str
    argument: Sequence[str]


class Reached(NamedTuple):
    """A node that activation reached: its score, and the path that brought most of it, as nodes and relations."""

    score: float
    path: tuple[str, ...]


T = TypeVar("T")
_Step: TypeAlias = tuple[float, tuple[str, ...]]


def run(store: GraphStore, walk: Steps[T]) -> T:
    """The result of a walk over a store."""
    return steps.run(walk, lambda call: getattr(store, call.method)(call.argument))


async def arun(store: Any, walk: Steps[T]) -> T:
    """`run` over a store with async methods."""
    return await steps.arun(walk, lambda call: getattr(store, f"a{call.method}")(call.argument))


@dataclass
class Walk:
    """A walk through a graph: how far, and with which rights. `permits` checks a chunk's metadata; None permits all.

    Chunks that are not permitted, or `blocked`, are neither passed through nor counted: the walk is that in a graph of
    the other chunks alone. `fan_out` is how many nodes a node passes activation to, over its heaviest edges, ties by
    ascending id.
    """

    depth: int
    decay: float
    fan_out: int
    permits: Predicate | None = None
    blocked: Blocked | None = None
    chunks: dict[str, Chunk | None] = field(default_factory=dict)
    """The chunks looked up so far."""

    @property
    def narrowed(self) -> bool:
        """Whether some chunks may be left out."""
        return self.permits is not None or bool(self.blocked)

    def from_(self, starts: Mapping[str, Reached]) -> Steps[dict[str, Reached]]:
        """The chunks reached from some nodes, by id, without the starts."""
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
        """The given chunks that are in the store and permitted."""
        wanted = list(dict.fromkeys(ids))
        unknown = [one for one in wanted if one not in self.chunks]
        if unknown:
            got: Mapping[str, Chunk] = yield StoreCall("chunks", unknown)
            self.chunks.update((one, got.get(one)) for one in unknown)
        held = {one: chunk for one in wanted if (chunk := self.chunks[one]) and not blocks(self.blocked, chunk)}
        return {one: chunk for one, chunk in held.items() if self.permits is None or self.permits(chunk.metadata)}

    def edges(self, nodes: Iterable[str]) -> Steps[list[Edge]]:
        """The edges at nodes that the walk may follow."""
        wanted = sorted(nodes)
        if not wanted:
            return []
        edges: list[Edge] = yield StoreCall("edges", wanted)
        if not self.narrowed:
            return edges
        permitted = yield from self.looked_up(one for edge in edges for one in _chunks_of(edge))
        return [edge for edge in edges if edge.owner and all(one in permitted for one in _chunks_of(edge))]


def _chunks_of(edge: Edge) -> list[str]:
    """The chunks that an edge involves: its owner, and the chunks at its ends."""
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
    """The activation that active nodes pass to unseen ones; `chunks` restricts it to chunks, or to references."""
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
    """The sum of the activation that each node received, with the path of the largest part."""
    return {
        node: Reached(math.fsum(score for score, _ in steps), min(steps, key=lambda step: (-step[0], step[1]))[1])
        for node, steps in passed.items()
    }


LIKELY = 0.5
"""The activation of a node whose work may be the one named: "companies act 2013" for "companies act"."""


def starts(walk: Walk, references: Sequence[Reference]) -> Steps[dict[str, Reached]]:
    """The nodes of references, with their initial activation.

    A reference gives 1 to its nodes in the work that it names, and in every work where it names none. It gives `LIKELY`
    where the words of one work's name are all in the other's, or where the graph names no work. A part, 12(3)(a), gives
    one half to 12, and divides the rest equally among its sublevels. Nodes stated only by chunks that are not permitted
    are left out.
    """
    names = {level.name for reference in references for level in reference.levels()}
    if not names:
        return {}
    known: dict[str, Sequence[str]] = yield StoreCall("find", sorted(names))
    if walk.narrowed:
        edges = yield from walk.edges({key for keys in known.values() for key in keys})
        stated = {node for edge in edges for node in (edge.source, edge.target)}
        known = {name: [key for key in keys if key in stated] for name, keys in known.items()}
    given: defaultdict[str, float] = defaultdict(float)
    for key_of in {reference.key: reference for reference in references}.values():
        levels = key_of.levels()
        for at, level in enumerate(reversed(levels)):
            share = 1.0 if len(levels) == 1 else 0.5 if at == 0 else 0.5 / (len(levels) - 1)
            alike = {key: _alike(key_of.work, work_of(key)) for key in known.get(level.name, ())}
            likely = sorted((-part, key) for key, part in alike.items() if part)[: walk.fan_out]
            for part, key in likely:
                given[key] += share * -part
    return {key: Reached(score, (label(key),)) for key, score in given.items()}


def _alike(asked: str, work: str) -> float:
    if asked in ("", work):
        return 1.0
    one, other = set(asked.split()), set(work.split())
    return LIKELY if one <= other or other <= one else 0.0


NEIGHBOURS = 10


def direct(walk: Walk, query: Query, references: Sequence[Reference]) -> Steps[dict[str, Any] | None]:
    """The answer for the first reference that some chunk is, or defines; None where there is none."""
    passes = compile_filter(query.where)
    for reference in references:
        begun = yield from starts(walk, [reference])
        reached = (yield from walk.from_(begun)) if begun else {}
        held = yield from walk.looked_up(reached)
        order = sorted((one for one in held if passes(held[one].metadata)), key=lambda one: (-reached[one].score, one))
        own = next((one for one in order if is_named(reached[one].path)), None)
        if own is not None:
            return _answer(reference, held[own], [(one, reached[one]) for one in order if one != own])
    return None


def _answer(reference: Reference, chunk: Chunk, around: Sequence[tuple[str, Reached]]) -> dict[str, Any]:
    return {
        "reference": reference.text,
        "key": reference.key,
        "chunk_id": chunk.id,
        "text": chunk.text,
        "metadata": dict(chunk.metadata),
        "neighbours": [
            {"chunk_id": one, "score": reached.score, "path": list(reached.path)}
            for one, reached in around[:NEIGHBOURS]
        ],
    }
