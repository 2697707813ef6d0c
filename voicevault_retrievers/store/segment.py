"""A segment: an immutable folder of chunks by ascending id, with their postings and vectors.

It holds the table of its chunks (see `table`); the arrays of `Postings`; `vectors.npy`, of shape (chunks, dimension),
where there is an embedder; the metadata columns in `columns.bin`, without which columns are built from the chunks; and
the table of parents, where there are parents.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.columns import Columns
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.selection import Mask
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense.int8 import Codes, Gate, gate, quantise
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical.postings import Numbers, Postings
from voicevault_retrievers.lexical.segment import DeletedTermCounts, IndexSegment
from voicevault_retrievers.store import columns, files, table
from voicevault_retrievers.store.columns import StoredColumns
from voicevault_retrievers.store.files import BlockFile, NewFolder
from voicevault_retrievers.store.manifest import NamedFile, SegmentEntry, TombstoneEntry
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.table import Table

_logger = logging.getLogger(__name__)

CODES = ("codes", "scales", "residuals", "centre")

_WORD = np.dtype("<u4")
_VECTORS = "vectors.npy"


@dataclass(frozen=True, eq=False)
class StoredSegment:
    """An open segment: memory-mapped files, decoded on demand."""

    entry: SegmentEntry
    table: Table
    parents: Table
    postings: Postings
    vectors: NDArray[np.float32] | None
    columns: Columns
    files: Mapping[str, BlockFile]

    @classmethod
    def open(cls, folder: Path, entry: SegmentEntry, kb: str, dimension: int | None) -> StoredSegment:
        """The segment of a knowledge base's folder; IndexDamagedError where its files have changed."""
        own = folder / entry.name
        opened = files.open_folder(own, entry.files)
        found = Table.open(table.CHUNKS, opened, kb)
        parents = Table.open(table.PARENTS, opened, kb) if entry.parents else Table()
        vectors = None if dimension is None else opened[_VECTORS].rows()
        postings = _postings(opened)
        counts = {*map(len, found), len(postings), *([] if vectors is None else [len(vectors)])}
        if (
            counts != {entry.count}
            or {*map(len, parents)} != {entry.parents}
            or (vectors is not None and vectors.shape[1] != dimension)
        ):
            raise files.damaged(own, f"does not join: files of {sorted(counts)} chunks, expected {entry.count}")
        stored = opened.get(columns.NAME)
        made = Columns(found.chunks, None if stored is None else StoredColumns(stored, entry.count))
        return cls(entry, found, parents, postings, vectors, made, opened)

    @property
    def number(self) -> int:
        """The segment's number; later segments have higher numbers."""
        return int(self.entry.name.removeprefix("seg-"))

    def part(self, lexical: IndexSegment, parents: Rows) -> SearchedPart:
        """The searchable part, with these chunks and parents live."""
        own = lexical.rows, self.vectors, lambda: lexical, parents
        return SearchedPart(*own, lambda: self.codes, self.number)

    @cached_property
    def codes(self) -> Codes | None:
        """The int8 codes of the vectors, fully checked, since a search reads all of them; None without codes."""
        return Codes.of({name: self.files[f"{name}.npy"].checked() for name in CODES}) if self.entry.gate else None

    def live(self, folder: Path, entry: SegmentEntry) -> IndexSegment:
        """The live chunks of the segment under a manifest entry, with the term counts of the deleted ones."""
        rows = Rows(*self.table, read_live(folder, entry), self.columns)
        return IndexSegment(rows, self.postings, _read_removed(folder, entry.tombstones))

    def live_parents(self, folder: Path, entry: SegmentEntry) -> Rows:
        """The live parents under a manifest entry of the segment."""
        return Rows(*self.parents, read_live_parents(folder, entry))

    def bury(self, folder: Path, name: str, segment: IndexSegment, live: Mask) -> TombstoneEntry:
        """Write the tombstones of the segment, of which there are some, and the term counts of its deleted chunks.

        The file of counts has the numbers of the terms, ascending, then for each the number of deleted chunks that have
        it: little-endian uint32.
        """
        terms = len(self.postings.term_ends)
        taken = self.taken(live) if segment.removed is None else segment.removed.counts(terms)
        numbers = np.flatnonzero(taken)
        return TombstoneEntry(
            name,
            bury(folder, name, live).file,
            len(live) - segment.rows.count,
            self.postings.total_length - segment.length,
            files.write(folder / f"{name}.terms", np.concatenate((numbers, taken[numbers])).astype(_WORD).tobytes()),
        )

    def taken(self, live: Mask) -> Numbers:
        """For each term, how many deleted chunks have it; reads every posting."""
        numbers, ordinals, _ = self.postings.triples()
        return np.bincount(numbers[~live[ordinals]], minlength=len(self.postings.term_ends))

    def check(self) -> None:
        """Check every block of every file, before the segment is rewritten; raises IndexDamagedError."""
        for file in self.files.values():
            file.check()


def write(
    folder: Path,
    name: str,
    chunks: Sequence[Chunk],
    postings: Postings,
    vectors: Iterable[NDArray[np.float32]],
    parents: Sequence[Chunk] = (),
    *,
    quantised: bool = False,
) -> SegmentEntry:
    """Write a segment below a knowledge base's folder.

    `chunks` and `parents` come by ascending id. `postings` and `vectors`, in blocks of rows, are those of the chunks;
    no vectors where there is no embedder. `quantised` asks for int8 codes, which are written where they pass the gate.
    """
    new = NewFolder(folder / name)
    table.write(new, table.CHUNKS, chunks)
    postings.save(new.save)
    new.write(columns.NAME, columns.pieces(chunks))
    _write_vectors(new, len(chunks), vectors)
    passed = _write_codes(new) if quantised and len(chunks) else None
    if parents:
        table.write(new, table.PARENTS, parents)
    return SegmentEntry(name, len(chunks), new.seal(), parents=len(parents), gate=passed)


def bury(folder: Path, name: str, live: Mask) -> NamedFile:
    """Write which chunks are deleted, one bit each."""
    return NamedFile(name, files.write(folder / name, np.packbits(~live).tobytes()))


def read_live(folder: Path, entry: SegmentEntry) -> Mask | None:
    """Which of a segment's chunks are live; None when all are."""
    dead = entry.tombstones
    return _read_bits(folder, NamedFile(dead.name, dead.file) if dead else None, entry.count)


def read_live_parents(folder: Path, entry: SegmentEntry) -> Mask | None:
    """Which of a segment's parents are live; None when all are."""
    return _read_bits(folder, entry.parent_tombstones, entry.parents)


def problems(
    folder: Path, entry: SegmentEntry, dimension: int | None, passed: Callable[[int], None] | None = None
) -> Iterator[str]:
    """What is wrong with a segment, read in full; `passed` is called with the bytes just read."""
    found = list(files.problems(folder / entry.name, entry.files, passed))
    if not found:
        try:
            opened = StoredSegment.open(folder, entry, "", dimension)
            found = [*opened.table.problems(entry.name), *opened.parents.problems(entry.name)]
        except IndexDamagedError as error:
            found = [str(error)]
    yield from found


def _postings(opened: Mapping[str, BlockFile]) -> Postings:
    """The checked arrays; in the two large ones, a term's postings are checked at its first lookup."""
    large = {f"{name}.npy": opened[f"{name}.npy"] for name in ("low", "frequencies")}

    def guard(first: int, stop: int) -> None:
        for file in large.values():
            file.check_rows(first, stop)

    return Postings.open(lambda name: large[name].array() if name in large else opened[name].checked(), guard)


def _read_removed(folder: Path, dead: TombstoneEntry | None) -> DeletedTermCounts | None:
    if dead is None:
        return None
    numbers, times = np.frombuffer(files.read(folder / dead.terms_name, dead.terms), dtype=_WORD).reshape(2, -1)
    return DeletedTermCounts(np.repeat(numbers.astype(np.int64), times), length=dead.length)


def _read_bits(folder: Path, dead: NamedFile | None, count: int) -> Mask | None:
    if dead is None:
        return None
    bits = np.frombuffer(files.read(folder / dead.name, dead.file), dtype=np.uint8)
    return ~np.unpackbits(bits, count=count).astype(np.bool_)


def _write_codes(folder: NewFolder) -> Gate | None:
    """Write the int8 codes of the vectors just written, where the gate passes them; returns the gate, else None."""
    matrix = np.load(folder.path / _VECTORS, mmap_mode="r")
    codes = quantise(matrix)
    found = gate(matrix, codes)
    _logger.info("%s: %s", folder.path, found)
    if not found.passed:
        return None
    for name, array in codes.arrays().items():
        folder.save(f"{name}.npy", array)
    return found


def _write_vectors(folder: NewFolder, count: int, blocks: Iterable[NDArray[np.float32]]) -> None:
    """Write blocks of rows as one array; nothing where there are no blocks."""
    rest = iter(blocks)
    first = next(rest, None)
    if first is not None:
        head = files.header(np.dtype("<f4"), (count, first.shape[1]))
        folder.write(_VECTORS, chain([head], (files.data(block.astype("<f4")) for block in chain([first], rest))))
