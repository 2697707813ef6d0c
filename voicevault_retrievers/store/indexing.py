"""Files into a knowledge base, and how far that has come: what has not changed is not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from voicevault_retrievers.core import metrics
from voicevault_retrievers.documents import CHILD_CHARS, File, Skipped, Split, recipe
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.store.commit import Changes
from voicevault_retrievers.store.discovery import Paths, scan, several
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.language_support import advice
from voicevault_retrievers.store.sources import Source, drift


@dataclass(frozen=True)
class ReadingProgress:
    """`done` of `files` are read; `file` is being read, empty while none is.

    `chunks` were made of them, and of `embedded` the vectors; what is here already needs none. `skipped` files could
    not be read, the last of them `latest`. `share` (0 to 1) of the files' bytes is embedded, or needs nothing.
    """

    files: int = 0
    done: int = 0
    file: str = ""
    chunks: int = 0
    embedded: int = 0
    skipped: int = 0
    latest: Skipped | None = None
    share: float = 0.0


Observer: TypeAlias = Callable[[ReadingProgress], None]


class Watched:
    """Tells an observer of each step; without one it does nothing but tell `embedding`, of each commit's texts."""

    def __init__(
        self, found: Sequence[File], skipped: Sequence[Skipped], embedding: Progress | None, observe: Observer | None
    ) -> None:
        self._embedding = embedding
        self._observe = observe
        self._now = ReadingProgress(len(found), skipped=len(skipped), latest=skipped[-1] if skipped else None)
        self._whole = sum(map(_size, found)) if observe else 0
        self._size = self._settled = self._pending = self._embedded = 0

    def begins(self, file: File) -> None:
        """A file is about to be read."""
        self._size = _size(file) if self._observe else 0
        self._tell(file=file.name)

    def ended(self, chunks: int) -> None:
        """It was read, and so many chunks of it wait for a commit; of one that has not changed, none."""
        if chunks:
            self._pending += self._size
        else:
            self._settled += self._size
        self._tell(file="", done=self._now.done + 1, chunks=self._now.chunks + chunks, share=self._share(0.0))

    def skipped(self, file: Skipped) -> None:
        """It could not be read."""
        self._now = replace(self._now, skipped=self._now.skipped + 1, latest=file)
        self.ended(0)

    def embeds(self, done: int, total: int) -> None:
        """Of the texts of a commit that have no vectors yet, so many have them now."""
        if self._embedding:
            self._embedding(done, total)
        self._tell(embedded=self._embedded + done, share=self._share(done / total))

    def committed(self) -> None:
        """What waited is in the knowledge base."""
        self._settled += self._pending
        self._pending, self._embedded = 0, self._now.embedded
        self._tell(share=self._share(0.0))

    def _share(self, pending: float) -> float:
        """With `pending` (0 to 1) of what waits."""
        return min(1.0, (self._settled + self._pending * pending) / self._whole) if self._whole else 0.0

    def _tell(self, **changes: Any) -> None:
        if self._observe:
            self._now = replace(self._now, **changes)
            self._observe(self._now)


def _size(file: File) -> int:
    with suppress(OSError):  # that it cannot be read is said where it is read
        return file.path.stat().st_size
    return 0


Prune: TypeAlias = Literal["gone", "others"]

COMMIT_AT = 1000
"""Chunks of whole files that make a commit."""


@dataclass(frozen=True)
class Update:
    """What was done: how many files were read, how many are as they were, and what came of it, in chunks.

    `skipped` could not be read: what is here of them stays. `gone` are the names of files that were here and are not
    among those that there are. `notes` says in words what to change: an embedder that does not speak the documents'
    languages (see `store.language_support`).
    """

    read: int = 0
    unchanged: int = 0
    changes: Changes = field(default_factory=Changes)
    skipped: tuple[Skipped, ...] = ()
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def update(
    kb: KnowledgeBase,
    paths: Paths,
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
    prune: Prune | None = None,
    progress: Progress | None = None,
    embedding: Progress | None = None,
    observe: Observer | None = None,
) -> Update:
    """Read files, and the files in folders, that are new or have changed since they were read.

    Whole files are committed, about every thousand chunks: what is broken off goes on from there when it is called
    again. Chunks are of `max_chars` characters; or, with `parents`, children of such parents, which are kept beside
    them (see `documents.split_families`). A file that was read before keeps the name that it had then. `prune` "gone"
    removes files that were read from these paths and are on disk no more; "others" removes all files that are not among
    these. `progress` is told (done, total) of the files, `embedding` of the texts of each commit, `observe` of both and
    more. Raises DocumentError for a path that does not exist (where others stay: and was not read), MissingExtraError
    for a library that is not installed, and as `KnowledgeBase.add` does.
    """
    given, known = several(paths), kb.sources
    found, skipped = scan(given, known, gone=prune != "others")
    sizes = {"max_chars": max_chars, "parents": parents, "children": children}
    run = _Run(kb, known, sizes, prune, Watched(found, skipped, embedding, observe))
    for _ in skipped:
        metrics.file("skipped")
    for done, file in enumerate(found, 1):
        run.take(file)
        if progress:
            progress(done, len(found))
    run.commit()
    gone = _gone(given, known, found, prune)
    removed = sum(kb.delete(source=name) for name in gone) if prune else 0
    changes = replace(run.changes, removed=run.changes.removed + removed)
    advised = advice(kb) if run.read else None
    notes = (advised,) if advised else ()
    return Update(run.read, run.unchanged, changes, (*skipped, *run.skipped), gone, notes)


def outdated(
    kb: KnowledgeBase,
    paths: Paths,
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
) -> bool:
    """Whether these files are others than those that were read; errors as of `update`, OSError where one of them is."""
    given, known = several(paths), kb.sources
    found, _ = scan(given, known, gone=False)
    made = recipe(max_chars=max_chars, parents=parents, children=children)
    return bool(_gone(given, known, found, "others")) or any(
        _changed(file, known.get(file.name), made, "others") for file in found
    )


class _Run:
    """One reading of files, as far as it has come."""

    def __init__(
        self,
        kb: KnowledgeBase,
        known: Mapping[str, Source],
        sizes: Mapping[str, Any],
        prune: Prune | None,
        watched: Watched,
    ) -> None:
        self._kb = kb
        self._known = known
        self._sizes = sizes
        self._prune = prune
        self._watched = watched
        self._sources: list[Source] = []
        self._splits: list[Split] = []
        self.read = self.unchanged = 0
        self.changes = Changes()
        self.skipped: list[Skipped] = []

    def take(self, file: File) -> None:
        """Read a file, if that is needed; commit, if there is enough."""
        self._watched.begins(file)
        made = recipe(**self._sizes)
        try:
            source = _changed(file, self._known.get(file.name), made, self._prune)
            split = self._split(file) if source else Split(())
        except (DocumentError, OSError) as error:
            self.skipped.append(Skipped(file.name, str(error)))
            metrics.file("skipped")
            self._watched.skipped(self.skipped[-1])
            return
        metrics.file("read" if source else "unchanged")
        self._watched.ended(len(split.chunks))
        if source is None:
            self.unchanged += 1
            return
        self.read += 1
        self._sources.append(source)
        self._splits.append(split)
        if sum(len(one.chunks) for one in self._splits) >= COMMIT_AT:
            self.commit()

    def commit(self) -> None:
        """Add what was read since the last commit."""
        chunks = [chunk for split in self._splits for chunk in split.chunks]
        parents = [parent for split in self._splits for parent in split.parents]
        done = self._kb.add(chunks, parents=parents, sources=self._sources, progress=self._watched.embeds)
        self._watched.committed()
        self.changes = Changes(*map(sum, zip(astuple(self.changes), astuple(done), strict=True)))
        self._sources, self._splits = [], []

    def _split(self, file: File) -> Split:
        with metrics.IngestClock("read"):
            return file.split(**self._sizes)


def _changed(file: File, before: Source | None, made: str, prune: Prune | None) -> Source | None:
    """The file as it is now; None where it is as it was read.

    Raises DocumentError where another file was read under its name, is still there, is no copy and is to stay.
    """
    now = Source.of(file.path, file.name, made)
    if before is None or prune == "others" or before.path in ("", now.path) or not Path(before.path).exists():
        return None if now == before else now
    if before.sha256 != now.sha256:
        raise DocumentError(
            f"{file.path} has the same name as {before.path}, which was read before: read the folder that holds both"
        )
    return None if before.recipe == now.recipe else now


def _gone(
    given: Iterable[Path], known: Mapping[str, Source], found: Iterable[File], prune: Prune | None
) -> tuple[str, ...]:
    """The names of files that were read and are not found: all, or those on disk no more of what is given."""
    if prune == "others":
        return tuple(sorted(known.keys() - {file.name for file in found}))
    missing = drift(known, (Source(file.name, "") for file in found), given).gone
    return tuple(name for name in missing if not Path(known[name].path).exists())
