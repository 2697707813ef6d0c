"""Any LlamaIndex property graph store as a graph store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.graph_stores.types import (
    TRIPLET_SOURCE_KEY,
    ChunkNode,
    EntityNode,
    LabelledNode,
    PropertyGraphStore,
    Relation,
)

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, SearchError, SearchNotAvailableError
from voicevault_retrievers.structure.graph.store import Edge, Entry, GraphStats, latest, packed, unpacked
from voicevault_retrievers.text.references.reference import chunk_id, chunk_node, is_chunk, name_of

NAME = "voicevault_name"
CHUNK = "voicevault_chunk"
WEIGHT = "weight"


class PropertyGraph:
    """A graph store over a `PropertyGraphStore`: chunks are its chunk nodes, references its entities.

    Relations of other writers are followed too, with weight 1 where they have none. Under access rights only relations
    are followed that begin or end at a chunk, or that name the chunk they come from as LlamaIndex's extractors do.
    Nodes of other writers are found by following relations, not by name. An async search awaits a store that has its
    own async methods. Raises SearchNotAvailableError where the store fails.
    """

    def __init__(self, store: PropertyGraphStore) -> None:
        if not isinstance(store, PropertyGraphStore):
            raise ConfigError(f"expected a PropertyGraphStore of LlamaIndex, not {type(store).__name__}")
        self.store = store
        own = type(store)
        if own.aget is not PropertyGraphStore.aget and own.aget_triplets is not PropertyGraphStore.aget_triplets:
            self.afind, self.aedges, self.achunks = self._afind, self._aedges, self._achunks

    def put(self, entries: Sequence[Entry]) -> None:
        """Add chunks with all their references, replacing those of earlier chunks with the same ids."""
        given = latest(entries)
        self.delete([entry.chunk.id for entry in given])
        edges = [edge for entry in given for edge in entry.edges()]
        nodes: list[LabelledNode] = [_chunk_node(entry.chunk) for entry in given]
        nodes += [_entity(key) for key in dict.fromkeys(edge.target for edge in edges)]
        with _asking(self.store):
            self.store.upsert_nodes(nodes)
            self.store.upsert_relations(_relations(edges))

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks with the references that only they make.

        Stores differ in what they delete with a node. Its neighbours are therefore added again, and then those without
        any reference are deleted.
        """
        ids = [node.id for node in self._got(chunk_ids) if isinstance(node, ChunkNode)]
        if not ids:
            return
        with _asking(self.store):
            around = {node.id: node for triplet in self._triplets(ids) for node in (triplet[0], triplet[2])}
            left = [node for one, node in around.items() if one not in ids]
            self.store.delete(ids=ids)
            if left:
                self.store.upsert_nodes(left)
                stated = {node.id for one, _, other in self._triplets([n.id for n in left]) for node in (one, other)}
                orphans = [node.id for node in left if node.id not in stated and NAME in node.properties]
                if orphans:
                    self.store.delete(ids=orphans)

    def find(self, names: Sequence[str]) -> dict[str, list[str]]:
        """For each name the keys with that name, in ascending order."""
        with _asking(self.store):
            return {name: _keys(name, self.store.get(properties={NAME: name})) for name in names}

    async def _afind(self, names: Sequence[str]) -> dict[str, list[str]]:
        """`find` on the running event loop."""
        with _asking(self.store):
            return {name: _keys(name, await self.store.aget(properties={NAME: name})) for name in names}

    def edges(self, nodes: Sequence[str]) -> list[Edge]:
        """All edges at these nodes, each once."""
        with _asking(self.store):
            return _edges(self._triplets([_id(node) for node in nodes]))

    async def _aedges(self, nodes: Sequence[str]) -> list[Edge]:
        """`edges` on the running event loop."""
        ids = [_id(node) for node in nodes]
        with _asking(self.store):
            return _edges(await self.store.aget_triplets(ids=ids)) if ids else []

    def chunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """The requested chunks that are in the store."""
        return {node.id: _chunk(node) for node in self._got(ids) if isinstance(node, ChunkNode)}

    async def _achunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """`chunks` on the running event loop."""
        with _asking(self.store):
            got = await self.store.aget(ids=list(ids)) if ids else []
        return {node.id: _chunk(node) for node in got if isinstance(node, ChunkNode)}

    def stats(self) -> GraphStats:
        """The number of chunks, references and edges."""
        with _asking(self.store):
            nodes = self.store.get()
            chunks = sum(isinstance(node, ChunkNode) for node in nodes)
            edges = len(_edges(self._triplets([node.id for node in nodes])))
        return GraphStats(chunks, len(nodes) - chunks, edges)

    def _got(self, ids: Sequence[str]) -> list[LabelledNode]:
        with _asking(self.store):
            return self.store.get(ids=list(ids)) if ids else []

    def _triplets(self, ids: Sequence[str]) -> list[Any]:
        return self.store.get_triplets(ids=list(ids)) if ids else []

    def __repr__(self) -> str:
        return f"PropertyGraph({type(self.store).__name__})"


class _asking:  # noqa: N801 - reads as the statement that it is
    """Turns any error of a store into a channel's error."""

    def __init__(self, store: PropertyGraphStore) -> None:
        self.store = store

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, SearchError):
            what = f"{type(self.store).__name__} could not be asked: {str(error) or type(error).__name__}"
            raise SearchNotAvailableError(what) from error


def _id(node: str) -> str:
    return chunk_id(node) if is_chunk(node) else node


def _node(stored: LabelledNode) -> str:
    return chunk_node(stored.id) if isinstance(stored, ChunkNode) else stored.id


def _keys(name: str, nodes: Iterable[LabelledNode]) -> list[str]:
    return sorted({node.id for node in nodes if node.properties.get(NAME) == name})


def _edges(triplets: Iterable[Any]) -> list[Edge]:
    found: dict[Edge, None] = {}
    for source, relation, target in triplets:
        one, other = _node(source), _node(target)
        owner = next((chunk_id(node) for node in (one, other) if is_chunk(node)), None)
        owner = owner or str(relation.properties.get(TRIPLET_SOURCE_KEY) or "")
        weight = relation.properties.get(WEIGHT, 1.0)
        found[Edge(one, relation.label, other, weight if isinstance(weight, float) else 1.0, owner)] = None
    return list(found)


def _chunk_node(chunk: Chunk) -> ChunkNode:
    properties = {**{k: v for k, v in chunk.metadata.items() if isinstance(v, str | int | float)}, CHUNK: packed(chunk)}
    return ChunkNode(id_=chunk.id, text=chunk.text, properties=properties)


def _chunk(node: ChunkNode) -> Chunk:
    """The chunk of a chunk node: as it was stored by this package, else with the node's text and properties."""
    own = node.properties.get(CHUNK)
    return unpacked(own) if isinstance(own, str) else Chunk(node.id, node.text, None, dict(node.properties))


def _entity(key: str) -> EntityNode:
    return EntityNode(name=key, label=key.split(":", 1)[0], properties={NAME: name_of(key)})


def _relations(edges: Sequence[Edge]) -> list[Relation]:
    return [
        Relation(
            label=edge.relation, source_id=edge.owner, target_id=_entity(edge.target).id,
            properties={WEIGHT: edge.weight, TRIPLET_SOURCE_KEY: edge.owner},
        )
        for edge in edges
    ]  # fmt: skip
