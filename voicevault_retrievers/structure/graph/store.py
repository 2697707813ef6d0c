"""The interface of graph stores, and their entries: chunks with the references that each states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple, Protocol, runtime_checkable

from voicevault_retrievers._support.checks import number
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.text.references.reference import chunk_node, is_chunk


class Edge(NamedTuple):
    """An edge between two nodes.

    `weight` is in (0, 1]. `owner` is the id of the chunk that states the edge, empty if unknown: walks under access
    rights skip such edges.
    """

    source: str
    relation: str
    target: str
    weight: float
    owner: str


class Link(NamedTuple):
    """A link of a chunk to a reference: the relation, the reference's key, and a `weight` in (0, 1]."""

    relation: str
    key: str
    weight: float = 1.0


@dataclass(frozen=True)
class Entry:
    """A chunk and its links. Raises ConfigError for an invalid link."""

    chunk: Chunk
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        for link in self.links:
            if is_chunk(link.key) or link.key.count(":") < 2 or not link.relation:
                raise ConfigError(f"chunk {self.chunk.id!r}: a link has a relation and a reference's key, not {link!r}")
            if not 0.0 < number("the weight of a link", link.weight) <= 1.0:
                raise ConfigError(f"chunk {self.chunk.id!r}: a link's weight is above 0 and at most 1, not {link!r}")

    def edges(self) -> list[Edge]:
        """The links as edges from the chunk; of several with one relation and key, the heaviest."""
        heaviest: dict[tuple[str, str], float] = {}
        for relation, key, weight in self.links:
            heaviest[relation, key] = max(weight, heaviest.get((relation, key), 0.0))
        own, node = self.chunk.id, chunk_node(self.chunk.id)
        return [Edge(node, intern(relation), intern(key), w, own) for (relation, key), w in heaviest.items()]


class GraphStats(NamedTuple):
    """The size of a graph."""

    chunks: int
    references: int
    edges: int


@runtime_checkable
class GraphStore(Protocol):
    """A graph of chunks and references. A node is a string: `chunk:` and a chunk's id, or a reference's key.

    Async searches await a store that also has async `afind`, `aedges` and `achunks`. Raises SearchNotAvailableError
    where its server is unavailable, SearchTimeoutError where it is too slow.
    """

    def put(self, entries: Sequence[Entry]) -> None:
        """Add chunks with their links, replacing those with the same id."""
        ...

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks, their links, and references that no chunk states any more; unknown ids are ignored."""
        ...

    def find(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """For each name of a reference ("section:420"), the graph's keys with this name, ascending."""
        ...

    def edges(self, nodes: Sequence[str]) -> Sequence[Edge]:
        """All edges that begin or end at any of these nodes, each once."""
        ...

    def chunks(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """The given chunks that exist, by id."""
        ...

    def stats(self) -> GraphStats:
        """The size of the graph, regardless of access rights."""
        ...


def latest(entries: Sequence[Entry]) -> list[Entry]:
    """The last of the entries with each chunk id."""
    return list({entry.chunk.id: entry for entry in entries}.values())


def packed(chunk: Chunk) -> str:
    """A chunk as JSON. Raises ConfigError where its metadata cannot be JSON."""
    body = {"id": chunk.id, "text": chunk.text, "parent_id": chunk.parent_id, "metadata": chunk.metadata}
    try:
        return as_json({**body, "kb": chunk.kb, "header": chunk.header})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metadata of chunk {chunk.id!r} cannot be kept as JSON ({error}): use strings, numbers, booleans, "
            "None, and lists and dicts of these"
        ) from error


def as_json(value: Any) -> str:
    """JSON in one line; in ASCII where there are lone surrogates, which UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def unpacked(text: str) -> Chunk:
    """A chunk from its JSON."""
    body: Mapping[str, Any] = json.loads(text)
    return Chunk(body["id"], body["text"], body["parent_id"], body["metadata"], body["kb"], body["header"])
