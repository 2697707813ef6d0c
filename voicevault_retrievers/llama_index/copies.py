"""Copies of a knowledge base's folder on any file system of fsspec."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import manifest
from voicevault_retrievers.store.live_curation import FILE

FileSystem: TypeAlias = AbstractFileSystem


def resolved(path: str | Path, fs: FileSystem | None) -> tuple[FileSystem, str]:
    """A file system and a path on it: the given one, else the path's own (`s3://...`), else the local one."""
    found: FileSystem = url_to_fs(str(path))[0] if fs is None else fs
    return found, str(found._strip_protocol(str(path)))


def local(fs: FileSystem, path: str) -> Path | None:
    """The path on the local disk; None for other file systems."""
    return Path(path).resolve() if isinstance(fs, LocalFileSystem) else None


def put(folder: Path, fs: FileSystem, path: str) -> None:
    """Copy the last commit to a path, replacing an earlier copy; the folder may be written to meanwhile.

    A copy that fails leaves the earlier one. Raises ConfigError where the path holds something other than a copy.
    """
    if fs.exists(path) and not fs.exists(f"{path}/{manifest.NAME}"):
        raise ConfigError(f"{path} is there already and is no knowledge base: remove it, or choose another place")

    def write(new: str) -> None:
        while not _put(folder, fs, new):
            fs.rm(new, recursive=True)

    replace(fs, path, write)


def replace(fs: FileSystem, path: str, write: Callable[[str], None]) -> None:
    """Replace a file or folder at a path by what `write` makes.

    Where `write` fails, the old content stays. On a file system that cannot rename a folder, the manifest is moved
    last: until then there is no complete copy.
    """
    new = f"{path}.{uuid.uuid4().hex}"
    try:
        write(new)
    except BaseException:
        if fs.exists(new):
            fs.rm(new, recursive=True)
        raise
    if fs.exists(path):
        fs.rm(path, recursive=True)
    if isinstance(fs, LocalFileSystem):
        fs.mv(new, path, recursive=True)
        return
    for file in sorted(fs.find(new), key=lambda name: name.endswith(f"/{manifest.NAME}")):
        fs.mv(file, path + file[len(new) :])
    if fs.exists(new):
        fs.rm(new, recursive=True)


def fetch(fs: FileSystem, path: str, folder: Path) -> None:
    """Copy what `put` wrote to a path into a folder; ConfigError where there is nothing."""
    if not fs.exists(f"{path}/{manifest.NAME}"):
        raise ConfigError(f"{path} holds no persisted HybridVectorStore: give the path that persist wrote to")
    for file in fs.find(path):
        own = folder / PurePosixPath(file).relative_to(path)
        own.parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(file, str(own))


def _put(folder: Path, fs: FileSystem, path: str) -> bool:
    """Copy the files of the manifest; False where a new commit replaced it meanwhile and files may be missing."""
    present = manifest.read(folder)
    try:
        kept = {FILE} if (folder / FILE).exists() else set()
        for file in _files(folder, present.names | kept):
            target = f"{path}/{file.relative_to(folder).as_posix()}"
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            fs.put_file(str(file), target)
    except FileNotFoundError:
        if manifest.read(folder) == present:
            raise
        return False
    return manifest.read(folder) == present


def _files(folder: Path, names: set[str]) -> Iterator[Path]:
    for name in sorted({*names, manifest.NAME}):
        path = folder / name
        yield from sorted(path.rglob("*")) if path.is_dir() else (path,)
