"""Chunks in a segment's folder, in ascending order of id: a table of those that are searched, and one of parents.

A table is four files: a line of JSON per chunk, where each line ends, the ids as UTF-8, where each id ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.lazy import Ascending, Lazy
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import codec
from voicevault_retrievers.store.files import BlockFile, NewFolder

_UTF8 = ("utf-8", "surrogatepass")


class Names(NamedTuple):
    """The names of a table's files."""

    lines: str
    ends: str
    ids: str
    id_ends: str


CHUNKS = Names("chunks.jsonl", "chunk_ends.npy", "ids.npy", "id_ends.npy")
PARENTS = Names("parents.jsonl", "parent_ends.npy", "parent_ids.npy", "parent_id_ends.npy")


class Table(NamedTuple):
    """An open table; chunks and ids are decoded when they are asked for."""

    chunks: Sequence[Chunk] = ()
    ids: Sequence[str] = ()

    @classmethod
    def open(cls, names: Names, opened: Mapping[str, BlockFile], kb: str) -> Table:
        """The table of these files; of unequal lengths where they do not join."""
        lines, text = opened[names.lines], opened[names.ids]
        spans, id_spans, ids = _Spans(opened[names.ends]), _Spans(opened[names.id_ends]), text.array()

        def chunk_id(at: int) -> str:
            text.check()
            return ids[slice(*id_spans[at])].tobytes().decode(*_UTF8)

        return cls(
            Lazy(len(spans), lambda at: codec.decode(lines.read(*spans[at]), kb)), Ascending(len(id_spans), chunk_id)
        )

    def problems(self, where: str) -> Iterator[str]:
        """What does not join, or is out of order."""
        for at, (chunk, chunk_id) in enumerate(zip(self.chunks, self.ids, strict=True)):
            if chunk.id != chunk_id:
                yield f"{where}: chunk {at} is {chunk.id!r}, its id {chunk_id!r}"
        yield from (f"{where}: the id {b!r} follows {a!r}" for a, b in pairwise(self.ids) if not a < b)


def write(folder: NewFolder, names: Names, chunks: Iterable[Chunk]) -> None:
    """Write the table of chunks that come in ascending order of id."""
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


class _Spans:
    """Where each of some pieces begins and ends; all of the file is checked when the first is asked for."""

    def __init__(self, file: BlockFile) -> None:
        self._file = file
        self._ends: NDArray[np.int64] = file.array()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, at: int) -> tuple[int, int]:
        self._file.check()
        return (int(self._ends[at - 1]) if at else 0), int(self._ends[at])
