"""The knowledge base on disk: chunks, keyword index and vectors under one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from numpy.typing import ArrayLike

from voicevault_retrievers._support.checks import id_list, number
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.filters import Filter, compile_filter, says_nothing
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk, Failure
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, unknown
from voicevault_retrievers.store import analyzers, codec, embedding, repair
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.channels import Searched
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.store.commit import Changes, begin
from voicevault_retrievers.store.discovery import Paths, scan, several
from voicevault_retrievers.store.edits import Drop, Put, clear
from voicevault_retrievers.store.embedding import Prepared, Progress
from voicevault_retrievers.store.graphs import KeptGraph
from voicevault_retrievers.store.live_curation import LiveCuration
from voicevault_retrievers.store.manifest import Manifest, VectorSearch
from voicevault_retrievers.store.names import existing, locate, vacant
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.reader import View
from voicevault_retrievers.store.repair import problems
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.store.sources import KEY, Drift, Source, by_name, drift
from voicevault_retrievers.store.stats import Stats
from voicevault_retrievers.store.writer import CommitWriter, reporting
from voicevault_retrievers.text import CustomAnalyzer

_VECTORS = get_args(VectorSearch)

_NAMES = (KEY, "source", "file_name")
"""The metadata keys under which this package, LangChain's loaders and LlamaIndex's readers name a file."""


class KnowledgeBase(Searched):
    """Chunks on disk with a keyword index and, where there is an embedder, their vectors.

    Made by `create`, `open` or `open_or_create`. `base` is a name under `root`, which is `default_root()` unless given,
    or a folder, as a Path. Any number of processes read, each at the last commit when it opened or reloaded. One
    process writes: its first change takes the lock, and `close`, the end of a `with` block or of the process releases
    it. Threads share one KnowledgeBase; their concurrent changes are flushed together. Returned chunks have `kb` set to
    the name.

    In all methods that make or open a base, `wait` is how many seconds a change waits while another process writes, and
    `limits` are the limits on a chunk.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        embedder: Embedder | None = None,
        *,
        wait: float = 0.0,
        limits: Limits | None = None,
    ) -> None:
        if embedder is not None:
            embedding.check(snapshot.manifest.embedder, embedder, snapshot.folder.name)
        self._writer = writer = CommitWriter(snapshot, number("wait", wait))
        self._embedder = embedder
        self._limits = codec.limits_of(limits)
        self._mutex = Mutex()
        self._graphs = KeptGraph()
        self._curation = LiveCuration(snapshot.folder, lambda: writer.snapshot.manifest.id)

    @classmethod
    def create(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
        vectors: VectorSearch = "exact",
        wait: float = 0.0,
        limits: Limits | None = None,
    ) -> KnowledgeBase:
        """An empty knowledge base; without an embedder it is searched by keywords only.

        Raises ConfigError for an invalid name, where the folder is not empty, and for an analyzer without a name.
        """
        if vectors not in _VECTORS:
            raise unknown("vectors", vectors, _VECTORS)
        if vectors != "exact" and embedder is None:
            raise ConfigError(f"vectors={vectors!r} needs an embedder, whose vectors they are: give embedder=...")
        if vectors == "chroma":
            require("chromadb", extra="chroma")
        folder = locate(base, root)
        if not vacant(folder):
            raise ConfigError(f"{folder} is there already: open it, remove it, or choose another name")
        entry = None if embedder is None else embedding.describe(embedder)
        with reporting(folder, "made"):
            begin(folder, Manifest.first(analyzers.named(analyzer), entry, vectors))
        return cls.open(folder, analyzer=analyzer, embedder=embedder, wait=wait, limits=limits)

    @classmethod
    def open(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
        wait: float = 0.0,
        limits: Limits | None = None,
    ) -> KnowledgeBase:
        """An existing knowledge base; its embedder is loaded at first use, unless given.

        A `CustomAnalyzer` must be given again as `analyzer`. Raises ConfigError where there is no base,
        IndexDamagedError where files have changed, StorageError where they cannot be read, and IncompatibleIndexError
        for a newer format, another embedder or analyzer, or an analyzer that now gives other terms (see `repair`).
        """
        folder = existing(base, root)
        with reporting(folder, "read"):
            snapshot = Snapshot.open(folder, analyzer=analyzer)
        return cls(snapshot, embedder, wait=wait, limits=limits)

    @classmethod
    def open_or_create(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
        vectors: VectorSearch | None = None,
        wait: float = 0.0,
        limits: Limits | None = None,
    ) -> KnowledgeBase:
        """Open a knowledge base, or create it where there is none; raises what either raises.

        Also raises ConfigError where the existing base was made with other `vectors`.
        """
        options: dict[str, Any] = {"analyzer": analyzer, "embedder": embedder, "wait": wait, "limits": limits}
        folder = locate(base, root)
        if vacant(folder):
            try:
                return cls.create(base, root=root, vectors=vectors or "exact", **options)
            except ConfigError:
                if vacant(folder):  # otherwise another caller created it
                    raise
        opened = cls.open(base, root=root, **options)
        if vectors not in (None, opened.manifest.vectors):
            raise ConfigError(
                f"knowledge base {opened.name!r} was made with vectors={opened.manifest.vectors!r}, not {vectors!r}: "
                "open it without, or index the documents into a new one"
            )
        return opened

    @classmethod
    def repair(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
        progress: Progress | None = None,
    ) -> KnowledgeBase:
        """Rebuild all that is derived from the chunks, with the analyzer as installed now, and open the base.

        Use it where the stemmer has changed, and where files of postings, ids or columns are damaged or missing.
        Chunks, ids and vectors stay as they are; a repair that is killed leaves the base as it was. The questions about
        the chunks are repaired too, and a damaged graph file is removed, to be built again. `progress` is told (done,
        total) of the chunks. Raises LockedError while another process writes, IndexDamagedError where chunks, vectors,
        tombstones, the log or the manifest are damaged, also those of the questions, and what `open` raises.
        """
        folder = existing(base, root)
        with reporting(folder, "repaired"):
            repair.repair(folder, analyzer, progress)
        return cls.open(folder, analyzer=analyzer, embedder=embedder)

    @property
    def path(self) -> Path:
        return self._snapshot.folder

    @property
    def analyzer(self) -> SavedAnalyzer:
        return self._snapshot.analyzer

    @property
    def embedder(self) -> Embedder | None:
        """The embedder of the vectors, loaded by name at first use; None in a base for keywords only.

        Raises ConfigError where it was not given and cannot be loaded, IncompatibleIndexError where it differs.
        """
        entry = self.manifest.embedder
        if self._embedder is not None:
            embedding.check(entry, self._embedder, self.name)  # another base may have replaced the first
        elif entry is not None:
            with self._mutex:
                self._embedder = self._embedder or embedding.make(entry, self.name)
        return self._embedder

    @property
    def manifest(self) -> Manifest:
        """The content of the base, with the fingerprints of its analyzer and embedder."""
        return self._snapshot.manifest

    @property
    def parts(self) -> tuple[SearchedPart, ...]:
        """The parts that new channels search."""
        return self._snapshot.parts

    @property
    def notes(self) -> tuple[Failure, ...]:
        """The failures that a search reports: that the base is empty, and that the end of its log is damaged."""
        return self.view().notes

    def __len__(self) -> int:
        return len(self._snapshot)

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks, by ascending id."""
        return iter(self._snapshot)

    def ids(self) -> list[str]:
        """The ids of the chunks, ascending."""
        return list(self._snapshot.ids())

    def get(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """The given chunks that exist, by id."""
        found = map(self._snapshot.get, id_list(ids))
        return {chunk.id: chunk for chunk in found if chunk is not None}

    def parents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """The given parents that exist, by id."""
        found = map(self._snapshot.parent, id_list(ids))
        return {parent.id: parent for parent in found if parent is not None}

    def has_parents(self, require: Filter | None = None) -> bool:
        """Whether there is a parent that the access rights permit."""
        passes, found = compile_filter(require), map(self._snapshot.parent, self._snapshot.parent_ids())
        return any(passes(parent.metadata) for parent in found if parent is not None)

    @property
    def sources(self) -> Mapping[str, Source]:
        """The files that chunks were read from, by name, as given to `add`."""
        return dict(self._snapshot.sources)

    def drift(self, paths: Paths, *, recipe: str = "") -> Drift:
        """How files, and the files in folders, differ from what was read; contents are compared.

        A file read with another `recipe` has changed too. Raises DocumentError for an unknown path that does not exist.
        """
        given, known = several(paths), self._snapshot.sources
        found, _ = scan(given, known)
        return drift(known, (Source.of(file.path, file.name, recipe) for file in found), given)

    def needs_rebuild(self, paths: Paths, *, recipe: str = "") -> bool:
        """Whether files, or files in folders, are new, changed or gone since they were read; see `drift`."""
        return bool(self.drift(paths, recipe=recipe))

    def stats(self) -> Stats:
        """Statistics of the knowledge base."""
        return Stats.of(self._snapshot)

    def view(self, prefix: str = "") -> View:
        """The present commit, unaffected by later writes; `prefix` precedes every id."""
        return View(self._snapshot, lambda: self.embedder, self._writer.chroma, prefix, self._curation)

    def add(
        self,
        chunks: Iterable[Chunk],
        vectors: ArrayLike | None = None,
        *,
        parents: Iterable[Chunk] = (),
        sources: Iterable[Source] = (),
        progress: Progress | None = None,
    ) -> Changes:
        """Add chunks in one commit, replacing those with the same id.

        Unchanged chunks are left as they are, and a text that is stored under its id already is not embedded again.
        `vectors`, a row of length 1 per chunk, replaces embedding, and the vector that a chunk has; `progress` is told
        (done, total) of the texts to embed. `parents`, and chunks whose `chunk_type` is "parent", are stored without a
        vector and not searched; a parent is deleted with its last chunk. `sources` are files whose content the given
        chunks are; other chunks of these files are deleted. Raises ConfigError for invalid chunks or vectors,
        LockedError while another process writes, StorageError.
        """
        return self._put(chunks, vectors, parents, sources, progress, alone=False)

    def replace(
        self,
        chunks: Iterable[Chunk],
        vectors: ArrayLike | None = None,
        *,
        parents: Iterable[Chunk] = (),
        sources: Iterable[Source] = (),
        progress: Progress | None = None,
    ) -> Changes:
        """Replace all chunks, parents and sources by these, in one commit; arguments and errors as for `add`."""
        return self._put(chunks, vectors, parents, sources, progress, alone=True)

    def _put(
        self,
        chunks: Iterable[Chunk],
        vectors: ArrayLike | None,
        parents: Iterable[Chunk],
        sources: Iterable[Source],
        progress: Progress | None,
        *,
        alone: bool,
    ) -> Changes:
        every = codec.kept(chunks, self.name, self._limits)
        kept = codec.kept([*(chunk for chunk in every if chunk.is_parent), *parents], self.name, self._limits)
        given = [chunk for chunk in every if not chunk.is_parent]
        named = by_name(sources)
        entry = self.manifest.embedder
        if entry is None and vectors is not None:
            raise ConfigError(f"knowledge base {self.name!r} was created without an embedder and keeps no vectors")
        rows = () if entry is None or vectors is None else embedding.given_rows(vectors, every, entry.dimension)
        if not given and not kept and not named and not alone:
            return Changes()
        prepared = Prepared(lambda: self.embedder, dict(zip((chunk.id for chunk in given), rows, strict=False)))
        with self._writer.holding() as snapshot:
            if snapshot.manifest.embedder != entry:
                raise IncompatibleIndexError(
                    f"another knowledge base, with another embedder, is in the place of {self.name!r}: open it anew"
                )
            prepared.prepare(snapshot, given, progress)
        return self._writer.commit(Put(given, prepared, kept, named, alone))

    def hold(self, chunks: Iterable[Chunk] = ()) -> None:
        """Take the writer's lock, and load what others have committed; raises what `add` raises of these chunks."""
        codec.kept(chunks, self.name, self._limits)
        self._writer.hold()

    def delete(
        self, ids: Iterable[str] | None = None, *, source: str | None = None, where: Filter | None = None
    ) -> int:
        """Delete chunks in one commit; returns how many were deleted.

        Chunks are chosen by ids, by a filter, or by the file that they were read from, which their metadata names as
        `source_file`, `source` or `file_name`. Parents are deleted with their last chunk. Raises ConfigError unless
        exactly one of the three is given, and for a filter with no condition (see `clear`); LockedError while another
        process writes.
        """
        if sum(given is not None for given in (ids, source, where)) != 1:
            raise ConfigError("say which chunks to delete by one of ids, source=... and where=...")
        if where is not None:
            compile_filter(where)
            if says_nothing(where):
                raise ConfigError(f"where={where!r} has a part that says nothing: say what is to go, or use clear()")
            return self._writer.commit(Drop(where=where))
        if source is not None:
            if not isinstance(source, str):
                raise ConfigError(f"source is the name of a file, not {source!r}")
            return self._writer.commit(Drop(where={"$or": [{key: source} for key in _NAMES]}, source=source))
        return self._writer.commit(Drop(tuple(id_list(ids or ()))))

    def clear(self) -> int:
        """Delete everything, in one commit; returns how many chunks were deleted."""
        return self._writer.commit(clear)

    def compact(self) -> None:
        """Merge all segments into one, without deleted chunks; raises LockedError while another process writes."""
        self._writer.compact()

    def reload(self) -> bool:
        """Load what others have committed; returns whether there was anything. Existing channels do not change."""
        return self._writer.reload()

    def verify(self) -> list[str]:
        """What is wrong on disk, with the questions and the graph, every file read in full; empty if all is sound."""
        return problems(self.path, self.analyzer)

    def close(self) -> None:
        """Release the lock. Reading goes on, and a further write takes the lock again."""
        self._writer.close()

    def __enter__(self) -> KnowledgeBase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KnowledgeBase.open({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled copy opens the base again: it reads the last commit, and holds no lock."""
        custom = self.analyzer if isinstance(self.analyzer, CustomAnalyzer) else None
        given: dict[str, Any] = {"wait": self._writer.wait, "limits": self._limits}
        return partial(type(self).open, analyzer=custom, embedder=self._embedder, **given), (self.path,)

    @property
    def _snapshot(self) -> Snapshot:
        return self._writer.snapshot
