"""The files to index, under the names by which a knowledge base knows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from voicevault_retrievers.documents import File, Skipped, files
from voicevault_retrievers.store.sources import Source

Paths: TypeAlias = Iterable[str | Path] | str | Path


def several(paths: Paths) -> list[Path]:
    """One path or several, as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def scan(
    given: Iterable[Path],
    known: Mapping[str, Source],
    *,
    gone: bool = True,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
) -> tuple[list[File], list[Skipped]]:
    """The files found under `given`, each with its known name, and those skipped.

    For `include` and `exclude` see `documents.discover`. Raises DocumentError for a missing path; with `gone`, not for
    one that was read earlier.
    """

    def was_read(path: Path) -> bool:
        folder = path.absolute()
        return gone and any(Path(source.path).is_relative_to(folder) for source in known.values())

    names = {source.path: source.name for source in known.values()}
    found, skipped = files(
        (path for path in given if path.exists() or not was_read(path)),
        include=include,
        exclude=exclude,
        known=names,
    )
    return [_as_known(file, names.get(os.path.abspath(file.path))) for file in found], skipped


def exists(path: str) -> bool:
    """Whether there is a file at a path; true where its folder does not let itself be read."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _as_known(file: File, name: str | None) -> File:
    """The file under the name of its first reading, which may have been from a folder above or below today's."""
    if name in (None, file.name):
        return file
    path = Path(os.path.abspath(file.path))
    if name is None or not path.as_posix().endswith(f"/{name}"):
        return file
    return File(name, path, path.parents[name.count("/")])
