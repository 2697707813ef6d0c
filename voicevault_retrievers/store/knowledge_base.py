"""The knowledge base on disk: chunks, keyword index and vectors under one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from voicevault_retrievers.dense.exact import VectorChannel, unit_rows
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.store import analyzers, codec, embedding, repairing
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.channels import keyword_channel, vector_channel
from voicevault_retrievers.store.commit import Changes, begin, commit, sweep
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.log import Record
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.names import existing, locate, vacant
from voicevault_retrievers.store.snapshot import Part, Snapshot
from voicevault_retrievers.store.verify import problems
from voicevault_retrievers.types import Chunk


class KnowledgeBase:
    """Chunks on disk with a keyword index and, where there is an embedder, their vectors.

    Made by `create`, `open` or `open_or_create`. A base is named (`base` is a name under `root`, which is
    `default_root()` unless given) or is a folder (`base` is a Path). Any number of processes read, each the last
    commit when it opened or reloaded; one writes: the first `add` or `delete` takes the lock, and `close`, the end of
    a `with` block or of the process gives it back. Chunks come back with `kb` set to the name.
    """

    def __init__(self, snapshot: Snapshot, embedder: Embedder | None = None) -> None:
        if embedder is not None:
            embedding.check(snapshot.manifest.embedder, embedder, snapshot.folder.name)
        self._snapshot = snapshot
        self._embedder = embedder
        self._lock: Lock | None = None
        self._mutex = Mutex()

    @classmethod
    def create(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
    ) -> KnowledgeBase:
        """An empty knowledge base; searched by keywords only when there is no embedder.

        Raises ConfigError for a name that is none, where there is something already, or for an analyzer without a name.
        """
        folder = locate(base, root)
        if not vacant(folder):
            raise ConfigError(f"{folder} is there already: open it, remove it, or choose another name")
        entry = None if embedder is None else embedding.describe(embedder)
        begin(folder, Manifest.first(analyzers.named(analyzer), entry))
        return cls(Snapshot.open(folder, analyzer=analyzer), embedder)

    @classmethod
    def open(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
    ) -> KnowledgeBase:
        """A knowledge base that exists; its embedder is loaded when it is needed, unless given.

        `analyzer` is needed where it is a `CustomAnalyzer`, whose name alone is on disk. Raises ConfigError where there
        is no base, IndexDamagedError where files are not as they were written, and IncompatibleIndexError for a newer
        format, another embedder, another analyzer, or one that gives other terms here (see `repair`).
        """
        return cls(Snapshot.open(existing(base, root), analyzer=analyzer), embedder)

    @classmethod
    def open_or_create(
        cls,
        base: str | Path,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
    ) -> KnowledgeBase:
        """Open a knowledge base, or create it where there is none; errors as of both."""
        made = cls.create if vacant(locate(base, root)) else cls.open
        return made(base, root=root, analyzer=analyzer, embedder=embedder)

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
        """Make all that is derived from the chunks again, with the analyzer as it is installed now, and open the base.

        The remedy where the stemmer has changed, and where files of postings, ids or columns are damaged or missing.
        Chunks, ids and vectors stay as they are; a repair that is killed leaves the base as it was. `progress` is told
        (done, total) of the chunks. Raises LockedError while another process writes, IndexDamagedError where chunks,
        vectors, tombstones, the log or the manifest are damaged, and as `open` does.
        """
        folder = existing(base, root)
        repairing.repair(folder, analyzer, progress)
        return cls(Snapshot.open(folder, analyzer=analyzer), embedder)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def path(self) -> Path:
        return self._snapshot.folder

    @property
    def analyzer(self) -> SavedAnalyzer:
        return self._snapshot.analyzer

    @property
    def embedder(self) -> Embedder | None:
        """The embedder of the vectors, None in a base for keywords only; made by its name on first use.

        Raises ConfigError where it was not given and cannot be made, IncompatibleIndexError where it is another now.
        """
        entry = self._snapshot.manifest.embedder
        if self._embedder is None and entry is not None:
            with self._mutex:
                self._embedder = self._embedder or embedding.make(entry, self.name)
        return self._embedder

    @property
    def manifest(self) -> Manifest:
        """What the base consists of, with the fingerprints of its analyzer and embedder."""
        return self._snapshot.manifest

    @property
    def parts(self) -> tuple[Part, ...]:
        """What channels made now search."""
        return self._snapshot.parts

    def __len__(self) -> int:
        return len(self._snapshot)

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks, by ascending id."""
        return iter(self._snapshot)

    def ids(self) -> list[str]:
        """The ids of the chunks, ascending."""
        return list(self._snapshot.ids())

    def get(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """Those of the given chunks that are here, by id."""
        found = ((chunk_id, self._snapshot.get(chunk_id)) for chunk_id in codec.several(ids))
        return {chunk_id: chunk for chunk_id, chunk in found if chunk is not None}

    def bm25(self, **options: Any) -> BM25:
        """The keyword channel over the present chunks; `options` are those of `BM25`."""
        return keyword_channel(self.parts, self.analyzer, **options)

    def dense(self, **options: Any) -> VectorChannel:
        """The vector channel over the present chunks; `options` are those of `VectorChannel`.

        Raises ConfigError in a base for keywords only, and as `embedder` does.
        """
        return vector_channel(self.parts, self.embedder, self.name, **options)

    def add(
        self, chunks: Iterable[Chunk], vectors: ArrayLike | None = None, *, progress: Progress | None = None
    ) -> Changes:
        """Add chunks, all in one commit; those whose id is here already take the other's place.

        Chunks whose content is here already are left as they are, and not embedded. `vectors`, a row of length 1 per
        chunk, saves embedding; `progress` is told (done, total) of the texts to embed. Raises ConfigError for chunks
        or vectors that do not fit, LockedError while another process writes.
        """
        return self._put(chunks, vectors, progress, alone=False)

    def replace(self, chunks: Iterable[Chunk], *, progress: Progress | None = None) -> Changes:
        """Make these the chunks that are here: as `add`, and all others are deleted in the same commit."""
        return self._put(chunks, None, progress, alone=True)

    def _put(
        self, chunks: Iterable[Chunk], vectors: ArrayLike | None, progress: Progress | None, *, alone: bool
    ) -> Changes:
        given = codec.kept(chunks, self.name)
        entry = self.manifest.embedder
        if entry is None and vectors is not None:
            raise ConfigError(f"knowledge base {self.name!r} was created without an embedder and keeps no vectors")
        rows = None if entry is None or vectors is None else unit_rows(vectors, len(given), entry.dimension)
        if not given and not alone:
            return Changes()
        with self._writing():
            present = [self._snapshot.get(chunk.id) for chunk in given]
            changed = [at for at, (new, old) in enumerate(zip(given, present, strict=True)) if not codec.same(new, old)]
            picked = [given[at] for at in changed]
            rows = self._embed(picked, progress) if rows is None else rows[changed]
            gone = tuple(sorted(set(self.ids()).difference(chunk.id for chunk in given))) if alone else ()
            if picked or gone:
                self._snapshot = commit(self._snapshot, Record(tuple(picked), rows, gone))
        replaced = sum(present[at] is not None for at in changed)
        return Changes(len(changed) - replaced, replaced, len(given) - len(changed))

    def delete(self, ids: Iterable[str]) -> int:
        """Delete chunks, all in one commit; how many were here. Raises LockedError while another process writes."""
        wanted = tuple(dict.fromkeys(codec.several(ids)))
        with self._writing():
            gone = tuple(chunk_id for chunk_id in wanted if self._snapshot.get(chunk_id) is not None)
            if gone:
                self._snapshot = commit(self._snapshot, Record(deleted=gone))
        return len(gone)

    def reload(self) -> bool:
        """See what others have committed since; whether there was anything. Channels made before stay as they are."""
        if self._lock is not None:  # all commits are this one's, and a long add does not keep readers waiting
            return False
        with self._mutex:
            before = self._snapshot
            self._snapshot = Snapshot.open(self.path, before)
            return self._snapshot is not before

    def verify(self) -> list[str]:
        """What is wrong on disk, every file read in full; empty when all is sound."""
        return problems(self.path, self.analyzer)

    def close(self) -> None:
        """Let others write. Reading goes on, and a further write takes the lock again."""
        with self._mutex:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> KnowledgeBase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KnowledgeBase.open({str(self.path)!r})"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Holds the lock, on the last commit; a write that fails gives it back, so that the next one reads again."""
        with self._mutex:
            try:
                if self._lock is None:
                    self._lock = Lock(self.path / "lock")
                    self._snapshot = Snapshot.open(self.path, self._snapshot)
                    sweep(self.path, self.manifest)
                yield
            except BaseException:
                self.close()
                raise

    def _embed(self, chunks: list[Chunk], progress: Progress | None) -> embedding.Rows | None:
        embedder = self.embedder
        return None if embedder is None else embedding.embed(embedder, [chunk.text for chunk in chunks], progress)
