"""The graph of what a knowledge base's chunks refer to: made of the chunks, and kept in a file in its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.store.view import View
from voicevault_retrievers.structure.graph import (
    Edge,
    EmbeddedGraph,
    Entry,
    GraphChannel,
    GraphStats,
    ReferenceReader,
    RuleReferences,
    build_graph,
    declared_laws,
)
from voicevault_retrievers.types import Chunk

FILE = "references.graph"

_LOG = logging.getLogger(__name__)


class Base(Protocol):
    """What is asked of a knowledge base."""

    @property
    def path(self) -> Path: ...

    def view(self, prefix: str = "") -> View: ...


class GraphUpdate(NamedTuple):
    """How many chunks were read, were gone, and were as they had been."""

    read: int
    removed: int
    unchanged: int


def update_graph(base: Base, progress: Callable[[int], None] | None = None) -> GraphUpdate:
    """Bring the file of a knowledge base's graph up to date, reading the chunks that are new or others now.

    A base without the file is searched as well: its graph is made of all chunks when it is first asked. `progress` is
    told how many chunks are done. Raises StorageError where the file cannot be written.
    """
    graph, _, update = _present([base.view()], base.path, progress)
    if update.read or update.removed or not (base.path / FILE).is_file():
        graph.save(base.path / FILE)
    return update


class KeptGraph:
    """The graph of some views; that of the same commits is the same."""

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
    """The graph of the chunks of views, made when it is first asked: of `folder`'s file, where that has one.

    References are read by rules, which know the laws that the chunks declare ("may be cited as ..."). Nothing is put in
    or deleted: what the chunks state, their knowledge base says.
    """

    def __init__(self, views: Sequence[View], folder: Path | None = None) -> None:
        self._views = views
        self._folder = folder
        self._lock = Mutex()

    @property
    def snapshots(self) -> list[Snapshot]:
        """The commits that it is of."""
        return [view.snapshot for view in self._views]

    @cached_property
    def _made(self) -> tuple[EmbeddedGraph, RuleReferences]:
        graph, reader, _ = _present(self._views, self._folder)
        return graph, reader

    @property
    def graph(self) -> EmbeddedGraph:
        """The graph itself."""
        with self._lock:
            return self._made[0]

    @property
    def reader(self) -> ReferenceReader:
        """What reads references out of a query as it read them out of the chunks."""
        with self._lock:
            return self._made[1]

    def read(self, text: str) -> Any:
        """The references in a text."""
        return self.reader.read(text)

    def put(self, entries: Sequence[Entry]) -> None:
        """Put in nothing that the knowledge base does not hold: raises TypeError."""
        raise TypeError("the graph of a knowledge base has what its chunks state: add chunks to the base")

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Delete nothing that the knowledge base holds: raises TypeError."""
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

    def __repr__(self) -> str:
        return f"SnapshotGraph({', '.join(repr(view.snapshot.folder.name) for view in self._views)})"


def graph_channel(graph: SnapshotGraph, *, hops: int = 2, **options: Any) -> GraphChannel:
    """The channel over a graph; `hops` is how many chunks a path may pass, the others are of `GraphChannel`."""
    return GraphChannel(graph, reader=graph, depth=hops, **options)


def _present(
    views: Sequence[View], folder: Path | None, progress: Callable[[int], None] | None = None
) -> tuple[EmbeddedGraph, RuleReferences, GraphUpdate]:
    """The graph of all chunks, what the file has of them being taken from there, and what read their references."""
    now = {chunk.id: chunk for view in views for part in view.parts for chunk in _living(part.rows)}
    reader = _reader(now.values())
    graph = _kept(None if folder is None else folder / FILE)
    known = graph.entries()
    if repr(_reader(entry.chunk for entry in known)) != repr(reader):
        graph, known = EmbeddedGraph(), []  # a law that is declared now may be meant anywhere
    kept = {entry.chunk.id for entry in known if now.get(entry.chunk.id) == entry.chunk}
    gone = [entry.chunk.id for entry in known if entry.chunk.id not in now]
    graph.delete(gone)
    read = build_graph(
        (chunk for one, chunk in now.items() if one not in kept), graph, reader=reader, progress=progress
    )
    return graph, reader, GraphUpdate(read, len(gone), len(kept))


def _kept(file: Path | None) -> EmbeddedGraph:
    """The graph in a file; an empty one where there is none, or one that cannot be read: all is in the chunks."""
    if file is None or not file.is_file():
        return EmbeddedGraph()
    try:
        return EmbeddedGraph.load(file)
    except (IndexDamagedError, IncompatibleIndexError) as error:
        _LOG.warning("%s; it is made anew of the chunks", error)
        return EmbeddedGraph()


def _living(rows: Rows) -> Iterator[Chunk]:
    return (rows.chunks[at] for at in range(len(rows)) if rows.live is None or rows.live[at])


def _reader(chunks: Iterable[Chunk]) -> RuleReferences:
    return RuleReferences(declared_laws(chunk.text for chunk in chunks))
