"""Files with checksums: writes are durable (`disk`) and digested on the way; reads are checked.

A file, or a whole folder (`NewFolder`), is flushed before anything refers to it, and a manifest is replaced in one
step. The manifest holds each file's size and sha256. A segment's folder also holds the crc32 of every 64 KiB block of
its files (`BLOCKS`), itself under a sha256.

Opening checks sizes, the sha256 of small companion files (`read`), all blocks of files up to 1 MiB and the first block
of larger ones, which holds an array's header. Every other block is checked before its first use (`BlockFile`,
`CheckedRows`), so that a flipped bit raises in the search that meets it. `problems` checks every sha256.
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
"""Files whose content cannot be derived from other files."""

_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][a-z]\d+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""The header of a .npy file. numpy parses it with `ast`; in CPython 3.11 concurrent parsing raises SystemError."""


@dataclass(frozen=True)
class FileEntry:
    """The size in bytes and the sha256 that a file must have."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: Data) -> FileEntry:
        return cls(len(content), hashlib.sha256(content).hexdigest())


class Digest:
    """The size, the sha256, and the crc32 of each block, of the bytes that pass through."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._size = 0
        self.crcs: list[int] = []

    def over(self, pieces: Iterable[Data]) -> Iterator[Data]:
        """The pieces, digested as they pass."""
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
    """A folder being written: one file after the other, then `seal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: dict[str, Digest] = {}
        disk.make_folder(path)

    def write(self, name: str, pieces: Iterable[Data]) -> None:
        """Write a file of these pieces."""
        digest = self._digests[name] = Digest()
        disk.write(self.path / name, digest.over(pieces))

    def save(self, name: str, array: NDArray[Any]) -> None:
        """Write an array as a .npy file."""
        self.write(name, (header(array.dtype, array.shape), data(array)))

    def seal(self) -> dict[str, FileEntry]:
        """Write the checksums of all blocks; returns the entries of the files by name."""
        blocks = {name: digest.crcs for name, digest in self._digests.items()}
        self.write(BLOCKS, [json.dumps(blocks).encode()])
        disk.flush_folder(self.path)
        return {name: digest.entry for name, digest in self._digests.items()}


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file."""
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
    """Replace a file atomically: after a crash there is the old file or the new one."""
    new = path.with_name(f"{path.name}.new")
    disk.write(new, [content])
    disk.rename(new, path)
    disk.flush_folder(path.parent)


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically, adding a checksum to the object."""
    replace(path, json.dumps({"checksum": _checksum(body), **body}, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object that `write_json` wrote; IndexDamagedError when the file is missing or changed."""
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
    """The content of a file, checked; IndexDamagedError when the file is missing or changed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    if FileEntry.of(content) != entry:
        raise damaged(path, f"is not what was written ({len(content)} bytes, expected {entry.size})")
    return content


def open_folder(folder: Path, entries: Mapping[str, FileEntry]) -> dict[str, BlockFile]:
    """The files of a sealed folder by name, with the checks of opening."""
    blocks = json.loads(read(folder / BLOCKS, entries[BLOCKS]))
    return {name: BlockFile(folder / name, entries[name].size, crcs) for name, crcs in blocks.items()}


def problems(
    folder: Path, entries: Mapping[str, FileEntry], passed: Callable[[int], None] | None = None
) -> Iterator[str]:
    """What is wrong with the files of a sealed folder, read in full; `passed` is called with the bytes just read."""
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
    """An immutable file, with the crc32 of each of its blocks.

    Small files are read. Large ones are memory-mapped, which keeps a file open each: a process may have about a
    thousand.
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
        """The bytes from `start` to `stop`, after checking their blocks."""
        self._check(start, stop)
        return self._bytes[start:stop].tobytes()

    def array(self) -> NDArray[Any]:
        """The read-only array of a .npy file, of which only the header has been checked."""
        header = _ARRAY.match(self._bytes[:BLOCK])
        if header is None:
            raise damaged(self.path, "does not begin as an array does")
        dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[2])))
        self._start, self._row = header.end(), prod(shape[1:]) * dtype.itemsize
        return np.ndarray(shape, dtype, self._bytes, self._start)

    def checked(self) -> NDArray[Any]:
        """The array, with every block checked."""
        self.check()
        return self.array()

    def rows(self) -> NDArray[Any]:
        """The array, whose rows are checked when they are taken by index or used in a matrix product."""
        return CheckedRows.of(self)

    def check(self) -> None:
        """Check every block; IndexDamagedError where one has changed."""
        if not self._whole:
            self._check(0, len(self._bytes))
            self._whole = True

    def check_rows(self, first: int, stop: int) -> None:
        """Check the blocks of the rows from `first` up to `stop`."""
        if not self._whole:
            self._check(self._start + first * self._row, self._start + stop * self._row)

    def check_each(self, rows: NDArray[np.integer]) -> None:
        """Check the blocks of the given rows, in any order."""
        if not self._whole and len(rows):
            starts = self._start + rows.astype(np.int64) * self._row
            first, last = starts // BLOCK, (starts + self._row - 1) // BLOCK
            blocks = np.concatenate([np.minimum(first + at, last) for at in range(self._row // BLOCK + 2)])
            for block in set(blocks[np.frombuffer(self._checked, dtype=np.uint8)[blocks] == 0].tolist()):
                self._check(block * BLOCK, block * BLOCK + 1)

    def _check(self, start: int, stop: int) -> None:
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            if not self._checked[block]:
                if zlib.crc32(self._bytes[block * BLOCK : (block + 1) * BLOCK]) != self._crcs[block]:
                    raise damaged(self.path, f"has changed at bytes {block * BLOCK} to {(block + 1) * BLOCK}")
                self._checked[block] = 1


class CheckedRows(np.ndarray[Any, Any]):
    """The array of a file; rows are checked before they are taken or computed with, and results are plain arrays."""

    _file: BlockFile

    @classmethod
    def of(cls, file: BlockFile) -> CheckedRows:
        """The array of `file`."""
        made = file.array().view(cls)
        made._file = file
        return made

    def __getitem__(self, at: Any) -> Any:
        plain, count = self.view(np.ndarray), len(self)
        if isinstance(at, int | np.integer):
            row = range(count)[at]
            self._file.check_rows(row, row + 1)
        elif isinstance(at, slice):
            if rows := range(count)[at]:
                self._file.check_rows(min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1)
        else:
            given = np.asarray(at)
            self._file.check_each(np.nonzero(given)[0] if given.dtype == bool else given % max(count, 1))
        return plain[at]

    def check_each(self, rows: NDArray[np.integer]) -> None:
        """Check the given rows, after they were read as memory."""
        self._file.check_each(rows)

    @property
    def T(self) -> NDArray[Any]:  # type: ignore[override]  # noqa: N802 - numpy's name
        """The transposed array, with every block checked."""
        return self._whole().T

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """The result of plain arrays, with every block checked."""
        plain = [one._whole() if isinstance(one, CheckedRows) else one for one in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def _whole(self) -> NDArray[Any]:
        self._file.check()
        return self.view(np.ndarray)


def original(name: str) -> bool:
    """Whether a file's content cannot be derived from other files."""
    return _ORIGINAL.fullmatch(name) is not None


def damaged(path: Path, what: str) -> IndexDamagedError:
    """The error for a file that is not as it was written."""
    return IndexDamagedError(f"{path} {what}: {REMEDY if original(path.name) else REBUILD}")


def _checksum(body: Mapping[str, Any]) -> str:
    """The checksum of an object, the same in every format, so that damage and a newer format are distinguished."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _digest(path: Path, passed: Callable[[int], None] | None) -> FileEntry:
    digest = Digest()
    with path.open("rb") as file:
        for piece in digest.over(iter(lambda: file.read(BLOCK), b"")):
            if passed:
                passed(len(piece))
    return digest.entry
