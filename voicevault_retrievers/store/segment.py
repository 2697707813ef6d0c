"""A segment: an immutable folder of chunks in ascending order of id, their postings and their vectors.

`chunks.jsonl` has a line per chunk, `chunk_ends.npy` where each ends; `ids.npy` the ids as UTF-8, `id_ends.npy` where
each ends; the arrays of `Postings`; `vectors.npy`, of shape (chunks, dimension), where there is an embedder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.rows import Mask
from voicevault_retrievers.store import codec, files
from voicevault_retrievers.store.codec import Lazy
from voicevault_retrievers.store.files import BlockFile
from voicevault_retrievers.store.manifest import SegmentEntry, TombstoneEntry
from voicevault_retrievers.types import Chunk

_UTF8 = ("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class StoredSegment:
    """An open segment: everything memory-mapped, and decoded when it is asked for."""

    entry: SegmentEntry
    chunks: Sequence[Chunk]
    ids: Sequence[str]
    postings: Postings
    vectors: NDArray[np.float32] | None

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
        return cls(entry, _chunks(chunks, chunk_ends, kb), _ids(ids, id_ends), postings, vectors)


def write(
    folder: Path,
    name: str,
    chunks: Sequence[Chunk],
    documents: Iterable[Sequence[str]],
    vectors: NDArray[np.float32] | None,
) -> SegmentEntry:
    """Write a segment below a knowledge base's folder; `chunks` in ascending order of id, `documents` their terms."""
    own = folder / name
    own.mkdir()
    lines = [codec.encode(chunk) for chunk in chunks]
    ids = [chunk.id.encode(*_UTF8) for chunk in chunks]
    (own / "chunks.jsonl").write_bytes(b"".join(lines))
    np.save(own / "chunk_ends.npy", _ends(lines))
    np.save(own / "ids.npy", np.frombuffer(b"".join(ids), dtype=np.uint8))
    np.save(own / "id_ends.npy", _ends(ids))
    Postings.build(documents).save(own)
    if vectors is not None:
        np.save(own / "vectors.npy", vectors)
    return SegmentEntry(name, len(chunks), files.seal(own))


def write_tombstones(folder: Path, name: str, live: Mask) -> TombstoneEntry:
    """Write which of a segment's chunks are no more."""
    return TombstoneEntry(name, files.write(folder / name, np.packbits(~live).tobytes()), int((~live).sum()))


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


def _unjoined(segment: StoredSegment) -> list[str]:
    name = segment.entry.name
    wrong = [f"{name}: chunk {at} is {c.id!r}, its id {i!r}" for at, (c, i) in enumerate(_both(segment)) if c.id != i]
    wrong += [f"{name}: the id {b!r} follows {a!r}" for a, b in pairwise(segment.ids) if not a < b]
    return wrong


def _both(segment: StoredSegment) -> Iterator[tuple[Chunk, str]]:
    return zip(segment.chunks, segment.ids, strict=True)


def _ends(pieces: Sequence[bytes]) -> NDArray[np.int64]:
    return np.cumsum([len(piece) for piece in pieces], dtype=np.int64)


def _span(ends: NDArray[np.int64], at: int) -> tuple[int, int]:
    return (int(ends[at - 1]) if at else 0), int(ends[at])


def _chunks(file: BlockFile, ends: NDArray[np.int64], kb: str) -> Sequence[Chunk]:
    return Lazy(len(ends), lambda at: codec.decode(file.read(*_span(ends, at)), kb))


def _ids(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> Sequence[str]:
    return Lazy(len(ends), lambda at: text[slice(*_span(ends, at))].tobytes().decode(*_UTF8))
