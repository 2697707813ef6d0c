"""The graph of the references of a knowledge base's chunks: built from the chunks, and kept in a file in its folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError, StorageError
from voicevault_retrievers.store import disk
from voicevault_retrievers.store.reader import View
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.structure.graph import (
    Edge,
    EmbeddedGraph,
    Entry,
    GraphChannel,
    GraphStats,
    RuleReferences,
    build_graph,
    declared_laws,
    saved,
)
from voicevault_retrievers.structure.graph.building import entry_of
from voicevault_retrievers.structure.graph.saved import Saved
from voicevault_retrievers.text.references.laws import plain

FILE = "references.graph"

_NARROWED = 16
"""For how many sets of visible laws a narrowed graph is kept."""

_LOG = logging.getLogger(__name__)


class GraphBase(Protocol):
    """The part of a knowledge base that a graph needs."""

    @property
    def path(self) -> Path: ...

    def view(self, prefix: str = "") -> View: ...


class GraphUpdate(NamedTuple):
    """How many chunks were read, were gone, and were unchanged."""

    read: int
    removed: int
    unchanged: int


def update_graph(base: GraphBase, progress: Callable[[int], None] | None = None) -> GraphUpdate:
    """Bring the file of a knowledge base's graph up to date, reading new and changed chunks.

    A base without the file is searched as well: its graph is built from all chunks at the first search. `progress` is
    told how many chunks are done. Raises StorageError where the file cannot be written.
    """
    now = _present([base.view()])
    reader = RuleReferences(_together(_declared(now.values())))
    graph, update, current = _made(now, reader, base.path / FILE, progress)
    if update.read or update.removed or not current:
        saved.write(base.path / FILE, graph.entries(), _identity(reader))
    return update


def damage(folder: Path) -> str | None:
    """What is wrong with a graph's file in a knowledge base's folder; None where it is sound or missing."""
    file = folder / FILE
    try:
        if file.is_file():
            saved.read(file)
    except IncompatibleIndexError:
        return None
    except (IndexDamagedError, StorageError) as error:
        return str(error)
    return None


def drop_damaged(folder: Path) -> None:
    """Remove a damaged file of a graph, which can be built again from the chunks."""
    if damage(folder) is not None:
        disk.remove(folder / FILE)
        disk.flush_folder(folder)


class KeptGraph:
    """A cache of the graph of some views, valid while their commits are the same."""

    def __init__(self) -> None:
        self._mutex = Mutex()
        self._graph: SnapshotGraph | None = None

    def of(self, views: Sequence[View], folder: Path | None = None) -> SnapshotGraph:
        """The graph of these views."""
        with self._mutex:
            if self._graph is None or self._graph.snapshots != [view.snapshot for view in views]:
                self._graph = SnapshotGraph(views, folder)
            return self._graph


class SnapshotGraph:
    """The graph of the chunks of views, built at first use, from the file in `folder` where there is one.

    References are read by rules, which know the laws that the chunks declare ("may be cited as ..."). The reader is
    available without building the graph. The graph is read-only: its content comes from the chunks.
    """

    def __init__(self, views: Sequence[View], folder: Path | None = None) -> None:
        self._views = views
        self._folder = folder
        self._lock = Mutex()
        self._reading = Mutex()
        self._laws: list[_Declared] | None = None
        self._narrowed: LRUCache[str, NarrowedGraph] = LRUCache(_NARROWED)

    @property
    def snapshots(self) -> list[Snapshot]:
        """The commits that the graph is built from."""
        return [view.snapshot for view in self._views]

    @property
    def graph(self) -> EmbeddedGraph:
        """The graph, built at first use."""
        with self._lock:
            return self._graph

    @cached_property
    def _graph(self) -> EmbeddedGraph:
        now = _present(self._views)
        self._declarations(now)
        graph, _, _ = _made(now, self.reader, None if self._folder is None else self._folder / FILE)
        return graph

    @property
    def reader(self) -> RuleReferences:
        """The reader of references for queries, the same as for the chunks; available without building the graph."""
        with self._reading:
            return self._reader

    @cached_property
    def _reader(self) -> RuleReferences:
        return RuleReferences(_together(self._declarations()))

    def _declarations(self, now: Mapping[str, Chunk] | None = None) -> list[_Declared]:
        """The declared laws by chunk, read once; `now` are all chunks, where the caller has them."""
        with self._reading:
            if self._laws is None:
                self._laws = _declared((_present(self._views) if now is None else now).values())
            return self._laws

    def read(self, text: str) -> Any:
        """The references in a text."""
        return self.reader.read(text)

    def seen_by(self, require: Filter) -> SnapshotGraph | NarrowedGraph:
        """The graph and the reader of queries for users whose access rights are `require`.

        They know only the laws that permitted chunks declare: declarations in other chunks do not change the result.
        """
        passes, declared = compile_filter(require), self._declarations()
        permitted = [one for one in declared if passes(one.metadata)]
        if len(permitted) == len(declared):
            return self
        laws = _together(permitted)
        hidden = {name: others for name, others in self.reader.laws.more.items() if tuple(laws.get(name, ())) != others}
        if not hidden:
            return self
        key = repr(laws)
        with self._reading:
            narrowed = self._narrowed.get(key)
            if narrowed is None:
                narrowed = NarrowedGraph(self, RuleReferences(laws), hidden)
                self._narrowed.put(key, narrowed)
            return narrowed

    def put(self, entries: Sequence[Entry]) -> None:
        """Raises TypeError: the graph's content comes from the chunks."""
        raise TypeError("the graph of a knowledge base has what its chunks state: add chunks to the base")

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Raises TypeError: the graph's content comes from the chunks."""
        raise TypeError("the graph of a knowledge base has what its chunks state: delete chunks from the base")

    def find(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """As `GraphStore.find`."""
        return self.graph.find(names)

    def edges(self, nodes: Sequence[str]) -> Sequence[Edge]:
        """As `GraphStore.edges`."""
        return self.graph.edges(nodes)

    def chunks(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """As `GraphStore.chunks`."""
        return self.graph.chunks(ids)

    def stats(self) -> GraphStats:
        """As `GraphStore.stats`."""
        return self.graph.stats()

    def stating(self, permits: Callable[[Mapping[str, Any]], bool] | None) -> bool | None:
        """As `EmbeddedGraph.stating`."""
        return self.graph.stating(permits)

    def __repr__(self) -> str:
        return f"SnapshotGraph({', '.join(repr(view.snapshot.folder.name) for view in self._views)})"


class NarrowedGraph:
    """A graph without some declared laws: chunks that name one of them are read again without these laws."""

    def __init__(self, whole: SnapshotGraph, reader: RuleReferences, hidden: Mapping[str, Sequence[str]]) -> None:
        self._whole = whole
        self._hidden = {plain(written) for name, others in hidden.items() for written in (name, *others)}
        self._lock = Mutex()
        self.reader = reader

    @cached_property
    def _other(self) -> EmbeddedGraph:
        """The references, read without the hidden laws, of the chunks that name one of them."""
        chunks = (entry.chunk for entry in self._whole.graph.entries() if self._names_hidden(entry.chunk))
        return EmbeddedGraph(entry_of(chunk, self.reader) for chunk in chunks)

    def _names_hidden(self, chunk: Chunk) -> bool:
        said = plain(" ".join((chunk.text, *(value for value in chunk.metadata.values() if isinstance(value, str)))))
        return any(name in said for name in self._hidden)

    def read(self, text: str) -> Any:
        """The references in a text."""
        return self.reader.read(text)

    def find(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """As `GraphStore.find`; may contain nodes that no chunk refers to now."""
        other, whole = self.other.find(names), self._whole.find(names)
        return {name: sorted({*other[name], *whole[name]}) for name in names}

    def edges(self, nodes: Sequence[str]) -> Sequence[Edge]:
        """As `GraphStore.edges`."""
        edges, other = self._whole.edges(nodes), self.other
        read_anew = other.chunks(list({edge.owner for edge in edges}))
        return [*(edge for edge in edges if edge.owner not in read_anew), *other.edges(nodes)]

    def chunks(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """As `GraphStore.chunks`."""
        return self._whole.chunks(ids)

    def stating(self, permits: Callable[[Mapping[str, Any]], bool] | None) -> bool | None:
        """As `EmbeddedGraph.stating`."""
        read_anew = {entry.chunk.id for entry in self.other.entries()}
        both = {self._whole.graph.stating(permits, read_anew), self.other.stating(permits)}
        return True in both or (False if False in both else None)

    @property
    def other(self) -> EmbeddedGraph:
        """The graph of the chunks that name a hidden law, read without it."""
        with self._lock:
            return self._other


class _Declared(NamedTuple):
    """The laws that a chunk declares, each with its other spellings."""

    metadata: Mapping[str, Any]
    laws: Mapping[str, Sequence[str]]


def graph_channel(graph: SnapshotGraph, *, hops: int = 2, **options: Any) -> GraphChannel:
    """The channel over a graph; `hops` is the most chunks on a path, the other options are those of `GraphChannel`."""
    return GraphChannel(graph, reader=graph, depth=hops, **options)


def _present(views: Sequence[View]) -> dict[str, Chunk]:
    """All chunks, by ascending id, so that the choice between two laws of one short name does not depend on storage."""
    chunks = (chunk for view in views for part in view.parts for chunk in _living(part.rows))
    return {chunk.id: chunk for chunk in sorted(chunks, key=attrgetter("id"))}


def _made(
    now: Mapping[str, Chunk],
    reader: RuleReferences,
    file: Path | None,
    progress: Callable[[int], None] | None = None,
) -> tuple[EmbeddedGraph, GraphUpdate, bool]:
    """The graph of the chunks, the update, and whether the file was read with the same laws.

    Unchanged chunks are taken from the file. A file read with other declared laws is not used, since a declared law may
    be meant anywhere.
    """
    kept = _kept(file)
    current = kept.reader == _identity(reader)
    entries = {entry.chunk.id: entry for entry in kept.entries} if current else {}
    same = {one: entry for one, entry in entries.items() if now.get(one) == entry.chunk}
    graph = EmbeddedGraph(same.values())
    new = (chunk for one, chunk in now.items() if one not in same)
    read = build_graph(new, graph, reader=reader, progress=progress)
    return graph, GraphUpdate(read, sum(one not in now for one in entries), len(same)), current


def _kept(file: Path | None) -> Saved:
    """The content of a graph's file; empty where there is none or it cannot be read."""
    if file is None or not file.is_file():
        return Saved([])
    try:
        return saved.load(file)
    except (IndexDamagedError, IncompatibleIndexError) as error:
        _LOG.warning("%s; it is made anew of the chunks", error)
        return Saved([])


def _living(rows: Rows) -> Iterator[Chunk]:
    return (rows.chunks[at] for at in range(len(rows)) if rows.live is None or rows.live[at])


def _declared(chunks: Iterable[Chunk]) -> list[_Declared]:
    """The chunks' declarations, of chunks that declare a law."""
    return [_Declared(chunk.metadata, laws) for chunk in chunks if (laws := declared_laws([chunk.text]))]


def _together(declared: Iterable[_Declared]) -> dict[str, list[str]]:
    """All declared laws, with their spellings."""
    found: dict[str, dict[str, None]] = {}
    for one in declared:
        for name, others in one.laws.items():
            found.setdefault(name, {}).update(dict.fromkeys(others))
    return {name: list(others) for name, others in found.items()}


def _identity(reader: RuleReferences) -> str:
    """A digest that distinguishes readers that know different laws."""
    return hashlib.sha256(repr(reader).encode()).hexdigest()
