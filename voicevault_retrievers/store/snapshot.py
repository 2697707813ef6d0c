"""A knowledge base at one commit: its segments, their live chunks, and the log's chunks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import merge
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.columns import PARENT
from voicevault_retrievers.core.filters import Condition, Filter, compile_filter
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical.memtable import Memtable
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.store import analyzers, codec, files, manifest, segment, sources, wal
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.segment import StoredSegment
from voicevault_retrievers.store.sources import Source
from voicevault_retrievers.store.wal import CommitRecord

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoggedChunk:
    """A chunk that is only in the log."""

    chunk: Chunk
    vector: Vector | None


class PendingTerms(NamedTuple):
    """The memtable of the log's chunks, and the number of each in it."""

    terms: Memtable
    came: Mapping[LoggedChunk, int]


class TailTerms:
    """The log's chunks by ascending id, and their terms: analysed when first asked for, each chunk once.

    `before` are the terms that an earlier snapshot analysed.
    """

    def __init__(self, tail: Mapping[str, LoggedChunk], before: PendingTerms, analyzer: SavedAnalyzer) -> None:
        self._tail, self._before, self._analyzer = tail, before, analyzer

    @cached_property
    def ordered(self) -> Sequence[LoggedChunk]:
        return [self._tail[chunk_id] for chunk_id in sorted(self._tail)]

    @cached_property
    def _pending(self) -> PendingTerms:
        new = [logged for logged in self.ordered if logged not in self._before.came]
        if not new:
            return self._before
        analyzed = self._analyzer.analyse([logged.chunk.indexed_text for logged in new])
        came = {**self._before.came, **{logged: self._before.terms.came + at for at, logged in enumerate(new)}}
        documents = (analyzed.document(at) for at in range(len(new)))
        return PendingTerms(self._before.terms.extended(documents, ()), came)

    @property
    def latest(self) -> PendingTerms:
        """What has been analysed so far."""
        return self._pending if "_pending" in vars(self) else self._before

    def index(self, rows: Rows) -> IndexSegment:
        """The index of the log's chunks."""
        terms, came = self._pending
        return IndexSegment(rows, terms.reordered([came[logged] for logged in self.ordered]))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The immutable state that channels search.

    `lexical` has the live chunks of `segments`, one for one, `parents` their live parents. `tail` and `tail_parents`
    hold those of the log. `touched` are the ids of chunks that the log added or deleted; the segments' chunks of these
    ids are dead. `written` counts the log's changes to chunks, `end` is the position up to which the log was read,
    `head` the header of the last frame, `damage` what is wrong after it, `before` the terms that an earlier snapshot
    analysed.
    """

    folder: Path
    manifest: Manifest
    analyzer: SavedAnalyzer
    segments: tuple[StoredSegment, ...] = ()
    lexical: tuple[IndexSegment, ...] = ()
    parents: tuple[Rows, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    tail: Mapping[str, LoggedChunk] = field(default_factory=dict)
    tail_parents: Mapping[str, Chunk] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()
    written: int = 0
    end: int = 0
    head: bytes = b""
    damage: str | None = None
    before: PendingTerms = field(default_factory=lambda: PendingTerms(Memtable(), {}))

    @classmethod
    def open(cls, folder: Path, before: Snapshot | None = None, analyzer: SavedAnalyzer | None = None) -> Snapshot:
        """The last commit; reads again where a file is gone because another process has just sealed.

        Segments that `before` has open are reused, and so is its analyzer. Raises IndexDamagedError, and
        IncompatibleIndexError as `manifest.read` and `analyzers` do.
        """
        present = manifest.read(folder)
        try:
            if before is not None and before.manifest == present and before._stands():
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
            if before is not None and before.manifest.analyzer == present.analyzer:
                analyzer = analyzer or before.analyzer
            analyzer = analyzers.make(present.analyzer, analyzer, folder.name)
            analyzers.check(analyzer, present.analyzer_fingerprint, folder.name)
        opened = before.segments if before else ()
        known = {(segment.entry.name, segment.entry.files[files.BLOCKS]): segment for segment in opened}
        segments = tuple(
            known.get((entry.name, entry.files[files.BLOCKS]))
            or StoredSegment.open(folder, entry, folder.name, present.dimension)
            for entry in present.segments
        )
        both = list(zip(segments, present.segments, strict=True))
        return cls(
            folder,
            present,
            analyzer,
            segments,
            tuple(segment.live(folder, entry) for segment, entry in both),
            tuple(segment.live_parents(folder, entry) for segment, entry in both),
            sources.read(folder, present.sources),
        )

    def _caught_up(self) -> Snapshot:
        log = wal.read(self.folder / self.manifest.log, self.folder.name, self.end)
        if (log.end, log.damage) == (self.end, self.damage):
            return self
        if log.damage is not None:
            _logger.warning("%s: index again what was added last", log.damage)
        caught_up = self if log.end == self.end else replace(self.after(log.records), end=log.end, head=log.head)
        return replace(caught_up, damage=log.damage)

    def _stands(self) -> bool:
        return wal.stands(self.folder / self.manifest.log, self.end, self.head)

    def after(self, records: Iterable[CommitRecord]) -> Snapshot:
        """The snapshot after these commits."""
        tail, tail_parents = dict(self.tail), dict(self.tail_parents)
        changed: dict[str, Source | None] = {}
        touched: set[str] = set()
        moved: set[str] = set()
        written = self.written
        for record in records:
            if record.everything:
                written += len(tail) + len(tail_parents) + sum(rows.count for rows in (*self.rows, *self.parents))
                touched.update(*(_live(rows, rows.ids) for rows in self.rows), tail)
                moved.update(*(_live(rows, rows.ids) for rows in self.parents), tail_parents)
                changed = dict.fromkeys((*self.sources, *changed))
                tail, tail_parents = {}, {}
            for chunk_id in record.deleted:
                tail.pop(chunk_id, None)
            for chunk_id in record.orphans:
                tail_parents.pop(chunk_id, None)
            rows: Iterable[Vector | None] = record.vectors if record.vectors is not None else repeat(None)
            tail |= {chunk.id: LoggedChunk(chunk, row) for chunk, row in zip(record.chunks, rows, strict=False)}
            tail_parents |= {parent.id: parent for parent in record.parents}
            if record.sources:
                changed |= record.sources
            touched |= {*record.deleted, *(chunk.id for chunk in record.chunks)}
            moved |= {*record.orphans, *(parent.id for parent in record.parents)}
            written += len(record.deleted) + len(record.chunks) + len(record.orphans) + len(record.parents)
        return replace(
            self,
            lexical=tuple(segment.without(touched, self.analyzer.analyse) for segment in self.lexical),
            parents=tuple(_without(rows, moved) for rows in self.parents) if moved else self.parents,
            sources=_with(self.sources, changed) if changed else self.sources,
            tail=tail,
            tail_parents=tail_parents,
            touched=self.touched | touched,
            written=written,
            before=self._terms.latest,
        )

    def renewed(self, following: Manifest) -> Snapshot:
        """The same chunks, after a commit that merged segments and left the log unchanged."""
        opened = Snapshot._sealed(self.folder, following, self, None)
        names = (segment.entry.name for segment in self.segments)
        known = dict(zip(names, zip(self.lexical, self.parents, strict=True), strict=True))
        now = [
            known.get(segment.entry.name, (lexical, parents))
            for segment, lexical, parents in zip(opened.segments, opened.lexical, opened.parents, strict=True)
        ]
        return replace(
            self,
            manifest=following,
            damage=None,
            segments=opened.segments,
            lexical=tuple(lexical for lexical, _ in now),
            parents=tuple(parents for _, parents in now),
            before=self._terms.latest,
        )

    @property
    def rows(self) -> tuple[Rows, ...]:
        """The rows of the segments' chunks."""
        return tuple(segment.rows for segment in self.lexical)

    def __len__(self) -> int:
        return sum(rows.count for rows in self.rows) + len(self.tail)

    def __iter__(self) -> Iterator[Chunk]:
        """The live chunks, by ascending id."""
        stored = (_live(rows, rows.chunks) for rows in self.rows)
        return merge(*stored, (codec.own(logged.chunk) for logged in self.ordered), key=attrgetter("id"))

    def ids(self) -> Iterator[str]:
        """The ids of the live chunks, ascending."""
        return merge(*(_live(rows, rows.ids) for rows in self.rows), sorted(self.tail))

    def get(self, chunk_id: str) -> Chunk | None:
        """The live chunk of this id."""
        if chunk_id in self.tail:
            return codec.own(self.tail[chunk_id].chunk)
        found = ((rows, rows.ordinal(chunk_id)) for rows in self.rows)
        return next((rows.chunks[at] for rows, at in found if at is not None), None)

    def vector(self, chunk_id: str) -> Vector:
        """The vector of a live chunk."""
        logged = self.tail.get(chunk_id)
        if logged is not None and logged.vector is not None:
            return logged.vector
        both = zip(self.segments, self.rows, strict=True)
        found = ((stored.vectors, rows.ordinal(chunk_id)) for stored, rows in both)
        return next(vectors[at] for vectors, at in found if vectors is not None and at is not None)

    def parent(self, chunk_id: str) -> Chunk | None:
        """The live parent of this id."""
        if chunk_id in self.tail_parents:
            return codec.own(self.tail_parents[chunk_id])
        found = ((rows, rows.ordinal(chunk_id)) for rows in self.parents)
        return next((rows.chunks[at] for rows, at in found if at is not None), None)

    def parent_ids(self) -> Iterator[str]:
        """The ids of the live parents, ascending."""
        return merge(*(_live(rows, rows.ids) for rows in self.parents), sorted(self.tail_parents))

    def matching(self, where: Filter) -> Iterator[str]:
        """The ids of the live chunks that pass a filter."""
        for rows in self.rows:
            chosen = rows.selection(where)
            places = rows.living if chosen is None else chosen.ordinals.tolist()
            yield from (rows.ids[at] for at in places)
        passes = compile_filter(where)
        yield from (chunk_id for chunk_id, logged in self.tail.items() if passes(logged.chunk.metadata))

    def used(self, key: str, values: Iterable[str], gone: Collection[str], came: Iterable[Chunk]) -> set[str]:
        """The given values that a live chunk has under a metadata key, or, for `PARENT`, as its parent.

        Chunks with the ids `gone` do not count; the chunks `came` do.
        """
        wanted = set(values)
        logged = (entry.chunk for chunk_id, entry in self.tail.items() if chunk_id not in gone) if wanted else ()
        found = {value for chunk in chain(came, logged) for value in values_of(chunk, key)} & wanted
        for rows in self.rows if wanted - found else ():
            dead = [at for chunk_id in gone if (at := rows.ordinal(chunk_id)) is not None]
            left = rows.without(dead) if dead else rows
            found |= {value for value in wanted - found if _has(left, Condition(key, "$eq", value))}
        return found

    @cached_property
    def _terms(self) -> TailTerms:
        return TailTerms(self.tail, self.before, self.analyzer)

    @property
    def ordered(self) -> Sequence[LoggedChunk]:
        """The chunks of the log, by ascending id."""
        return self._terms.ordered

    @property
    def vectors(self) -> NDArray[np.float32] | None:
        """The vectors of `ordered`."""
        dimension = self.manifest.dimension
        if dimension is None:
            return None
        return np.array([logged.vector for logged in self.ordered], dtype=np.float32).reshape(-1, dimension)

    def committed(self) -> Iterator[tuple[StoredSegment, Rows]]:
        """The segments, with the chunks that are live in the manifest; changes in the log do not count."""
        for stored, entry in zip(self.segments, self.manifest.segments, strict=True):
            yield stored, Rows(*stored.table, segment.read_live(self.folder, entry), stored.columns)

    @property
    def sealed(self) -> list[SearchedPart]:
        """The segments as searchable parts."""
        every = zip(self.lexical, self.segments, self.parents, strict=True)
        return [stored.part(segment, parents) for segment, stored, parents in every]

    @cached_property
    def parts(self) -> tuple[SearchedPart, ...]:
        """The searchable parts: the segments, and one for the log's chunks, of which vector search needs no terms."""
        if not self.tail:
            return tuple(self.sealed)
        ordered = self.ordered
        chunks = Lazy(len(ordered), lambda at: codec.own(ordered[at].chunk))
        rows = Rows(chunks, [logged.chunk.id for logged in ordered])
        return (*self.sealed, SearchedPart(rows, self.vectors, partial(self._terms.index, rows)))


def _live(rows: Rows, items: Sequence[T]) -> Iterator[T]:
    """The live items of a segment."""
    return (items[at] for at in range(len(rows)) if rows.live is None or rows.live[at])


def _without(rows: Rows, ids: Iterable[str]) -> Rows:
    gone = [at for chunk_id in ids if (at := rows.ordinal(chunk_id)) is not None]
    return rows.without(gone) if gone else rows


def _with(sources: Mapping[str, Source], changed: Mapping[str, Source | None]) -> dict[str, Source]:
    return {name: source for name, source in {**sources, **changed}.items() if source is not None}


def values_of(chunk: Chunk, key: str) -> list[Any]:
    """The strings under a key that a filter would compare."""
    value = chunk.parent_id if key == PARENT else chunk.metadata.get(key)
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _has(rows: Rows, condition: Condition) -> bool:
    """Whether a live row meets a condition."""
    found = rows.columns[condition.key].select(condition)
    return bool(found.count if rows.live is None else rows.live[found.ordinals].any())
