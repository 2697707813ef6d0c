"""The metadata columns of a segment, in one file, `columns.bin`, laid out as safetensors lays out tensors.

Eight bytes give the length of the JSON directory that follows, which gives each key the place of its column. A column
is its values as a JSON list, their ends, and the ordinals, both little-endian uint32 (see `columns.Column`). A column
is read when a filter first names its key; all its blocks are checked then, because filters may enforce access rights.

A column is left out (null in the directory) where its values take more than 32 bytes a row and more than 64 KiB. Text
that differs from chunk to chunk, such as a title, would be stored twice. A rare key among very many keys is left out
too. A filter on such a key reads the chunks, once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from voicevault_retrievers.core.columns import Column, columns_of
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store.files import BlockFile

NAME = "columns.bin"
ROW_BYTES = 32
SMALL_BYTES = 64 * 1024

_HEAD = np.dtype("<u8")
_WORD = np.dtype("<u4")


class _Place(NamedTuple):
    """Where a column begins after the directory, the bytes of its values, and how many values and ordinals it has."""

    start: int
    text: int
    values: int
    ordinals: int
    bounds: Sequence[int]

    @property
    def cuts(self) -> Iterator[int]:
        """Where the three parts of the column begin, and where the last one ends."""
        return accumulate((self.start, self.text, self.values * _WORD.itemsize, self.ordinals * _WORD.itemsize))


def pieces(chunks: Sequence[Chunk]) -> Iterator[bytes]:
    """The pieces of the columns file of the chunks, in their order; metadata must be JSON values."""
    directory: dict[str, _Place | None] = {}
    parts: list[bytes] = []
    start = 0
    for key, column in columns_of(chunks):
        directory[key] = None
        if column is None:
            continue
        text = json.dumps(column.values).encode()
        if len(text) <= max(SMALL_BYTES, ROW_BYTES * len(chunks)):
            directory[key] = _Place(start, len(text), len(column.values), len(column.ordinals), column.bounds)
            parts += [text, column.ends.astype(_WORD).tobytes(), column.ordinals.astype(_WORD).tobytes()]
            start += sum(map(len, parts[-3:]))
    head = json.dumps(directory).encode()
    yield from (np.array(len(head), _HEAD).tobytes(), head, *parts)


class StoredColumns:
    """The columns of a segment of `size` chunks, by key."""

    def __init__(self, file: BlockFile, size: int) -> None:
        self._file = file
        self._size = size

    def __call__(self, key: str) -> Column | None:
        """The column of a key, empty where no chunk has the key; None where the column was left out."""
        if key not in self._directory:
            return Column.build(self._size, (), ())
        entry = self._directory[key]
        return None if entry is None else self._column(_Place(*entry))

    def _column(self, place: _Place) -> Column:
        text, ends, ordinals, stop = (self._body + cut for cut in place.cuts)
        return Column(
            self._size,
            json.loads(self._file.read(text, ends)),
            place.bounds,
            np.frombuffer(self._file.read(ends, ordinals), _WORD),
            np.frombuffer(self._file.read(ordinals, stop), _WORD),
        )

    @cached_property
    def _body(self) -> int:
        return _HEAD.itemsize + int(np.frombuffer(self._file.read(0, _HEAD.itemsize), _HEAD)[0])

    @cached_property
    def _directory(self) -> dict[str, list[Any] | None]:
        found: dict[str, list[Any] | None] = json.loads(self._file.read(_HEAD.itemsize, self._body))
        return found
