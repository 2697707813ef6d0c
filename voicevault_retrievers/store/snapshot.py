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
from voicevault_retrievers.lexical.forward import Forward
from voicevault_retrievers.lexical.segment import Segment
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store import analyzers, files, log, manifest
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.log import Record
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.segment import StoredSegment
from voicevault_retrievers.types import Chunk, Vector

T = TypeVar("T")


class Part(NamedTuple):
    """Chunks with what is searched of them: ordinal i is the same chunk in both."""

    lexical: Segment
    vectors: NDArray[np.float32] | None

    @property
    def rows(self) -> Rows:
        return self.lexical.rows

    @property
    def dense(self) -> VectorPart | None:
        return None if self.vectors is None else VectorPart(self.rows, self.vectors)

    def renamed(self, rows: Rows) -> Part:
        """The same under other ids."""
        return Part(replace(self.lexical, rows=rows), self.vectors)


@dataclass(frozen=True, eq=False)
class LoggedChunk:
    """A chunk that is in the log alone."""

    chunk: Chunk
    vector: Vector | None


class Waiting(NamedTuple):
    """The terms of the log's chunks, and the number under which each of them came."""

    terms: Forward
    came: Mapping[LoggedChunk, int]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What channels search; it never changes.

    `lexical` has the live chunks of `segments`, one for one. `tail` holds the chunks of the log, `touched` the ids that
    the log has added or deleted: what segments hold of them is no more. `end` is where the log was read to, `before`
    what an earlier snapshot has read of its terms.
    """

    folder: Path
    manifest: Manifest
    analyzer: SavedAnalyzer
    segments: tuple[StoredSegment, ...] = ()
    lexical: tuple[Segment, ...] = ()
    tail: Mapping[str, LoggedChunk] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()
    end: int = 0
    before: Waiting = field(default_factory=lambda: Waiting(Forward(), {}))

    @classmethod
    def open(cls, folder: Path, before: Snapshot | None = None, analyzer: SavedAnalyzer | None = None) -> Snapshot:
        """The last commit. A file may be gone because another process has just sealed; then it is read again.

        Segments that a snapshot from before has open stay open, and its analyzer serves again. Raises
        IndexDamagedError, and IncompatibleIndexError as `manifest.read` and `analyzers` do.
        """
        present = manifest.read(folder)
        try:
            if before is not None and before.manifest == present:
                return before._caught_up()
            return cls._sealed(folder, present, before, analyzer)._caught_up()
        except IndexDamagedError:
            if manifest.read(folder) == present:
                raise
        return cls.open(folder, before, analyzer)

    @classmethod
    def _sealed(
        cls, folder: Path, present: Manifest, before: Snapshot | None, analyzer: SavedAnalyzer | None
    ) -> Snapshot:
        if before is not None and before.manifest.analyzer_fingerprint == present.analyzer_fingerprint:
            analyzer = before.analyzer
        else:
            analyzer = analyzers.make(present.analyzer, analyzer, folder.name)
            analyzers.check(analyzer, present.analyzer_fingerprint, folder.name)
        opened = before.segments if before else ()
        known = {(segment.entry.name, segment.entry.files[files.BLOCKS]): segment for segment in opened}
        dimension = present.embedder.dimension if present.embedder else None
        segments = tuple(
            known.get((entry.name, entry.files[files.BLOCKS]))
            or StoredSegment.open(folder, entry, folder.name, dimension)
            for entry in present.segments
        )
        lexical = (segment.live(folder, entry) for segment, entry in zip(segments, present.segments, strict=True))
        return cls(folder, present, analyzer, segments, tuple(lexical))

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
            tail |= {c.id: LoggedChunk(c, v) for c, v in zip(record.chunks, vectors, strict=True)}
            touched |= {*record.deleted, *(chunk.id for chunk in record.chunks)}
        lexical = tuple(segment.without(touched, self.analyzer.analyse) for segment in self.lexical)
        before = vars(self).get("waiting", self.before)
        return replace(self, lexical=lexical, tail=tail, touched=self.touched | touched, before=before)

    @property
    def rows(self) -> tuple[Rows, ...]:
        """Those of the segments."""
        return tuple(segment.rows for segment in self.lexical)

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
    def waiting(self) -> Waiting:
        """The terms of the log's chunks; each is analysed once."""
        new = [logged for logged in self.ordered if logged not in self.before.came]
        if not new:
            return self.before
        analyzed = self.analyzer.analyse([logged.chunk.text for logged in new])
        came = {**self.before.came, **{logged: self.before.terms.came + at for at, logged in enumerate(new)}}
        documents = (analyzed.document(at) for at in range(len(new)))
        return Waiting(self.before.terms.extended(documents, ()), came)

    @property
    def sealed(self) -> list[Part]:
        """The segments."""
        return [Part(segment, s.vectors) for segment, s in zip(self.lexical, self.segments, strict=True)]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is searched: the segments, and one made of the log's chunks."""
        parts = self.sealed
        if self.tail:
            rows = Rows([logged.chunk for logged in self.ordered])
            terms, came = self.waiting
            parts.append(Part(Segment(rows, terms.reordered([came[logged] for logged in self.ordered])), self.vectors))
        return tuple(parts)


def _live(rows: Rows, items: Sequence[T]) -> Iterator[T]:
    """Those of a segment's items that are live."""
    return (items[at] for at in range(len(rows)) if rows.live is None or rows.live[at])
