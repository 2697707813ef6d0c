"""Converts many files to chunks. Files that cannot be read are reported and skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents._families import CHILD_CHARS, Split, split_families
from voicevault_retrievers.documents._load import LOADERS, name_below
from voicevault_retrievers.documents._reader import LIMITS, ReadingLimits, load
from voicevault_retrievers.documents._split import split
from voicevault_retrievers.errors import DocumentError

READING = 3
"""A version to raise when files are read or split into other chunks than before."""


@dataclass(frozen=True)
class Skipped:
    """A file that was not read, and why."""

    source_file: str
    reason: str


@dataclass(frozen=True)
class Ingest:
    """The result of reading `files` files: their chunks and parents. `skipped` are the files that were not read."""

    chunks: tuple[Chunk, ...]
    skipped: tuple[Skipped, ...]
    files: int
    parents: tuple[Chunk, ...] = ()


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
        limits: ReadingLimits | None = LIMITS,
    ) -> Split:
        """Load and split: into chunks of `max_chars`, or with `parents` like `split_families`. Raises like both.

        Without `headers`, chunks have none. For `limits` see `load`.
        """
        document = load(self.path, root=self.root, limits=limits)
        if parents is None:
            found = Split(tuple(split(document, max_chars=max_chars)))
        else:
            found = split_families(document, parents=parents, children=children)
        return found if headers else replace(found, chunks=tuple(replace(one, header="") for one in found.chunks))


def read(
    paths: Iterable[str | Path],
    *,
    max_chars: int = 900,
    parents: int | None = None,
    children: int = CHILD_CHARS,
    headers: bool = True,
    limits: ReadingLimits | None = LIMITS,
    progress: Callable[[int, int], None] | None = None,
) -> Ingest:
    """Find, load and split files. A file that raises DocumentError, or has another file's `source_file`, is skipped.

    Chunks have at most `max_chars` characters; with `parents`, they are children of such parents (see
    `split_families`). Without `headers`, chunks have none. For `limits` see `load`. Raises DocumentError for a path
    that does not exist, MissingExtraError for a library that is not installed.
    """
    found, skipped = files(paths)
    splits: list[Split] = []
    for done, file in enumerate(found, 1):
        try:
            splits.append(
                file.split(max_chars=max_chars, parents=parents, children=children, headers=headers, limits=limits)
            )
        except DocumentError as error:
            skipped.append(Skipped(file.name, str(error)))
        if progress is not None:
            progress(done, len(found))
    chunks = tuple(chunk for one in splits for chunk in one.chunks)
    return Ingest(chunks, tuple(skipped), len(splits), tuple(parent for one in splits for parent in one.parents))


def files(paths: Iterable[str | Path]) -> tuple[list[File], list[Skipped]]:
    """The files that `read` reads, and the files whose name an earlier file has. Raises like `discover`."""
    found: dict[str, File] = {}
    skipped: list[Skipped] = []
    for root, path in discover(paths):
        file = File(name_below(path, root), path, root)
        first = found.setdefault(file.name, file)
        if first is not file:
            reason = f"{path} has the same name as {first.path}: read the folder that holds both"
            skipped.append(Skipped(file.name, reason))
    return list(found.values()), skipped


def recipe(
    *, max_chars: int = 900, parents: int | None = None, children: int = CHILD_CHARS, headers: bool = True
) -> str:
    """Identifies how files are read and split: another recipe may give other chunks."""
    sizes = f"max_chars {max_chars}" if parents is None else f"parents {parents}, children {children}"
    return f"reading {READING}, {sizes}{'' if headers else ', no headers'}"


def discover(paths: Iterable[str | Path]) -> list[tuple[Path, Path]]:
    """Pairs of root and file, each file once: a file with its folder, a folder with each of its files, sorted.

    In folders, hidden files, files of unknown type, links to folders and links that lead out are left out. Raises
    DocumentError for a path that does not exist, and a folder that cannot be listed.
    """
    found: dict[str, tuple[Path, Path]] = {}
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        if not path.exists():
            raise DocumentError(f"{path} does not exist: give the path of a file or folder")
        pairs = [(path, file) for file in sorted(_walk(path))] if path.is_dir() else [(path.parent, path)]
        for root, file in pairs:
            found.setdefault(os.path.abspath(file), (root, file))
    return list(found.values())


def _walk(root: Path) -> Iterator[Path]:
    real = os.path.realpath(root)
    for folder, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            # realpath, since Path.resolve raises for a link to itself
            inside = Path(os.path.realpath(file)).is_relative_to(real)
            if inside and not name.startswith(".") and file.suffix.lower() in LOADERS:
                yield file


def _refuse(error: OSError) -> None:
    raise DocumentError(f"{error.filename} cannot be listed: {error.strerror}") from error
