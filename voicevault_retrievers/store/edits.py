"""Edits of a knowledge base, worked out against the snapshot that they change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from voicevault_retrievers.core.columns import PARENT
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import codec
from voicevault_retrievers.store.commit import Changes
from voicevault_retrievers.store.embedding import Prepared
from voicevault_retrievers.store.snapshot import Snapshot, values_of
from voicevault_retrievers.store.sources import KEY, Source
from voicevault_retrievers.store.wal import CommitRecord


@dataclass(frozen=True)
class Put:
    """Add or replace chunks, parents and sources, by id or name.

    Chunks that a given source held before and that are not among `chunks` are deleted; with `alone`, everything else
    is. `vectors` gives the rows of the chunks that are not in the snapshot already.
    """

    chunks: Sequence[Chunk]
    vectors: Prepared
    parents: Sequence[Chunk] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    alone: bool = False

    def __call__(self, snapshot: Snapshot) -> tuple[CommitRecord, Changes]:
        present = [self.vectors.present(snapshot, chunk.id) for chunk in self.chunks]
        changed = [
            at
            for at, chunk in enumerate(self.chunks)
            if not codec.same(chunk, present[at]) or self.vectors.changes(snapshot, chunk.id)
        ]
        picked = tuple(self.chunks[at] for at in changed)
        gone = self._gone(snapshot)
        record = CommitRecord(
            picked,
            self.vectors(snapshot, picked),
            tuple(chunk.id for chunk in gone),
            tuple(parent for parent in self.parents if not codec.same(parent, snapshot.parent(parent.id))),
            sources={name: source for name, source in self.sources.items() if snapshot.sources.get(name) != source},
        )
        former = [chunk for at in changed if (chunk := present[at]) is not None]
        changes = Changes(len(changed) - len(former), len(former), len(self.chunks) - len(changed), len(gone))
        return self._without_rest(snapshot, record, [*former, *gone]), changes

    def _gone(self, snapshot: Snapshot) -> list[Chunk]:
        before = {parent.id for parent in self.parents if parent.is_parent}  # a searched chunk may be a parent now
        if self.alone:
            before.update(snapshot.ids())
        elif self.sources:
            before.update(snapshot.matching({KEY: {"$in": list(self.sources)}}))
        return _chunks(snapshot, sorted(before.difference(chunk.id for chunk in self.chunks)))

    def _without_rest(self, snapshot: Snapshot, record: CommitRecord, former: Sequence[Chunk]) -> CommitRecord:
        if not self.alone:
            return tidied(snapshot, record, former, {parent.id for parent in self.parents}, self.sources)
        used = {parent.id for parent in self.parents} | {chunk.parent_id for chunk in self.chunks}
        orphans = (parent_id for parent_id in snapshot.parent_ids() if parent_id not in used)
        none = {name: None for name in snapshot.sources.keys() - self.sources.keys()}
        return replace(record, orphans=tuple(orphans), sources={**record.sources, **none})


@dataclass(frozen=True)
class Drop:
    """Delete chunks by ids or by a filter, and optionally the named source."""

    ids: Iterable[str] = ()
    where: Filter | None = None
    source: str | None = None

    def __call__(self, snapshot: Snapshot) -> tuple[CommitRecord, int]:
        wanted = self.ids if self.where is None else snapshot.matching(self.where)
        gone = _chunks(snapshot, sorted(set(wanted)))
        sources = {self.source: None} if self.source is not None and self.source in snapshot.sources else {}
        record = CommitRecord(deleted=tuple(chunk.id for chunk in gone), sources=sources)
        return tidied(snapshot, record, gone), len(gone)


def clear(snapshot: Snapshot) -> tuple[CommitRecord, int]:
    """Delete everything, by a record that is as short for a large base as for a small one."""
    full = len(snapshot) or snapshot.sources or next(snapshot.parent_ids(), None) is not None
    return CommitRecord(everything=bool(full)), len(snapshot)


def tidied(
    snapshot: Snapshot,
    record: CommitRecord,
    former: Iterable[Chunk],
    parents_kept: Collection[str] = (),
    sources_kept: Collection[str] = (),
) -> CommitRecord:
    """The record, also deleting parents and sources that lose their last chunk; `former` are the removed chunks."""
    parents, names = set[str](), set[str]()
    for chunk in former:
        parents.update(values_of(chunk, PARENT))
        names.update(values_of(chunk, KEY))
    parents = {parent for parent in parents.difference(parents_kept) if snapshot.parent(parent) is not None}
    names = (names & snapshot.sources.keys()) - record.sources.keys() - set(sources_kept)
    if not parents and not names:
        return record
    gone = {*record.deleted, *(chunk.id for chunk in record.chunks)}
    orphans = parents - snapshot.used(PARENT, parents, gone, record.chunks)
    lost = names - snapshot.used(KEY, names, gone, record.chunks)
    return replace(record, orphans=tuple(sorted(orphans)), sources={**record.sources, **dict.fromkeys(sorted(lost))})


def _chunks(snapshot: Snapshot, ids: Iterable[str]) -> list[Chunk]:
    """The chunks with these ids that exist."""
    return [chunk for chunk_id in ids if (chunk := snapshot.get(chunk_id)) is not None]
