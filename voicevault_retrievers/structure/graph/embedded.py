"""A graph in memory, saved in one file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.structure.graph import saved
from voicevault_retrievers.structure.graph.store import Edge, Entry, GraphStats, Link, latest
from voicevault_retrievers.text.references.reference import chunk_id, is_chunk, name_of


class EmbeddedGraph:
    """A graph store in memory, which `save` writes to a file and `load` reads. Threads can share it."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._lock = Mutex()
        self._chunks: dict[str, Chunk] = {}
        self._stated: dict[str, tuple[Edge, ...]] = {}
        self._at: defaultdict[str, dict[str, tuple[Edge, ...]]] = defaultdict(dict)
        self._named: defaultdict[str, set[str]] = defaultdict(set)
        self.put(list(entries))

    def put(self, entries: Sequence[Entry]) -> None:
        """Add chunks with their links, replacing those with the same id."""
        given = latest(entries)
        with self._lock:
            for entry in given:
                self._remove(entry.chunk.id)
                self._add(entry)

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks, and references that no other chunk states."""
        with self._lock:
            for one in chunk_ids:
                self._remove(one)

    def find(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The keys with each name, ascending."""
        with self._lock:
            return {name: sorted(self._named.get(name, ())) for name in names}

    def edges(self, nodes: Sequence[str]) -> list[Edge]:
        """All edges at these nodes, each once."""
        found: dict[Edge, None] = {}
        with self._lock:
            for node in nodes:
                if is_chunk(node):
                    found.update(dict.fromkeys(self._stated.get(chunk_id(node), ())))
                else:
                    found.update((edge, None) for edges in self._at.get(node, {}).values() for edge in edges)
        return list(found)

    def chunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """The given chunks that exist, by id."""
        with self._lock:
            return {one: self._chunks[one] for one in ids if one in self._chunks}

    def stats(self) -> GraphStats:
        """The size of the graph."""
        with self._lock:
            return GraphStats(len(self._chunks), len(self._at), sum(map(len, self._stated.values())))

    def stating(
        self, permits: Callable[[Mapping[str, Any]], bool] | None = None, but: Collection[str] = ()
    ) -> bool | None:
        """Whether any permitted chunk that is not in `but` refers to anything; None where there is no such chunk."""
        found: bool | None = None
        with self._lock:
            for one, chunk in self._chunks.items():
                if one not in but and (permits is None or permits(chunk.metadata)):
                    if self._stated[one]:
                        return True
                    found = False
        return found

    def entries(self) -> list[Entry]:
        """All entries, by chunk id."""
        with self._lock:
            return [
                Entry(chunk, tuple(Link(*edge[1:4]) for edge in self._stated.get(one, ())))
                for one, chunk in sorted(self._chunks.items())
            ]

    def save(self, path: Path | str) -> None:
        """Write the graph to a file, replacing it atomically. Raises StorageError."""
        saved.write(Path(path), self.entries())

    @classmethod
    def load(cls, path: Path | str) -> EmbeddedGraph:
        """The graph in a file.

        Raises StorageError where it cannot be read, IndexDamagedError where it has changed, and IncompatibleIndexError
        where a newer version wrote it.
        """
        return cls(saved.read(Path(path)))

    def _add(self, entry: Entry) -> None:
        one, edges = entry.chunk.id, tuple(entry.edges())
        self._chunks[one] = entry.chunk
        self._stated[one] = edges
        for edge in edges:
            here = self._at[edge.target]
            if not here:
                self._named[name_of(edge.target)].add(edge.target)
            here[one] = (*here.get(one, ()), edge)

    def _remove(self, one: str) -> None:
        if self._chunks.pop(one, None) is None:
            return
        for key in {edge.target for edge in self._stated.pop(one)}:
            here = self._at[key]
            del here[one]
            if not here:
                del self._at[key]
                named = self._named[name_of(key)]
                named.discard(key)
                if not named:
                    del self._named[name_of(key)]

    def __repr__(self) -> str:
        chunks, references, edges = self.stats()
        return f"<EmbeddedGraph: {chunks} chunks, {references} references, {edges} edges>"
