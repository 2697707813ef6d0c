"""The write-ahead log: each small change, appended as one frame. A whole frame is a commit.

A file is `MAGIC` and frames. A frame is a header (mark, length and crc32 of the payload, crc32 of the header so far)
and the payload, one or more records. A record is a line of JSON with deleted ids and the counts of what follows, a line
per chunk and per parent, and the chunks' vectors as little-endian float32. Bytes after the last whole frame are a write
that was cut off, which the next write overwrites; a whole frame after them means damage. A last frame of full length
that fails its crc32 may be either, so the writer saves it (`set_aside`) first.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import codec, disk, files
from voicevault_retrievers.store.sources import Source

_logger = logging.getLogger(__name__)

MAGIC = b"voicevault log 1\n"
_MARK = b"\x00vvr"
_HEADER = struct.Struct("<4sQI")
_CRC = struct.Struct("<I")
HEAD = _HEADER.size + _CRC.size
"""The bytes of a frame's header."""


@dataclass(frozen=True, eq=False)
class CommitRecord:
    """One commit: deleted ids, then chunks that are added or replace those of their ids, with their vectors.

    `vectors` has a row per chunk; None in a knowledge base without an embedder. `parents` are added and `orphans`
    deleted likewise; `sources` are by name, None for one that is deleted. With `everything`, all that was there before
    is deleted first.
    """

    chunks: tuple[Chunk, ...] = ()
    vectors: NDArray[np.float32] | None = None
    deleted: tuple[str, ...] = ()
    parents: tuple[Chunk, ...] = ()
    orphans: tuple[str, ...] = ()
    sources: Mapping[str, Source | None] = field(default_factory=dict)
    everything: bool = False

    def __bool__(self) -> bool:
        """Whether the record changes anything."""
        return self.adds or bool(self.deleted or self.orphans or self.sources or self.everything)

    @property
    def adds(self) -> bool:
        """Whether the record adds or changes chunks, parents or sources."""
        return bool(self.chunks or self.parents) or any(self.sources.values())


class LogRead(NamedTuple):
    """What was read of a log: the records, the end of the last whole frame, its header, and what is wrong after it."""

    records: list[CommitRecord]
    end: int
    head: bytes
    damage: str | None


def create(path: Path) -> int:
    """Create a log without records; returns where it ends."""
    return files.write(path, MAGIC).size


def framed(records: Sequence[CommitRecord]) -> bytes:
    """The records as one frame, so that a crash leaves all of them or none."""
    payload = b"".join(map(_payload, records))
    header = _HEADER.pack(_MARK, len(payload), zlib.crc32(payload))
    return header + _CRC.pack(zlib.crc32(header)) + payload


def append(path: Path, end: int, content: bytes) -> int:
    """Write a frame after the last whole one, and flush; returns the new end. See `disk.append` for errors."""
    disk.append(path, end, content)
    return end + len(content)


def set_aside(path: Path, end: int) -> Path | None:
    """Copy the bytes after the last whole record to a file beside, unless they are plainly a write that was cut off."""
    if broken_end(path, end) is None:
        return None
    rest = path.read_bytes()[end:]
    aside = path.with_name(f"{path.name}.set-aside-{end}-{zlib.crc32(rest):08x}")
    disk.write(aside, [rest])
    disk.flush_folder(path.parent)
    _logger.warning("%s was damaged behind byte %d; what stood there was put into %s", path, end, aside)
    return aside


def stands(path: Path, end: int, head: bytes) -> bool:
    """Whether the frame with this header still ends at `end`: a commit that cannot be flushed is taken back."""
    try:
        with path.open("rb") as file:
            file.seek(end - (_length(head, 0) or 0) - len(head))
            return file.read(len(head)) == head
    except FileNotFoundError:
        return False


def read(path: Path, kb: str, start: int = 0) -> LogRead:
    """The records from a position on.

    Raises IndexDamagedError when the file is missing, is no log, or holds a whole frame after a broken one.
    """
    start = start or len(MAGIC)
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC or file.seek(0, os.SEEK_END) < start:
                raise files.damaged(path, "is cut or is not a log")
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        raise files.damaged(path, "is missing") from None
    at, head = 0, b""
    records: list[CommitRecord] = []
    while (payload := _whole(data, at)) is not None:
        records += _records(payload, kb)
        head = data[at : at + HEAD]
        at += HEAD + len(payload)
    after = at
    while (after := data.find(_MARK, after + 1)) >= 0:
        if _whole(data, after) is not None:
            raise files.damaged(path, f"has changed at byte {start + at}; whole records follow at {start + after}")
    return LogRead(records, start + at, head, _broken(path, start + at, data[at:]))


def broken_end(path: Path, end: int) -> str | None:
    """What is wrong after the last whole record; None for a write that was cut off."""
    with path.open("rb") as file:
        file.seek(end)
        return _broken(path, end, file.read())


def _broken(path: Path, end: int, data: bytes) -> str | None:
    """What is wrong with the bytes after the last whole record."""
    if _whole(data, 0) is not None or len(data) < HEAD + (_length(data, 0) or 0):
        return None
    return f"{path} has changed in its last record, at byte {end}, which is not read"


def _whole(data: bytes, at: int) -> bytes | None:
    """The payload of a whole record at a position; None where there is none."""
    length = _length(data, at)
    if length is None:
        return None
    payload = data[at + HEAD : at + HEAD + length]
    (crc,) = _CRC.unpack_from(data, at + _HEADER.size - _CRC.size)
    return payload if len(payload) == length and zlib.crc32(payload) == crc else None


def _length(data: bytes, at: int) -> int | None:
    """The length of the payload, from a sound header; None otherwise."""
    header = data[at : at + _HEADER.size]
    crc = data[at + _HEADER.size : at + HEAD]
    if not header.startswith(_MARK) or crc != _CRC.pack(zlib.crc32(header)):
        return None
    length: int = _HEADER.unpack(header)[1]
    return length


def _payload(record: CommitRecord) -> bytes:
    matrix = record.vectors
    first: dict[str, Any] = {
        "chunks": len(record.chunks),
        "dimension": None if matrix is None else matrix.shape[1],
        "deleted": record.deleted,
        "parents": len(record.parents),
        "orphans": record.orphans,
        "sources": {name: asdict(source) if source else None for name, source in record.sources.items()},
    }
    lines = map(codec.encode, (*record.chunks, *record.parents))
    body = b"".join([*lines, b"" if matrix is None else matrix.astype("<f4").tobytes()])
    if record.everything:
        first["everything"] = True
    return json.dumps({**first, "bytes": len(body)}).encode() + b"\n" + body


def _records(payload: bytes, kb: str) -> Iterator[CommitRecord]:
    while payload:
        line, _, rest = payload.partition(b"\n")
        first = json.loads(line)
        size = first.get("bytes", len(rest))
        yield _record(first, rest[:size], kb)
        payload = rest[size:]


def _record(first: Mapping[str, Any], rest: bytes, kb: str) -> CommitRecord:
    count, dimension = first["chunks"], first["dimension"]
    cut = len(rest) - 4 * count * (dimension or 0)
    chunks = tuple(codec.decode(line, kb) for line in rest[:cut].splitlines())
    vectors = None
    if dimension is not None:
        vectors = np.frombuffer(rest[cut:], dtype="<f4").reshape(count, dimension).astype(np.float32)
    sources = {name: Source(**source) if source else None for name, source in first.get("sources", {}).items()}
    return CommitRecord(
        chunks[:count],
        vectors,
        tuple(first["deleted"]),
        chunks[count:],
        tuple(first.get("orphans", ())),
        sources,
        first.get("everything", False),
    )
