"""A knowledge base at one moment: its segments, which of their chunks are live, and what the log adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.dense.exact import VectorPart
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical.index import Segment
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store import files, log, manifest
from voicevault_retrievers.store.log import Record
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.segment import StoredSegment, read_live
from voicevault_retrievers.text.analyzer import Analyzer
from voicevault_retrievers.types import Chunk, Vector

T = TypeVar("T")


class Part(NamedTuple):
    """Rows with what is searched of them: ordinal i is the same chunk in all three."""

    rows: Rows
    postings: Postings
    vectors: NDArray[np.float32] | None

    @property
    def lexical(self) -> Segment:
        return Segment(self.rows, self.postings)

    @property
    def dense(self) -> VectorPart | None:
        return None if self.vectors is None else VectorPart(self.rows, self.vectors)


@dataclass(frozen=True, eq=False)
class LoggedChunk:
    """A chunk that is in the log alone; it is analysed once."""

    chunk: Chunk
    vector: Vector | None
    analyzer: Analyzer

    @cached_property
    def terms(self) -> list[str]:
        return self.analyzer(self.chunk.text)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What channels search; it never changes.

    `rows` are those of `segments`, one for one. `tail` holds the chunks of the log, `touched` the ids that the log
    has added or deleted: what segments hold of them is no more. `end` is where the log was read to.
    """

    folder: Path
    manifest: Manifest
    analyzer: Analyzer
    segments: tuple[StoredSegment, ...] = ()
    rows: tuple[Rows, ...] = ()
    tail: Mapping[str, LoggedChunk] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()
    end: int = 0

    @classmethod
    def open(cls, folder: Path, before: Snapshot | None = None) -> Snapshot:
        """The last commit. A file may be gone because another process has just sealed; then it is read again.

        Segments that a snapshot from before has open stay open. Raises IndexDamagedError, IncompatibleIndexError.
        """
        present = manifest.read(folder)
        try:
            if before is None or before.manifest != present:
                before = cls._sealed(folder, present, before.segments if before else ())
            return before._caught_up()
        except IndexDamagedError:
            if manifest.read(folder) == present:
                raise
        return cls.open(folder)

    @classmethod
    def _sealed(cls, folder: Path, present: Manifest, opened: Iterable[StoredSegment]) -> Snapshot:
        analyzer = present.make_analyzer()
        known = {(segment.entry.name, segment.entry.files[files.BLOCKS]): segment for segment in opened}
        dimension = present.embedder.dimension if present.embedder else None
        segments = tuple(
            known.get((entry.name, entry.files[files.BLOCKS]))
            or StoredSegment.open(folder, entry, folder.name, dimension)
            for entry in present.segments
        )
        rows = tuple(
            Rows(segment.chunks, segment.ids, read_live(folder, entry))
            for segment, entry in zip(segments, present.segments, strict=True)
        )
        return cls(folder, present, analyzer, segments, rows)

    def _caught_up(self) -> Snapshot:
        records, end = log.read(self.folder / self.manifest.log, self.folder.name, self.end)
        return self if end == self.end else replace(self.after(records), end=end)

    def after(self, records: Iterable[Record]) -> Snapshot:
        """The snapshot with these commits more."""
        tail = dict(self.tail)
        touched: set[str] = set()
        for record in records:
            for chunk_id in record.deleted:
                tail.pop(chunk_id, None)
            vectors: Iterable[Vector | None] = (
                record.vectors if record.vectors is not None else [None] * len(record.chunks)
            )
            tail |= {c.id: LoggedChunk(c, v, self.analyzer) for c, v in zip(record.chunks, vectors, strict=True)}
            touched |= {*record.deleted, *(chunk.id for chunk in record.chunks)}
        rows = tuple(_without(rows, touched) for rows in self.rows)
        return replace(self, rows=rows, tail=tail, touched=self.touched | touched)

    def __len__(self) -> int:
        return sum(rows.count for rows in self.rows) + len(self.tail)

    def __iter__(self) -> Iterator[Chunk]:
        """The live chunks, by ascending id."""
        stored = (_live(rows, rows.chunks) for rows in self.rows)
        return merge(*stored, (logged.chunk for logged in self.ordered), key=attrgetter("id"))

    def ids(self) -> Iterator[str]:
        """The ids of the live chunks, ascending."""
        return merge(*(_live(rows, rows.ids) for rows in self.rows), sorted(self.tail))

    def get(self, chunk_id: str) -> Chunk | None:
        """The live chunk of this id."""
        if chunk_id in self.tail:
            return self.tail[chunk_id].chunk
        found = ((rows, rows.ordinal(chunk_id)) for rows in self.rows)
        return next((rows.chunks[at] for rows, at in found if at is not None), None)

    @cached_property
    def ordered(self) -> Sequence[LoggedChunk]:
        """The chunks of the log, by ascending id."""
        return [self.tail[chunk_id] for chunk_id in sorted(self.tail)]

    @property
    def vectors(self) -> NDArray[np.float32] | None:
        """Those of `ordered`."""
        rows = [logged.vector for logged in self.ordered if logged.vector is not None]
        return np.stack(rows) if rows else None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is searched: the segments, and one made of the log's chunks."""
        parts = [Part(rows, s.postings, s.vectors) for rows, s in zip(self.rows, self.segments, strict=True)]
        if self.tail:
            rows = Rows([logged.chunk for logged in self.ordered])
            parts.append(Part(rows, Postings.build(logged.terms for logged in self.ordered), self.vectors))
        return tuple(parts)


def _live(rows: Rows, items: Sequence[T]) -> Iterator[T]:
    """Those of a segment's items that are live."""
    return (items[at] for at in range(len(rows)) if rows.live is None or rows.live[at])


def _without(rows: Rows, ids: Iterable[str]) -> Rows:
    """The rows without these chunks; the same where it holds none of them."""
    gone = [at for chunk_id in ids if (at := rows.ordinal(chunk_id)) is not None]
    if not gone:
        return rows
    live = np.ones(len(rows), dtype=np.bool_) if rows.live is None else rows.live.copy()
    live[gone] = False
    return Rows(rows.chunks, rows.ids, live)
