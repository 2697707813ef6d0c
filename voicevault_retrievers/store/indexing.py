"""Incremental indexing of files into a knowledge base, with progress: unchanged files are not read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from voicevault_retrievers.core import metrics
from voicevault_retrievers.documents import (
    CHILD_CHARS,
    CHOSEN,
    LIMITS,
    File,
    Note,
    ReadingLimits,
    Skipped,
    Split,
    recipe,
)
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.store.commit import Changes
from voicevault_retrievers.store.discovery import Paths, exists, scan, several
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.language_support import advice
from voicevault_retrievers.store.sources import Source, missing, state_of


@dataclass(frozen=True)
class ReadingProgress:
    """`done` of `files` are read; `file` is being read, empty while none is.

    `chunks` counts the chunks made of them and `embedded` the vectors made; chunks stored already need none. `skipped`
    counts the files that could not be read, `latest` is the last of them. `share` (0 to 1) is the share of the files'
    bytes that is embedded or needs no embedding.
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
    """Reports each step to an observer, and the texts of each commit to `embedding`."""

    def __init__(
        self, found: Sequence[File], skipped: Sequence[Skipped], embedding: Progress | None, observe: Observer | None
    ) -> None:
        self._embedding = embedding
        self._observe = observe
        self._now = ReadingProgress(len(found), skipped=len(skipped), latest=skipped[-1] if skipped else None)
        self._sizes = {file.name: _size(file) for file in found} if observe else {}
        self._whole = sum(self._sizes.values())
        self._settled = self._pending = self._embedded = 0

    def begins(self, file: File) -> None:
        """A file is about to be read."""
        self._tell(file=file.name)

    def ended(self, name: str, chunks: int) -> None:
        """The file of a name was read, and its `chunks` wait for a commit; 0 for an unchanged file."""
        size = self._sizes.get(name, 0)
        if chunks:
            self._pending += size
        else:
            self._settled += size
        self._tell(file="", done=self._now.done + 1, chunks=self._now.chunks + chunks, share=self._share(0.0))

    def skipped(self, file: Skipped) -> None:
        """The file could not be read."""
        self._now = replace(self._now, skipped=self._now.skipped + 1, latest=file)
        self.ended(file.source_file, 0)

    def embeds(self, done: int, total: int) -> None:
        """`done` of the `total` texts to embed in a commit are embedded."""
        if self._embedding:
            self._embedding(done, total)
        self._tell(embedded=self._embedded + done, share=self._share(done / total))

    def committed(self) -> None:
        """The pending chunks are in the knowledge base."""
        self._settled += self._pending
        self._pending, self._embedded = 0, self._now.embedded
        self._tell(share=self._share(0.0))

    def _share(self, pending: float) -> float:
        """The share done, counting `pending` (0 to 1) of the pending bytes."""
        return min(1.0, (self._settled + self._pending * pending) / self._whole) if self._whole else 0.0

    def _tell(self, **changes: Any) -> None:
        if self._observe:
            self._now = replace(self._now, **changes)
            self._observe(self._now)


def _size(file: File) -> int:
    with suppress(OSError):  # an unreadable file is reported where it is read
        return os.stat(file.path).st_size
    return 0


Prune: TypeAlias = Literal["gone", "others"]

COMMIT_AT = 1000
"""How many chunks, of whole files, make a commit."""


@dataclass(frozen=True)
class Update:
    """The result of an update: how many files were read or unchanged, and the changes in chunks.

    `skipped` is all else that was met: files that could not be read, whose chunks stay, and files and folders that are
    not to be read. `gone` are the names of files that were indexed and no longer exist. `notes` says in words what to
    change, such as an embedder that does not support the documents' languages (see `store.language_support`),
    `file_notes` how files were read, such as in another encoding.
    """

    read: int = 0
    unchanged: int = 0
    changes: Changes = field(default_factory=Changes)
    skipped: tuple[Skipped, ...] = ()
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    file_notes: tuple[Note, ...] = ()


def update(
    kb: KnowledgeBase,
    paths: Paths,
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
    headers: bool = True,
    text_field: str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    prune: Prune | None = None,
    limits: ReadingLimits | None = LIMITS,
    progress: Progress | None = None,
    embedding: Progress | None = None,
    observe: Observer | None = None,
) -> Update:
    """Index files, and the files in folders, that are new or have changed since they were read.

    Whole files are committed, about every thousand chunks: after an interruption, the next call resumes there. Chunks
    have at most `max_chars` characters; or, with `parents`, they are children of parents of that size, which are stored
    too (see `documents.split_families`). Without `headers`, titles and headings are not indexed before each chunk. A
    file that was read before keeps its name. For `text_field` and `limits` see `documents.load`, for `include` and
    `exclude` `documents.discover`: what they leave out stays as it is. `prune` "gone" removes files that were read from
    these paths and are no longer on disk; "others" removes all files that are not among these.

    `progress` is told (done, total) of the files, `embedding` of the texts of each commit, `observe` of both and more.
    Raises DocumentError for a path that does not exist (unless it was read before and `prune` is not "others"),
    MissingExtraError for a library that is not installed, and what `KnowledgeBase.add` raises.
    """
    given, known = several(paths), kb.sources
    found, skipped = scan(given, known, gone=prune != "others", include=include, exclude=exclude)
    split = {
        "max_chars": max_chars,
        "parents": parents,
        "children": children,
        "headers": headers,
        "text_field": text_field,
    }
    unread = [one for one in skipped if one.why not in CHOSEN]
    run = _Run(kb, known, split, prune, limits, Watched(found, unread, embedding, observe))
    for _ in unread:
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
    return Update(run.read, run.unchanged, changes, (*skipped, *run.skipped), gone, notes, tuple(run.notes))


def outdated(
    kb: KnowledgeBase,
    paths: Paths,
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
    headers: bool = True,
) -> bool:
    """Whether these files differ from those that were read.

    Raises what `update` raises, and OSError for a file that cannot be read.
    """
    given, known = several(paths), kb.sources
    found, _ = scan(given, known, gone=False)
    made = recipe(max_chars=max_chars, parents=parents, children=children, headers=headers)
    return bool(_gone(given, known, found, "others")) or any(
        _changed(file, known.get(file.name), made, "others") for file in found
    )


class _Run:
    """One run of an update."""

    def __init__(
        self,
        kb: KnowledgeBase,
        known: Mapping[str, Source],
        splitting: Mapping[str, Any],
        prune: Prune | None,
        limits: ReadingLimits | None,
        watched: Watched,
    ) -> None:
        self._kb = kb
        self._known = known
        self._splitting = splitting
        self._recipe = recipe(**splitting)
        self._prune = prune
        self._limits = limits
        self._watched = watched
        self._sources: list[Source] = []
        self._splits: list[Split] = []
        self.read = self.unchanged = 0
        self.changes = Changes()
        self.skipped: list[Skipped] = []
        self.notes: list[Note] = []

    def take(self, file: File) -> None:
        """Read a file if it has changed; commit when enough chunks are pending."""
        try:
            source = _changed(file, self._known.get(file.name), self._recipe, self._prune)
            split = self._split(file) if source else Split(())
        except (DocumentError, OSError) as error:
            self.skipped.append(Skipped(file.name, str(error)))
            metrics.file("skipped")
            self._watched.skipped(self.skipped[-1])
            return
        metrics.file("read" if source else "unchanged")
        self._watched.ended(file.name, len(split.chunks))
        if source is None:
            self.unchanged += 1
            return
        self.read += 1
        self.notes += (Note(file.name, note) for note in split.notes)
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
        self._watched.begins(file)
        with metrics.IngestClock("read"):
            return file.split(**self._splitting, limits=self._limits)


def _changed(file: File, before: Source | None, made: str, prune: Prune | None) -> Source | None:
    """The file's present state; None where it is unchanged.

    Raises DocumentError where a different file of the same name was read before, still exists and is to stay.
    """
    if before is not None and _same(file, before, made):
        return None
    now = Source.of(file.path, file.name, made)
    if before is None or prune == "others" or before.path in ("", now.path) or not exists(before.path):
        return None if now == before else now
    if before.sha256 != now.sha256:
        raise DocumentError(
            f"{file.path} has the same name as {before.path}, which was read before: read the folder that holds both"
        )
    return None if before.recipe == now.recipe else now


def _same(file: File, before: Source, made: str) -> bool:
    """Whether a file is as it was read, by its size and times of change."""
    if not before.state or before.recipe != made or before.path != os.path.abspath(file.path):
        return False
    return state_of(os.stat(file.path)) == before.state


def _gone(
    given: Iterable[Path], known: Mapping[str, Source], found: Iterable[File], prune: Prune | None
) -> tuple[str, ...]:
    """The names of known files that were not found: all, or those under the given paths no longer on disk."""
    if prune == "others":
        return tuple(sorted(known.keys() - {file.name for file in found}))
    lost = missing(known, (file.name for file in found), given)
    return tuple(name for name in lost if not exists(known[name].path))
