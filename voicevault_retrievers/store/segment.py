"""A segment: an immutable folder of chunks in ascending order of id, their postings and their vectors.

`chunks.jsonl` has a line per chunk, `chunk_ends.npy` where each ends; `ids.npy` the ids as UTF-8, `id_ends.npy` where
each ends; the arrays of `Postings`; `vectors.npy`, of shape (chunks, dimension), where there is an embedder;
`columns.bin` the metadata columns, which a segment may lack: then they are made of the chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.columns import Columns
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical.postings import Numbers, Postings
from voicevault_retrievers.lexical.removed import Removed
from voicevault_retrievers.lexical.segment import Segment
from voicevault_retrievers.rows import Mask, Rows
from voicevault_retrievers.store import codec, columns, files
from voicevault_retrievers.store.codec import Lazy
from voicevault_retrievers.store.columns import StoredColumns
from voicevault_retrievers.store.files import BlockFile
from voicevault_retrievers.store.manifest import SegmentEntry, TombstoneEntry
from voicevault_retrievers.types import Chunk

_UTF8 = ("utf-8", "surrogatepass")
_WORD = np.dtype("<u4")


@dataclass(frozen=True, eq=False)
class StoredSegment:
    """An open segment: everything memory-mapped, and decoded when it is asked for."""

    entry: SegmentEntry
    chunks: Sequence[Chunk]
    ids: Sequence[str]
    postings: Postings
    vectors: NDArray[np.float32] | None
    columns: Columns
    files: Mapping[str, BlockFile]

    @classmethod
    def open(cls, folder: Path, entry: SegmentEntry, kb: str, dimension: int | None) -> StoredSegment:
        """The segment of a knowledge base's folder; IndexDamagedError where its files are not as they were written."""
        own = folder / entry.name
        opened = files.open_folder(own, entry.files)
        postings = Postings.open(own, lambda path: opened[path.name].array())
        vectors = None if dimension is None else opened["vectors.npy"].array()
        chunks, ids = opened["chunks.jsonl"], opened["ids.npy"].array()
        chunk_ends, id_ends = opened["chunk_ends.npy"].array(), opened["id_ends.npy"].array()
        counts = {len(chunk_ends), len(id_ends), len(postings), *([] if vectors is None else [len(vectors)])}
        if counts != {entry.count} or (vectors is not None and vectors.shape[1] != dimension):
            raise files.damaged(own, f"does not join: files of {sorted(counts)} chunks, expected {entry.count}")
        decoded = _chunks(chunks, chunk_ends, kb)
        stored = opened.get(columns.NAME)
        made = Columns(decoded, None if stored is None else StoredColumns(stored, entry.count))
        return cls(entry, decoded, _ids(ids, id_ends), postings, vectors, made, opened)

    def live(self, folder: Path, entry: SegmentEntry) -> Segment:
        """What is searched of it: the chunks that an entry of the segment has left, with what the others took."""
        rows = Rows(self.chunks, self.ids, read_live(folder, entry), self.columns)
        return Segment(rows, self.postings, _read_removed(folder, entry.tombstones))

    def bury(self, folder: Path, name: str, segment: Segment, live: Mask) -> TombstoneEntry:
        """Write which of its chunks are no more, some, and what they took from the counts.

        That is a file of the numbers of their terms, ascending, then in how many of them each is: little-endian uint32.
        """
        terms = len(self.postings.term_ends)
        taken = self.taken(live) if segment.removed is None else segment.removed.counts(terms)
        numbers = np.flatnonzero(taken)
        return TombstoneEntry(
            name,
            files.write(folder / name, np.packbits(~live).tobytes()),
            len(live) - segment.rows.count,
            self.postings.total_length - segment.length,
            files.write(folder / f"{name}.terms", np.concatenate((numbers, taken[numbers])).astype(_WORD).tobytes()),
        )

    def taken(self, live: Mask) -> Numbers:
        """Of each term, how many chunks have it that are not live; reads every posting."""
        numbers, ordinals, _ = self.postings.triples()
        return np.bincount(numbers[~live[ordinals]], minlength=len(self.postings.term_ends))

    def check(self) -> None:
        """Check every block of every file, before what is in them is written again; IndexDamagedError."""
        for file in self.files.values():
            file.check()


def write(
    folder: Path,
    name: str,
    chunks: Sequence[Chunk],
    postings: Postings,
    vectors: Iterable[NDArray[np.float32]],
) -> SegmentEntry:
    """Write a segment below a knowledge base's folder.

    `chunks` come in ascending order of id, `postings` are theirs, and so are `vectors`, in blocks of rows; none where
    there is no embedder.
    """
    own = folder / name
    own.mkdir()
    sizes: list[int] = []
    ids: list[bytes] = []
    with (own / "chunks.jsonl").open("wb") as file:
        for chunk in chunks:
            sizes.append(file.write(codec.encode(chunk)))
            ids.append(chunk.id.encode(*_UTF8))
    np.save(own / "chunk_ends.npy", np.cumsum(sizes, dtype=np.int64))
    np.save(own / "ids.npy", np.frombuffer(b"".join(ids), dtype=np.uint8))
    np.save(own / "id_ends.npy", np.cumsum([len(encoded) for encoded in ids], dtype=np.int64))
    postings.save(own)
    columns.write(own / columns.NAME, chunks)
    _write_vectors(own / "vectors.npy", len(chunks), vectors)
    return SegmentEntry(name, len(chunks), files.seal(own))


def read_live(folder: Path, entry: SegmentEntry) -> Mask | None:
    """Which of a segment's chunks are live; None when all are."""
    if entry.tombstones is None:
        return None
    bits = np.frombuffer(files.read(folder / entry.tombstones.name, entry.tombstones.file), dtype=np.uint8)
    return ~np.unpackbits(bits, count=entry.count).astype(np.bool_)


def problems(folder: Path, entry: SegmentEntry, dimension: int | None) -> Iterator[str]:
    """What is wrong with a segment, read in full."""
    found = list(files.problems(folder / entry.name, entry.files))
    if not found:
        try:
            found = _unjoined(StoredSegment.open(folder, entry, "", dimension))
        except IndexDamagedError as error:
            found = [str(error)]
    yield from found


def _read_removed(folder: Path, dead: TombstoneEntry | None) -> Removed | None:
    if dead is None:
        return None
    numbers, times = np.frombuffer(files.read(folder / dead.terms_name, dead.terms), dtype=_WORD).reshape(2, -1)
    return Removed(np.repeat(numbers.astype(np.int64), times), length=dead.length)


def _unjoined(segment: StoredSegment) -> list[str]:
    name = segment.entry.name
    wrong = [f"{name}: chunk {at} is {c.id!r}, its id {i!r}" for at, (c, i) in enumerate(_both(segment)) if c.id != i]
    wrong += [f"{name}: the id {b!r} follows {a!r}" for a, b in pairwise(segment.ids) if not a < b]
    return wrong


def _both(segment: StoredSegment) -> Iterator[tuple[Chunk, str]]:
    return zip(segment.chunks, segment.ids, strict=True)


def _write_vectors(path: Path, count: int, blocks: Iterable[NDArray[np.float32]]) -> None:
    """Write blocks of rows as one array, where there are any."""
    rest = iter(blocks)
    first = next(rest, None)
    if first is not None:
        with path.open("wb") as file:
            head = {"descr": "<f4", "fortran_order": False, "shape": (count, first.shape[1])}
            np.lib.format.write_array_header_1_0(file, head)
            file.writelines(block.astype("<f4").tobytes() for block in chain([first], rest))


def _span(ends: NDArray[np.int64], at: int) -> tuple[int, int]:
    return (int(ends[at - 1]) if at else 0), int(ends[at])


def _chunks(file: BlockFile, ends: NDArray[np.int64], kb: str) -> Sequence[Chunk]:
    return Lazy(len(ends), lambda at: codec.decode(file.read(*_span(ends, at)), kb))


def _ids(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> Sequence[str]:
    return Lazy(len(ends), lambda at: text[slice(*_span(ends, at))].tobytes().decode(*_UTF8))
