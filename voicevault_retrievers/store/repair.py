"""Verification of a knowledge base, and rebuilding of what is derived from its chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.lexical.builder import build
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.store import analyzers, codec, disk, files, live_curation, manifest, segment, sources, wal
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.commit import sweep, written
from voicevault_retrievers.store.compaction import Merged
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.graphs import damage, drop_damaged
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.manifest import Manifest, SegmentEntry
from voicevault_retrievers.store.names import vacant
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.structure.questions import COLLECTION


def repair(folder: Path, given: SavedAnalyzer | None, progress: Progress | None = None) -> None:
    """Rebuild what is derived from the chunks, then from the questions about them; remove a damaged graph.

    Raises as `KnowledgeBase.repair` does. Where the questions cannot be repaired, the chunks have been.
    """
    _rewrite(folder, given, progress)
    drop_damaged(folder)
    questions = folder / COLLECTION
    if not vacant(questions):
        try:
            _rewrite(questions, given, None)
        except IndexDamagedError as error:
            remedy = f"the chunks are repaired: restore {questions}, or remove that folder and make the questions again"
            raise IndexDamagedError(f"{error}; {remedy}") from error


def _rewrite(folder: Path, given: SavedAnalyzer | None, progress: Progress | None) -> None:
    """Write every segment again from its chunks and vectors, under the lock; one manifest commits all.

    Deleted chunks are left out, and a damaged end of the log is set aside. Raises before anything is written.
    """
    lock = Lock(folder / "lock")
    try:
        present = manifest.read(folder)
        analyzer = analyzers.make(present.analyzer, given, folder.name)
        end = wal.read(folder / present.log, folder.name).end
        sources.read(folder, present.sources)
        for entry in present.segments:
            _check(folder, entry)
        wal.set_aside(folder / present.log, end)
        sweep(folder, present)
        total = sum(entry.count for entry in present.segments)
        segments: list[SegmentEntry] = []
        done = 0
        for number, entry in enumerate(present.segments, start=present.generation + 1):
            segments.append(written(present, folder, number, Merged([_part(folder, entry, analyzer)])))
            done += entry.count
            if progress:
                progress(done, total)
        disk.flush_folder(folder)
        following = replace(
            present,
            analyzer_fingerprint=analyzer.fingerprint,
            generation=present.generation + len(segments),
            segments=tuple(segments),
        )
        manifest.write(folder, following)
        sweep(folder, following)
    finally:
        lock.release()


def _check(folder: Path, entry: SegmentEntry) -> None:
    """Raises IndexDamagedError where files that cannot be rebuilt have changed."""
    originals = {name: file for name, file in entry.files.items() if files.original(name)}
    wrong = next(files.problems(folder / entry.name, originals), None)
    if wrong:
        raise IndexDamagedError(f"{wrong}, and cannot be made again: {files.REMEDY}")
    segment.read_live(folder, entry)
    segment.read_live_parents(folder, entry)


def _part(folder: Path, entry: SegmentEntry, analyzer: SavedAnalyzer) -> SearchedPart:
    own = folder / entry.name
    chunks = _chunks(own / "chunks.jsonl", folder.name)
    postings = build(analyzer.analyse(Lazy(len(chunks), lambda at: chunks[at].indexed_text)))
    vectors = np.load(own / "vectors.npy", mmap_mode="r") if "vectors.npy" in entry.files else None
    parents = None
    if entry.parents:
        parents = Rows(_chunks(own / "parents.jsonl", folder.name), live=segment.read_live_parents(folder, entry))
    rows = Rows(chunks, live=segment.read_live(folder, entry))
    return SearchedPart(rows, vectors, lambda: IndexSegment(rows, postings), parents)


def _chunks(path: Path, kb: str) -> Lazy[Chunk]:
    with path.open("rb") as file:
        ends = np.cumsum([0, *map(len, file)])
    if len(ends) == 1:
        return Lazy(0, [].__getitem__)
    lines = np.memmap(path, mode="r").data
    return Lazy(len(ends) - 1, lambda at: codec.decode(lines[ends[at] : ends[at + 1]].tobytes(), kb))


_UNREADABLE = (IndexDamagedError, IncompatibleIndexError, OSError)


def problems(folder: Path, analyzer: SavedAnalyzer | None = None, *, progress: Progress | None = None) -> list[str]:
    """What is wrong in a knowledge base's folder, one line each; empty when all is sound.

    Checks the chunks, the questions about them, and the files of the graph and the curation. A custom analyzer has to
    be given. `progress` is told (done, total) of the bytes of segments.
    """
    questions = folder / COLLECTION
    passed = None if progress is None else _Passed(progress, _size(folder) + _size(questions))
    found = _wrong(folder, analyzer, passed)
    if not vacant(questions):
        found += [f"questions: {line}" for line in _wrong(questions, analyzer, passed)]
    return [*found, *(wrong for wrong in (damage(folder), live_curation.damage(folder)) if wrong is not None)]


class _Passed:
    """Reports progress over the bytes read; segments sealed meanwhile by another process are not in the total."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, size: int) -> None:
        self._done = min(self._done + size, self._total)
        self._progress(self._done, self._total)


def _size(folder: Path) -> int:
    """The bytes of a folder's segments; 0 where the manifest cannot be read, which `_wrong` reports."""
    try:
        return sum(file.size for entry in manifest.read(folder).segments for file in entry.files.values())
    except _UNREADABLE:
        return 0


def _wrong(folder: Path, analyzer: SavedAnalyzer | None, passed: _Passed | None) -> list[str]:
    """What is wrong with the chunks of a base.

    Checks sizes, sha256 and crc32 of every file; that chunks, ids, postings and vectors have the same counts; that no
    chunk is live twice; the term counts of deleted chunks; that the log is whole, and whether some of it was set aside.
    Where another process seals meanwhile, problems are checked again.
    """
    sound: list[SegmentEntry] = []
    while True:
        try:
            present = manifest.read(folder)
        except _UNREADABLE as error:
            return [str(error)]
        try:
            found = list(_problems(folder, present, analyzer, sound, passed))
        except _UNREADABLE as error:
            found = [str(error)]
        if not found or not _moved_on(folder, present):
            return found


def _moved_on(folder: Path, present: Manifest) -> bool:
    try:
        return manifest.read(folder) != present
    except _UNREADABLE:
        return False


def _problems(
    folder: Path,
    present: Manifest,
    analyzer: SavedAnalyzer | None,
    sound: list[SegmentEntry],
    passed: _Passed | None,
) -> Iterator[str]:
    """What is wrong; `sound` collects segments without problems, which are not read again."""
    whole = True
    for entry in present.segments:
        if any(entry.name == other.name and entry.files == other.files for other in sound):
            continue
        found = list(segment.problems(folder, entry, present.dimension, passed))
        yield from found
        if found:
            whole = False
        else:
            sound.append(entry)
    if not whole:
        return
    snapshot = Snapshot.open(folder, analyzer=analyzer)
    broken = wal.broken_end(folder / present.log, snapshot.end)
    if broken:
        yield broken
    for path in sorted(folder.glob("log-*.set-aside-*")):
        yield f"{path} holds a damaged end of a log; what was committed there may be lost: index again, then remove it"
    twice = [chunk_id for chunk_id, n in Counter(snapshot.ids()).items() if n > 1]
    yield from (f"chunk {chunk_id!r} is live in two places" for chunk_id in twice)
    twice = [chunk_id for chunk_id, n in Counter(snapshot.parent_ids()).items() if n > 1]
    yield from (f"parent {chunk_id!r} is live in two places" for chunk_id in twice)
    yield from _miscounted(snapshot)


def _miscounted(snapshot: Snapshot) -> Iterator[str]:
    for stored, found in zip(snapshot.segments, snapshot.lexical, strict=True):
        if found.rows.live is not None and found.removed is not None:
            taken = stored.taken(found.rows.live)
            length = int(stored.postings.lengths.sum(where=~found.rows.live, dtype=np.int64))
            if not np.array_equal(taken, found.removed.counts(len(taken))) or found.removed.length != length:
                yield f"{stored.entry.name}: what its deleted chunks take from the counts is not what they have"
