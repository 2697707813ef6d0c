"""Many files to chunks; what could not be read is named, and the rest is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from voicevault_retrievers.documents._load import LOADERS, load, name_below
from voicevault_retrievers.documents._split import split
from voicevault_retrievers.errors import DocumentError
from voicevault_retrievers.types import Chunk


@dataclass(frozen=True)
class Skipped:
    """A file that was not read, and why."""

    source_file: str
    reason: str


@dataclass(frozen=True)
class Ingest:
    """What was read: the chunks of `files` files. `skipped` are the others."""

    chunks: tuple[Chunk, ...]
    skipped: tuple[Skipped, ...]
    files: int


def read(
    paths: Iterable[str | Path], *, max_chars: int = 900, progress: Callable[[int, int], None] | None = None
) -> Ingest:
    """Find, load and split. A file that raises DocumentError, or has the source_file of another, is skipped.

    Raises DocumentError for a path that does not exist, MissingExtraError for a library that is not installed.
    """
    found = discover(paths)
    chunks: list[Chunk] = []
    skipped: list[Skipped] = []
    owners: dict[str, Path] = {}
    for done, (root, file) in enumerate(found, 1):
        name = name_below(file, root)
        try:
            if owners.setdefault(name, file) is not file:
                raise DocumentError(f"{file} has the same name as {owners[name]}: read the folder that holds both")
            chunks += split(load(file, root=root), max_chars=max_chars)
        except DocumentError as error:
            skipped.append(Skipped(name, str(error)))
        if progress is not None:
            progress(done, len(found))
    return Ingest(tuple(chunks), tuple(skipped), len(found) - len(skipped))


def discover(paths: Iterable[str | Path]) -> list[tuple[Path, Path]]:
    """Pairs of root and file, each file once: a named file with its folder, a named folder with its files, sorted.

    In folders, what is hidden or of unknown type is left out, and so are links to folders and links that lead out.
    Raises DocumentError for a path that does not exist and a folder that cannot be listed.
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
    real = root.resolve()
    for folder, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            if not name.startswith(".") and file.suffix.lower() in LOADERS and file.resolve().is_relative_to(real):
                yield file


def _refuse(error: OSError) -> None:
    raise DocumentError(f"{error.filename} cannot be listed: {error.strerror}") from error
