"""A graph store in Cypher, shared by all servers that speak it. Values are parameters, never part of a statement.

Nodes have the label `VVNode` and the properties `id`, `name` and, for chunks, `chunk`, the chunk as JSON. Edges have
the type `VVEdge` and the properties `relation` and `weight`, and begin at the chunk that states them. Ids, names and
relations are escaped as in JSON. With a `prefix`, ids and names begin with it, so that several graphs share a database.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from voicevault_retrievers.core.execution.steps import Steps, arun, run
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.structure.graph.store import Edge, Entry, GraphStats, as_json, latest, packed, unpacked
from voicevault_retrievers.text.references.reference import chunk_id, chunk_node, is_chunk, name_of

T = TypeVar("T")

BATCH = 2000
"""The most rows of one statement."""

TEXTS = 200
"""The most chunks, with their texts, of one statement."""

_FORGET = (
    "UNWIND $ids AS id MATCH (:VVNode {id: id})-[e:VVEdge]->(b:VVNode) WITH e, b.id AS target DELETE e "
    "WITH DISTINCT target RETURN target"
)
_ORPHANS = "UNWIND $ids AS id MATCH (n:VVNode {id: id}) WHERE n.chunk IS NULL AND NOT (n)--() DELETE n"
_REMOVE = "UNWIND $ids AS id MATCH (n:VVNode {id: id}) DELETE n"
_CHUNKS = "UNWIND $rows AS row MERGE (n:VVNode {id: row.id}) SET n.chunk = row.chunk"
_REFERENCES = "UNWIND $rows AS row MERGE (n:VVNode {id: row.id}) SET n.name = row.name"
_EDGES = (
    "UNWIND $rows AS row MATCH (a:VVNode {id: row.source}) MATCH (b:VVNode {id: row.target}) "
    "MERGE (a)-[e:VVEdge {relation: row.relation}]->(b) SET e.weight = row.weight"
)
_OUT = "UNWIND $ids AS id MATCH (a:VVNode {id: id})-[e:VVEdge]->(b:VVNode) RETURN a.id, e.relation, b.id, e.weight"
_IN = "UNWIND $ids AS id MATCH (b:VVNode {id: id})<-[e:VVEdge]-(a:VVNode) RETURN a.id, e.relation, b.id, e.weight"
_FIND = "UNWIND $ids AS name MATCH (n:VVNode {name: name}) RETURN name, n.id"
_GET = "UNWIND $ids AS id MATCH (n:VVNode {id: id}) WHERE n.chunk IS NOT NULL RETURN n.chunk"
_COUNT = (
    "MATCH (n:VVNode) WHERE n.id STARTS WITH $prefix RETURN count(n.chunk), count(n.name)",
    "MATCH (a:VVNode)-[e:VVEdge]->(:VVNode) WHERE a.id STARTS WITH $prefix RETURN count(e)",
)


LONGEST = 2000
"""The longest id, in bytes: indexes silently leave out longer ones (FalkorDB's from 4,096 on)."""


class CypherStatement(NamedTuple):
    """A Cypher statement, its parameters, and whether it writes. A step that yields it receives its rows."""

    text: str
    parameters: Mapping[str, Any]
    writes: bool = False


Rows = list[Sequence[Any]]


class Cypher:
    """The statements of a graph store's methods, as steps."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def put(self, entries: Sequence[Entry]) -> Steps[None]:
        """The statements that put entries in; repeating them after a failure is harmless."""
        given = latest(entries)
        chunks = [{"id": self._id(chunk_node(e.chunk.id)), "chunk": packed(e.chunk)} for e in given]
        edges = [edge for entry in given for edge in entry.edges()]
        keys = dict.fromkeys(edge.target for edge in edges)
        _check_lengths([*(row["id"] for row in chunks), *map(self._id, keys)])
        before = yield from self._forget([row["id"] for row in chunks])
        yield from _written(_CHUNKS, chunks, size=TEXTS)
        yield from _written(_REFERENCES, [{"id": self._id(key), "name": self._id(name_of(key))} for key in keys])
        yield from _written(_EDGES, [self._row(edge) for edge in edges])
        yield from _written(_ORPHANS, sorted(before), "ids")

    def delete(self, chunk_ids: Sequence[str]) -> Steps[None]:
        """The statements that remove chunks."""
        ids = list(dict.fromkeys(self._id(chunk_node(one)) for one in chunk_ids))
        before = yield from self._forget(ids)
        yield from _written(_REMOVE, ids, "ids")
        yield from _written(_ORPHANS, sorted(before), "ids")

    def find(self, names: Sequence[str]) -> Steps[dict[str, list[str]]]:
        """The statements that find the keys with these names."""
        rows = (yield CypherStatement(_FIND, {"ids": [self._id(name) for name in names]})) if names else []
        found: dict[str, list[str]] = {name: [] for name in names}
        for name, node in rows:
            found[self._bare(name)].append(self._bare(node))
        return {name: sorted(set(keys)) for name, keys in found.items()}

    def edges(self, nodes: Sequence[str]) -> Steps[list[Edge]]:
        """The statements that read the edges at these nodes."""
        chunks = [self._id(node) for node in nodes if is_chunk(node)]
        others = [self._id(node) for node in nodes if not is_chunk(node)]
        rows = (yield CypherStatement(_OUT, {"ids": chunks})) if chunks else []
        rows = [*rows, *((yield CypherStatement(_IN, {"ids": others})) if others else [])]
        return list(dict.fromkeys(self._edge(*row) for row in rows))

    def chunks(self, ids: Sequence[str]) -> Steps[dict[str, Chunk]]:
        """The statements that read these chunks."""
        wanted = list(dict.fromkeys(ids))
        rows = (yield CypherStatement(_GET, {"ids": [self._id(chunk_node(one)) for one in wanted]})) if wanted else []
        held = {chunk.id: chunk for (text,) in rows for chunk in [unpacked(text)]}
        return {one: held[one] for one in wanted if one in held}

    def stats(self) -> Steps[GraphStats]:
        """The statements that count everything."""
        nodes = yield CypherStatement(_COUNT[0], {"prefix": self.prefix})
        edges = yield CypherStatement(_COUNT[1], {"prefix": self.prefix})
        counts = [*(nodes[0] if nodes else (0, 0)), *(edges[0] if edges else (0,))]  # a graph that does not exist yet
        return GraphStats(*map(int, counts))

    def _forget(self, ids: Sequence[str]) -> Steps[set[str]]:
        """Remove the edges of chunks; returns the references that they led to."""
        targets: set[str] = set()
        for part in _parts(ids):
            rows = yield CypherStatement(_FORGET, {"ids": part}, writes=True)
            targets.update(str(target) for (target,) in rows)
        return targets

    def _row(self, edge: Edge) -> dict[str, Any]:
        ends = {"source": self._id(edge.source), "target": self._id(edge.target)}
        return {**ends, "relation": as_json(edge.relation)[1:-1], "weight": float(edge.weight)}

    def _edge(self, source: str, relation: str, target: str, weight: float) -> Edge:
        node = self._bare(source)
        return Edge(node, str(json.loads(f'"{relation}"')), self._bare(target), float(weight), chunk_id(node))

    def _id(self, node: str) -> str:
        """A node or name in its stored form: servers and clients differ in which control characters they accept."""
        return self.prefix + as_json(node)[1:-1]

    def _bare(self, stored: str) -> str:
        return str(json.loads(f'"{stored[len(self.prefix) :]}"'))


def _check_lengths(ids: Sequence[str]) -> None:
    long = next((one for one in ids if len(one.encode()) > LONGEST), None)
    if long is not None:
        raise ConfigError(f"a graph on a server takes ids and keys of up to {LONGEST} bytes, not {long[:80]!r}...")


def _written(text: str, rows: Sequence[Any], name: str = "rows", size: int = BATCH) -> Steps[None]:
    for part in _parts(rows, size):
        yield CypherStatement(text, {name: part}, writes=True)


def _parts(rows: Sequence[T], size: int = BATCH) -> Iterator[list[T]]:
    remaining = iter(rows)
    while part := list(islice(remaining, size)):
        yield part


class CypherStore(ABC):
    """A graph store with the statements of `Cypher`, sync and async."""

    def __init__(self, cypher: Cypher) -> None:
        self._cypher = cypher

    @abstractmethod
    def ask(self, statement: CypherStatement) -> Rows:
        """The rows of a statement."""

    @abstractmethod
    async def aask(self, statement: CypherStatement) -> Rows:
        """`ask` on the running event loop."""

    def put(self, entries: Sequence[Entry]) -> None:
        """Add chunks with their links, replacing those with the same id."""
        self._run(self._cypher.put(entries))

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks, and references that no other chunk states."""
        self._run(self._cypher.delete(chunk_ids))

    def find(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The keys with each name, ascending."""
        return self._run(self._cypher.find(names))

    async def afind(self, names: Sequence[str]) -> dict[str, list[str]]:
        """`find` on the running event loop."""
        return await self._arun(self._cypher.find(names))

    def edges(self, nodes: Sequence[str]) -> list[Edge]:
        """All edges at these nodes, each once."""
        return self._run(self._cypher.edges(nodes))

    async def aedges(self, nodes: Sequence[str]) -> list[Edge]:
        """`edges` on the running event loop."""
        return await self._arun(self._cypher.edges(nodes))

    def chunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """The given chunks that exist, by id."""
        return self._run(self._cypher.chunks(ids))

    async def achunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """`chunks` on the running event loop."""
        return await self._arun(self._cypher.chunks(ids))

    def stats(self) -> GraphStats:
        """The size of the graph."""
        return self._run(self._cypher.stats())

    def _run(self, statements: Steps[T]) -> T:
        return run(statements, self.ask)

    async def _arun(self, statements: Steps[T]) -> T:
        return await arun(statements, self.aask)
