"""The one file layer of the store: what is written is durable, what is read is checked.

Written: a file, or a whole folder, is flushed to the disk before anything refers to it, and a manifest is replaced in
one step. A file's size and sha256 stand in the manifest; a segment's folder also holds the crc32 of every 64 KiB
block of its files (`BLOCKS`), itself under a sha256.

Read: opening checks sizes, the sha256 of small companions (`read`), all blocks of files up to 1 MiB and the first
block of larger ones, which holds an array's header. Text (`BlockFile.read`) is checked block by block when first
read. The other blocks of large arrays are checked when they are copied into another segment (`BlockFile.check`); they
and every sha256 by `problems`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import IndexDamagedError

BLOCK = 64 * 1024
SMALL = 1024 * 1024
BLOCKS = "crc32.json"

REMEDY = "restore the folder from a copy, or index the documents again"
REBUILD = "it can be made again from the chunks: KnowledgeBase.repair(...), or `voicevault repair NAME`"

_ORIGINAL = re.compile(r"(manifest|retriever)\.json|log-\d+|seg-\d+\.dead-\d+|chunks\.jsonl|vectors\.npy")
"""What nothing else on disk holds; all else is derived from it."""


@dataclass(frozen=True)
class FileEntry:
    """What a file must be: its size in bytes and its sha256."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> FileEntry:
        return cls(len(data), hashlib.sha256(data).hexdigest())


def write(path: Path, data: bytes) -> FileEntry:
    """Write a file and flush it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        _flush(file)
    return FileEntry.of(data)


def replace(path: Path, data: bytes) -> None:
    """Put a file in the place of another in one step: after a crash there is the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    write(new, data)
    new.replace(path)
    flush_folder(path.parent)


def append(path: Path, end: int, data: bytes) -> int:
    """Cut a file at `end`, write behind it and flush; where it ends now."""
    with path.open("r+b", buffering=0) as file:
        file.truncate(end)
        file.seek(end)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) or 0 :]
        _flush(file)
    return end + len(data)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal(folder: Path) -> dict[str, FileEntry]:
    """Flush every file of a finished folder, write the checksums of its blocks; all files with their entries."""
    entries: dict[str, FileEntry] = {}
    blocks: dict[str, list[int]] = {}
    for path in sorted(folder.iterdir()):
        with path.open("r+b") as file:
            _flush(file)
        entries[path.name], blocks[path.name] = _digest(path)
    entries[BLOCKS] = write(folder / BLOCKS, json.dumps(blocks).encode())
    flush_folder(folder)
    return entries


def read(path: Path, entry: FileEntry) -> bytes:
    """A whole file, checked; IndexDamagedError when it is missing or another."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    if FileEntry.of(data) != entry:
        raise damaged(path, f"is not what was written ({len(data)} bytes, expected {entry.size})")
    return data


def open_folder(folder: Path, entries: Mapping[str, FileEntry]) -> dict[str, BlockFile]:
    """The files of a sealed folder by name, checked as far as opening does."""
    blocks = json.loads(read(folder / BLOCKS, entries[BLOCKS]))
    return {name: BlockFile(folder / name, entries[name].size, crcs) for name, crcs in blocks.items()}


def problems(folder: Path, entries: Mapping[str, FileEntry]) -> Iterator[str]:
    """What is wrong with the files of a sealed folder, read in full."""
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            yield f"{path} is missing"
        elif path.stat().st_size != entry.size:
            yield f"{path} has {path.stat().st_size} bytes, expected {entry.size}"
        elif _digest(path)[0] != entry:
            yield f"{path} has changed: its sha256 is not the manifest's"


class BlockFile:
    """A file that does not change, with the crc32 of each of its blocks.

    Small ones are read, large ones memory-mapped, which keeps a file open: a process may have a thousand or so.
    """

    def __init__(self, path: Path, size: int, crcs: list[int]) -> None:
        self.path = path
        self._crcs = crcs
        self._checked = bytearray(len(crcs))
        try:
            found = path.stat().st_size
            if found != size:
                raise damaged(path, f"has {found} bytes, expected {size}")
            self._bytes = memoryview(path.read_bytes()) if size <= SMALL else np.memmap(path, mode="r").data
        except FileNotFoundError:
            raise damaged(path, "is missing") from None
        self._check(0, size if size <= SMALL else BLOCK)

    def read(self, start: int, stop: int) -> bytes:
        """These bytes, of blocks that are sound."""
        self._check(start, stop)
        return self._bytes[start:stop].tobytes()

    def array(self) -> NDArray[Any]:
        """The array of a .npy file, not to be written to; only what opening checks has been checked."""
        head = BytesIO(self._bytes[:BLOCK])
        np.lib.format.read_magic(head)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
        return np.ndarray(shape, dtype, self._bytes, head.tell(), order="F" if fortran else "C")

    def check(self) -> None:
        """Check every block; IndexDamagedError for one that has changed."""
        self._check(0, len(self._bytes))

    def _check(self, start: int, stop: int) -> None:
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            if not self._checked[block]:
                if zlib.crc32(self._bytes[block * BLOCK : (block + 1) * BLOCK]) != self._crcs[block]:
                    raise damaged(self.path, f"has changed at bytes {block * BLOCK} to {(block + 1) * BLOCK}")
                self._checked[block] = 1


def original(name: str) -> bool:
    """Whether a file is one that cannot be made again from others."""
    return _ORIGINAL.fullmatch(name) is not None


def damaged(path: Path, what: str) -> IndexDamagedError:
    """The error for a file that is not as it was written."""
    return IndexDamagedError(f"{path} {what}: {REMEDY if original(path.name) else REBUILD}")


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _digest(path: Path) -> tuple[FileEntry, list[int]]:
    digest, size, crcs = hashlib.sha256(), 0, []
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
            crcs.append(zlib.crc32(block))
    return FileEntry(size, digest.hexdigest()), crcs
