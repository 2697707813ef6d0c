"""The only module that changes anything on disk, one system call per step, so that tests can interrupt between steps.

A function that writes has flushed what it wrote when it returns. A new, moved or removed name is durable after
`flush_folder`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview

_AT_ONCE = 1024 * 1024


def write(path: Path, pieces: Iterable[Data]) -> None:
    """Create or truncate a file, and write the pieces one after another."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        waiting = bytearray()
        for piece in pieces:
            if len(waiting) + len(piece) > _AT_ONCE:
                _write(descriptor, waiting)
                waiting = bytearray()
            if len(piece) > _AT_ONCE:
                _write(descriptor, piece)
            else:
                waiting += piece
        _write(descriptor, waiting)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, end: int, data: Data) -> None:
    """Truncate a file at `end` and write `data` there.

    After an OSError the file is truncated at `end` again; where that fails too, the error says so.
    """
    descriptor = os.open(path, os.O_WRONLY)
    try:
        _end(descriptor, end, data)
    except OSError as error:
        try:
            _end(descriptor, end, b"")
        except OSError as second:
            what = f"{error.strerror}; nor could it be taken back ({second.strerror}), so it may stand"
            raise OSError(error.errno, what, path) from error
        raise
    finally:
        os.close(descriptor)


def cut(path: Path, end: int) -> None:
    """Truncate a file at `end`; what comes before is durable then, whoever wrote it."""
    append(path, end, b"")


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder; FileExistsError where the name is taken."""
    os.mkdir(folder)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing ancestors, durable at once; does nothing where it exists."""
    if not folder.is_dir():
        make_folders(folder.parent)
        with suppress(FileExistsError):  # another process may make it as well
            os.mkdir(folder)
        flush_folder(folder.parent)


def rename(old: Path, new: Path) -> None:
    """Rename atomically, replacing a file of the new name; the new name of a folder must be free."""
    os.replace(old, new)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content; a link to a folder is removed, not followed."""
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            remove(inner)
        os.rmdir(path)
    else:
        os.unlink(path)


def _end(descriptor: int, end: int, data: Data) -> None:
    os.ftruncate(descriptor, end)
    os.lseek(descriptor, end, os.SEEK_SET)
    _write(descriptor, data)
    os.fsync(descriptor)


def _write(descriptor: int, data: Data) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
