"""Converts many files to chunks. Files that cannot be read are reported and skipped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents._discover import Skipped, find
from voicevault_retrievers.documents._families import CHILD_CHARS, Split, split_families
from voicevault_retrievers.documents._reader import LIMITS, ReadingLimits, load
from voicevault_retrievers.documents._split import split
from voicevault_retrievers.errors import DocumentError

READING = 4
"""A version to raise when files are read or split into other chunks than before."""


@dataclass(frozen=True)
class Note:
    """How a file was read, where that was not plain, such as "read as cp932"."""

    source_file: str
    text: str


@dataclass(frozen=True)
class Ingest:
    """The result of reading `files` files: their chunks and parents.

    `skipped` are all other files and folders that were met, `notes` say how files were read.
    """

    chunks: tuple[Chunk, ...]
    skipped: tuple[Skipped, ...]
    files: int
    parents: tuple[Chunk, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class File:
    """A file to read; `name`, its path below `root`, becomes the `source_file` of its chunks."""

    name: str
    path: Path
    root: Path

    def chunks(self, *, max_chars: int = 900) -> list[Chunk]:
        """Load and split the file. Raises like `load`."""
        return list(self.split(max_chars=max_chars).chunks)

    def split(
        self,
        *,
        max_chars: int = 900,
        parents: int | None = None,
        children: int = CHILD_CHARS,
        headers: bool = True,
        text_field: str | None = None,
        limits: ReadingLimits | None = LIMITS,
    ) -> Split:
        """Load and split: into chunks of `max_chars`, or with `parents` like `split_families`. Raises like both.

        Without `headers`, chunks have none. For `text_field` and `limits` see `load`.
        """
        document = load(self.path, root=self.root, text_field=text_field, limits=limits)
        if parents is None:
            found = Split(tuple(split(document, max_chars=max_chars)))
        else:
            found = split_families(document, parents=parents, children=children)
        found = replace(found, notes=document.notes)
        return found if headers else replace(found, chunks=tuple(replace(one, header="") for one in found.chunks))


def read(
    paths: Iterable[str | Path],
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
    headers: bool = True,
    text_field: str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    limits: ReadingLimits | None = LIMITS,
    progress: Callable[[int, int], None] | None = None,
) -> Ingest:
    """Find, load and split files. A file that raises DocumentError, or has another file's `source_file`, is skipped.

    Chunks have at most `max_chars` characters; with `parents`, they are children of such parents (see
    `split_families`). Without `headers`, chunks have none. For `text_field` and `limits` see `load`, for `include` and
    `exclude` `discover`. Raises DocumentError for a path that does not exist, MissingExtraError for a library that is
    not installed.
    """
    found, skipped = files(paths, include=include, exclude=exclude)
    splits: list[Split] = []
    notes: list[Note] = []
    options: dict[str, Any] = {"max_chars": max_chars, "parents": parents, "children": children, "headers": headers}
    for done, file in enumerate(found, 1):
        try:
            splits.append(file.split(**options, text_field=text_field, limits=limits))
            notes += (Note(file.name, note) for note in splits[-1].notes)
        except DocumentError as error:
            skipped.append(Skipped(file.name, str(error)))
        if progress is not None:
            progress(done, len(found))
    chunks = tuple(chunk for one in splits for chunk in one.chunks)
    above = tuple(parent for one in splits for parent in one.parents)
    return Ingest(chunks, tuple(skipped), len(splits), above, tuple(notes))


def files(
    paths: Iterable[str | Path],
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    known: Collection[str] = (),
) -> tuple[list[File], list[Skipped]]:
    """The files that `read` reads, and all else that was met.

    Of the names of one file, those among the absolute paths `known` come first. Raises like `discover`.
    """
    told = find(paths, include=include, exclude=exclude, known=known)
    found: dict[str, File] = {}
    for file in (File(*one) for one in told.files):
        first = found.setdefault(file.name, file)
        if first is not file:
            reason = f"{file.path} has the same name as {first.path}: read the folder that holds both"
            told.skipped.append(Skipped(file.name, reason))
    return list(found.values()), told.skipped


def recipe(
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
    headers: bool = True,
    text_field: str | None = None,
) -> str:
    """Identifies how files are read and split: another recipe may give other chunks."""
    sizes = f"max_chars {max_chars}" if parents is None else f"parents {parents}, children {children}"
    field = "" if text_field is None else f", text field {text_field}"
    return f"reading {READING}, {sizes}{'' if headers else ', no headers'}{field}"
