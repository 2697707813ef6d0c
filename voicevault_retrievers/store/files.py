"""Files with checksums: what is written is durable (`disk`) and digested as it is written; what is read is checked.

A file, or a whole folder (`NewFolder`), is flushed before anything refers to it, and a manifest is replaced in one
step. A file's size and sha256 stand in the manifest; a segment's folder also holds the crc32 of every 64 KiB block of
its files (`BLOCKS`), itself under a sha256.

Read: opening checks sizes, the sha256 of small companions (`read`), all blocks of files up to 1 MiB and the first
block of larger ones, which holds an array's header. Every other block is checked before what is in it is first used
(`BlockFile`, `CheckedRows`), so that a flipped bit is an error at the search that meets it; every sha256 is checked by
`problems`.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.store import disk
from voicevault_retrievers.store.disk import Data

BLOCK = 64 * 1024
SMALL = 1024 * 1024
BLOCKS = "crc32.json"

REMEDY = "restore the folder from a copy, or index the documents again"
REBUILD = "it can be made again from the chunks: KnowledgeBase.repair(...), or `voicevault kb repair NAME`"

_ORIGINAL = re.compile(
    r"(manifest|retriever)\.json|(log|sources)-\d+|seg-\d+\.dead-\d+(\.parents)?|(chunks|parents)\.jsonl|vectors\.npy"
)
"""What nothing else on disk holds; all else is derived from it."""

_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][a-z]\d+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""The header of a .npy file. numpy reads it by `ast`; in CPython 3.11 threads that parse at once get SystemErrors."""


@dataclass(frozen=True)
class FileEntry:
    """What a file must be: its size in bytes and its sha256."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: Data) -> FileEntry:
        return cls(len(content), hashlib.sha256(content).hexdigest())


class Digest:
    """The size, sha256 and crc32 per block of bytes that pass through."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._size = 0
        self.crcs: list[int] = []

    def over(self, pieces: Iterable[Data]) -> Iterator[Data]:
        """The pieces, each counted before it goes on."""
        for piece in pieces:
            self._sha256.update(piece)
            self._count(memoryview(piece))
            yield piece

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self._size, self._sha256.hexdigest())

    def _count(self, rest: memoryview) -> None:
        while rest:
            filled = self._size % BLOCK
            own, rest = rest[: BLOCK - filled], rest[BLOCK - filled :]
            if not filled:
                self.crcs.append(0)
            self.crcs[-1] = zlib.crc32(own, self.crcs[-1])
            self._size += len(own)


class NewFolder:
    """A folder that is being written: one file after the other, then `seal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: dict[str, Digest] = {}
        disk.make_folder(path)

    def write(self, name: str, pieces: Iterable[Data]) -> None:
        """A file of these pieces."""
        digest = self._digests[name] = Digest()
        disk.write(self.path / name, digest.over(pieces))

    def save(self, name: str, array: NDArray[Any]) -> None:
        """An array as a .npy file."""
        self.write(name, (header(array.dtype, array.shape), data(array)))

    def seal(self) -> dict[str, FileEntry]:
        """Write the checksums of all blocks; the files with their entries."""
        blocks = {name: digest.crcs for name, digest in self._digests.items()}
        self.write(BLOCKS, [json.dumps(blocks).encode()])
        disk.flush_folder(self.path)
        return {name: digest.entry for name, digest in self._digests.items()}


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What a .npy file begins with."""
    head = BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


def data(array: NDArray[Any]) -> Data:
    """The bytes of an array, row by row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""


def write(path: Path, content: Data) -> FileEntry:
    """Write a file."""
    disk.write(path, [content])
    return FileEntry.of(content)


def replace(path: Path, content: Data) -> None:
    """Put a file in the place of another in one step: after a crash there is the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    disk.write(new, [content])
    disk.rename(new, path)
    disk.flush_folder(path.parent)


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Put an object with a checksum in the place of another in one step."""
    replace(path, json.dumps({"checksum": _checksum(body), **body}, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; IndexDamagedError when it is missing or another."""
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        checksum = body.pop("checksum")
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise damaged(path, "is not what was written") from None
    if checksum != _checksum(body):
        raise damaged(path, "has changed: its checksum is another")
    return body


def read(path: Path, entry: FileEntry) -> bytes:
    """A whole file, checked; IndexDamagedError when it is missing or another."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    if FileEntry.of(content) != entry:
        raise damaged(path, f"is not what was written ({len(content)} bytes, expected {entry.size})")
    return content


def open_folder(folder: Path, entries: Mapping[str, FileEntry]) -> dict[str, BlockFile]:
    """The files of a sealed folder by name, checked as far as opening does."""
    blocks = json.loads(read(folder / BLOCKS, entries[BLOCKS]))
    return {name: BlockFile(folder / name, entries[name].size, crcs) for name, crcs in blocks.items()}


def problems(
    folder: Path, entries: Mapping[str, FileEntry], passed: Callable[[int], None] | None = None
) -> Iterator[str]:
    """What is wrong with the files of a sealed folder, read in full; `passed` is told of bytes as they are read."""
    for name, entry in entries.items():
        path = folder / name
        try:
            found = _digest(path, passed)
        except FileNotFoundError:
            yield f"{path} is missing"
            continue
        if found.size != entry.size:
            yield f"{path} has {found.size} bytes, expected {entry.size}"
        elif found != entry:
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
        self._start, self._row = 0, 1
        self._whole = size <= SMALL
        self._check(0, size if self._whole else min(size, BLOCK))

    def read(self, start: int, stop: int) -> bytes:
        """These bytes, of blocks that are sound."""
        self._check(start, stop)
        return self._bytes[start:stop].tobytes()

    def array(self) -> NDArray[Any]:
        """The array of a .npy file, not to be written to, of which only the header has been checked."""
        header = _ARRAY.match(self._bytes[:BLOCK])
        if header is None:
            raise damaged(self.path, "does not begin as an array does")
        dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[2])))
        self._start, self._row = header.end(), prod(shape[1:]) * dtype.itemsize
        return np.ndarray(shape, dtype, self._bytes, self._start)

    def checked(self) -> NDArray[Any]:
        """The array, every block of it checked."""
        self.check()
        return self.array()

    def rows(self) -> NDArray[Any]:
        """The array, whose rows are checked when they are taken, by index or as a factor of a product."""
        return CheckedRows.of(self)

    def check(self) -> None:
        """Check every block; IndexDamagedError for one that has changed."""
        if not self._whole:
            self._check(0, len(self._bytes))
            self._whole = True

    def check_rows(self, first: int, stop: int) -> None:
        """Check the blocks of some rows of the array, from the first up to the second."""
        if not self._whole:
            self._check(self._start + first * self._row, self._start + stop * self._row)

    def check_each(self, rows: NDArray[np.integer]) -> None:
        """Check the blocks of some rows of the array, in any order."""
        if not self._whole and len(rows):
            starts = self._start + rows.astype(np.int64) * self._row
            blocks = np.unique(np.concatenate((starts // BLOCK, (starts + self._row - 1) // BLOCK)))
            for block in blocks[np.frombuffer(self._checked, dtype=np.uint8)[blocks] == 0].tolist():
                self._check(block * BLOCK, block * BLOCK + 1)

    def _check(self, start: int, stop: int) -> None:
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            if not self._checked[block]:
                if zlib.crc32(self._bytes[block * BLOCK : (block + 1) * BLOCK]) != self._crcs[block]:
                    raise damaged(self.path, f"has changed at bytes {block * BLOCK} to {(block + 1) * BLOCK}")
                self._checked[block] = 1


class CheckedRows(np.ndarray[Any, Any]):
    """The array of a file; what is taken of it is checked first, and is a plain array."""

    _file: BlockFile

    @classmethod
    def of(cls, file: BlockFile) -> CheckedRows:
        """That of a file."""
        made = file.array().view(cls)
        made._file = file
        return made

    def __getitem__(self, at: Any) -> Any:
        plain = self.view(np.ndarray)
        if isinstance(at, int | np.integer):
            self._file.check_rows(int(at), int(at) + 1)
        elif isinstance(at, slice):
            self._file.check_rows(*at.indices(len(plain))[:2])
        else:
            self._file.check_each(np.asarray(at))
        return plain[at]

    def __matmul__(self, other: Any) -> Any:
        self._file.check()
        return self.view(np.ndarray) @ other


def original(name: str) -> bool:
    """Whether a file is one that cannot be made again from others."""
    return _ORIGINAL.fullmatch(name) is not None


def damaged(path: Path, what: str) -> IndexDamagedError:
    """The error for a file that is not as it was written."""
    return IndexDamagedError(f"{path} {what}: {REMEDY if original(path.name) else REBUILD}")


def _checksum(body: Mapping[str, Any]) -> str:
    """The same in every format, so that damage and a newer format are told apart."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _digest(path: Path, passed: Callable[[int], None] | None) -> FileEntry:
    digest = Digest()
    with path.open("rb") as file:
        for piece in digest.over(iter(lambda: file.read(BLOCK), b"")):
            if passed:
                passed(len(piece))
    return digest.entry
