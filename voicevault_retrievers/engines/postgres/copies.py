"""Rows in the binary format of COPY, which needs no quoting."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from voicevault_retrievers.core.types import Vector

_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TAIL = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_SIZE = struct.Struct(">i")
_INTEGER = struct.Struct(">i")
_LONG = struct.Struct(">q")
_POSTING = struct.Struct(">iqiiii")


def copied(rows: Iterable[Sequence[bytes | None]]) -> bytes:
    """Rows of fields, each in the binary format of its column's type; None is null."""
    parts = [_HEAD]
    for row in rows:
        parts.append(struct.pack(">h", len(row)))
        for field in row:
            parts += [_NULL] if field is None else [_SIZE.pack(len(field)), field]
    return b"".join([*parts, _TAIL])


def term(key: str) -> bytes:
    """The beginning of a posting: the number of its fields, and its term."""
    data = key.encode()
    return struct.pack(">hi", 4, len(data)) + data


def postings(chunks: Iterable[tuple[int, int, Iterable[tuple[bytes, int]]]]) -> bytes:
    """The postings of chunks, given as (ordinal, length, terms as of `term` with frequencies)."""
    parts = [_HEAD]
    for ordinal, length, terms in chunks:
        for first, frequency in terms:
            parts += first, _POSTING.pack(8, ordinal, 4, frequency, 4, length)
    return b"".join([*parts, _TAIL])


def integer(value: int) -> bytes:
    """A four-byte integer."""
    return _INTEGER.pack(value)


def long(value: int) -> bytes:
    """A bigint."""
    return _LONG.pack(value)


def jsonb(text: str) -> bytes:
    """A jsonb value, from its JSON."""
    return b"\x01" + text.encode()


def vector(row: Vector, *, half: bool) -> bytes:
    """A pgvector vector, or a halfvec."""
    return struct.pack(">hh", len(row), 0) + row.astype(">f2" if half else ">f4").tobytes()
