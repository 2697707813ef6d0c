"""What a graph store must offer, and what is written into one: chunks, and the references that each states."""

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
    """An edge between two nodes: `weight` is in (0, 1]. `owner` is the id of the chunk that states it, empty where
    nobody knows: such an edge is not walked under access rights.
    """

    source: str
    relation: str
    target: str
    weight: float
    owner: str


class Link(NamedTuple):
    """What a chunk states: how it is related to a reference, by its key; `weight` is in (0, 1]."""

    relation: str
    key: str
    weight: float = 1.0


@dataclass(frozen=True)
class Entry:
    """A chunk, and all that it states. Raises ConfigError where a link is none."""

    chunk: Chunk
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        for link in self.links:
            if is_chunk(link.key) or link.key.count(":") < 2 or not link.relation:
                raise ConfigError(f"chunk {self.chunk.id!r}: a link has a relation and a reference's key, not {link!r}")
            if not 0.0 < number("the weight of a link", link.weight) <= 1.0:
                raise ConfigError(f"chunk {self.chunk.id!r}: a link's weight is above 0 and at most 1, not {link!r}")

    def edges(self) -> list[Edge]:
        """Its links as edges from its chunk; of several with one relation and key the heaviest."""
        heaviest: dict[tuple[str, str], float] = {}
        for relation, key, weight in self.links:
            heaviest[relation, key] = max(weight, heaviest.get((relation, key), 0.0))
        own, node = self.chunk.id, chunk_node(self.chunk.id)
        return [Edge(node, intern(relation), intern(key), w, own) for (relation, key), w in heaviest.items()]


class GraphStats(NamedTuple):
    """How much a graph holds."""

    chunks: int
    references: int
    edges: int


@runtime_checkable
class GraphStore(Protocol):
    """A graph of chunks and references. A node is a string: `chunk:` and a chunk's id, or a reference's key.

    One with async `afind`, `aedges` and `achunks` too is awaited by async searches. Raises SearchNotAvailableError
    where its server cannot be asked, SearchTimeoutError where that takes too long.
    """

    def put(self, entries: Sequence[Entry]) -> None:
        """Add chunks with all that they state; what one of an id that is there stated before is forgotten."""
        ...

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks, what they state, and references that nothing states any more; unknown ids are passed over."""
        ...

    def find(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """For each name of a reference ("section:420") the keys with it that are here, ascending."""
        ...

    def edges(self, nodes: Sequence[str]) -> Sequence[Edge]:
        """All edges that begin or end at any of these nodes, each once."""
        ...

    def chunks(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """Those of the given chunks that are here, by id."""
        ...

    def stats(self) -> GraphStats:
        """How much there is, whoever may see it."""
        ...


def latest(entries: Sequence[Entry]) -> list[Entry]:
    """Of entries with one chunk id the last."""
    return list({entry.chunk.id: entry for entry in entries}.values())


def packed(chunk: Chunk) -> str:
    """A chunk as JSON. Raises ConfigError where its metadata cannot be JSON."""
    body = {"id": chunk.id, "text": chunk.text, "parent_id": chunk.parent_id, "metadata": chunk.metadata}
    try:
        return as_json({**body, "kb": chunk.kb})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metadata of chunk {chunk.id!r} cannot be kept as JSON ({error}): use strings, numbers, booleans, "
            "None, and lists and dicts of these"
        ) from error


def as_json(value: Any) -> str:
    """JSON in one line that every encoder takes; in ASCII where there are lone surrogates, which none takes."""
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
    return Chunk(body["id"], body["text"], body["parent_id"], body["metadata"], body["kb"])
