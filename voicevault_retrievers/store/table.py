"""Chunks in a segment's folder, by ascending id: a table of the searched chunks, and one of the parents.

A table is four files: a line of JSON per chunk, the end of each line, the ids as UTF-8, and the end of each id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.rows import SearchableIds
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import codec
from voicevault_retrievers.store.files import BlockFile, NewFolder

_UTF8 = ("utf-8", "surrogatepass")
_STEP = 16


class Names(NamedTuple):
    """The names of a table's files."""

    lines: str
    ends: str
    ids: str
    id_ends: str


CHUNKS = Names("chunks.jsonl", "chunk_ends.npy", "ids.npy", "id_ends.npy")
PARENTS = Names("parents.jsonl", "parent_ends.npy", "parent_ids.npy", "parent_id_ends.npy")


class Table(NamedTuple):
    """An open table; chunks and ids are decoded on demand."""

    chunks: Sequence[Chunk] = ()
    ids: Sequence[str] = ()

    @classmethod
    def open(cls, names: Names, opened: Mapping[str, BlockFile], kb: str) -> Table:
        """The table in these files; its chunks and ids differ in length where the files do not match."""
        lines, spans = opened[names.lines], _Spans(opened[names.ends])
        chunks = Lazy(len(spans), lambda at: codec.decode(lines.read(*spans[at]), kb))
        return cls(chunks, _Ids(opened[names.ids], _Spans(opened[names.id_ends])))

    def problems(self, where: str) -> Iterator[str]:
        """Chunks whose id differs from the table's, and ids out of order."""
        for at, (chunk, chunk_id) in enumerate(zip(self.chunks, self.ids, strict=True)):
            if chunk.id != chunk_id:
                yield f"{where}: chunk {at} is {chunk.id!r}, its id {chunk_id!r}"
        yield from (f"{where}: the id {b!r} follows {a!r}" for a, b in pairwise(self.ids) if not a < b)


def write(folder: NewFolder, names: Names, chunks: Iterable[Chunk]) -> None:
    """Write the table of chunks, which come by ascending id."""
    sizes: list[int] = []
    ids: list[bytes] = []

    def lines() -> Iterator[bytes]:
        for chunk in chunks:
            line = codec.encode(chunk)
            sizes.append(len(line))
            ids.append(chunk.id.encode(*_UTF8))
            yield line

    folder.write(names.lines, lines())
    folder.save(names.ends, np.cumsum(sizes, dtype=np.int64))
    folder.save(names.ids, np.frombuffer(b"".join(ids), dtype=np.uint8))
    folder.save(names.id_ends, np.cumsum([len(encoded) for encoded in ids], dtype=np.int64))


class _Ids(SearchableIds):
    """Ascending ids, decoded on demand. Their UTF-8 sorts in the same order. Every `_STEP`-th id is cached."""

    def __init__(self, file: BlockFile, spans: _Spans) -> None:
        self._file = file
        self._spans = spans
        self._text: memoryview = file.array().data
        self._places = range(len(spans))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[one] for one in self._places[at]]
        self._file.check()
        start, stop = self._spans[self._places[at]]
        return str(self._text[start:stop], *_UTF8)

    def at(self, places: Sequence[int]) -> list[str]:
        self._file.check()
        text = self._text
        return [str(text[start:stop], *_UTF8) for start, stop in self._spans.at(places)]

    def find(self, chunk_id: str) -> int | None:
        wanted = chunk_id.encode(*_UTF8)
        firsts, starts = self._runs
        run = bisect_right(firsts, wanted) - 1
        if run < 0 or wanted not in self._text[starts[run] : starts[run + 1]].tobytes():
            return None  # as most ids, which are in other segments
        low, text = run * _STEP, self._text
        start, ends = self._spans.run(low, low + _STEP)
        for at, end in enumerate(ends, low):
            if text[start:end] == wanted:
                return at
            start = end
        return None

    @cached_property
    def _runs(self) -> tuple[list[bytes], list[int]]:
        """The first id of each run of `_STEP`, and where each run begins, and the last one ends."""
        self._file.check()
        spans = [self._spans[at] for at in self._places[::_STEP]]
        firsts = [self._text[start:stop].tobytes() for start, stop in spans]
        return firsts, [*(start for start, _ in spans), len(self._text)]


class _Spans:
    """The begin and end of each piece; the whole file is checked at first use."""

    def __init__(self, file: BlockFile) -> None:
        self._file = file
        self._ends: NDArray[np.int64] = file.array()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, at: int) -> tuple[int, int]:
        self._file.check()
        return int(self._ends[at - 1]) if at else 0, int(self._ends[at])

    def at(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The begin and end of some pieces."""
        self._file.check()
        wanted = np.array(places, dtype=np.intp)
        starts = np.where(wanted > 0, self._ends[wanted - 1], 0)
        return zip(starts.tolist(), self._ends[wanted].tolist(), strict=True)

    def run(self, first: int, stop: int) -> tuple[int, list[int]]:
        """Where a run of adjoining pieces begins, and where each of them ends."""
        self._file.check()
        start, *ends = self._ends[max(0, first - 1) : stop].tolist()
        return (start, ends) if first else (0, [start, *ends])
