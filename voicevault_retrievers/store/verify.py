"""Reads a whole knowledge base and says what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.store import manifest, segment, wal
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.graphs import damage
from voicevault_retrievers.store.manifest import Manifest, SegmentEntry
from voicevault_retrievers.store.names import vacant
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.structure.questions import COLLECTION

_UNREADABLE = (IndexDamagedError, IncompatibleIndexError, OSError)


def problems(folder: Path, analyzer: SavedAnalyzer | None = None, *, progress: Progress | None = None) -> list[str]:
    """What is wrong in a knowledge base's folder, a line each; empty when all is sound.

    Of the chunks, of the questions about them, and of the file of their graph. A custom analyzer has to be given.
    `progress` is told (done, total) of the bytes of segments.
    """
    questions = folder / COLLECTION
    passed = None if progress is None else _Passed(progress, _size(folder) + _size(questions))
    found = _wrong(folder, analyzer, passed)
    if not vacant(questions):
        found += [f"questions: {line}" for line in _wrong(questions, analyzer, passed)]
    graph = damage(folder)
    return found if graph is None else [*found, graph]


class _Passed:
    """Adds up what was read, for those who watch; what another process seals meanwhile is not in the total."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, size: int) -> None:
        self._done = min(self._done + size, self._total)
        self._progress(self._done, self._total)


def _size(folder: Path) -> int:
    """The bytes of a folder's segments, 0 where it cannot be read, which is said when it is looked at."""
    try:
        return sum(file.size for entry in manifest.read(folder).segments for file in entry.files.values())
    except _UNREADABLE:
        return 0


def _wrong(folder: Path, analyzer: SavedAnalyzer | None, passed: _Passed | None) -> list[str]:
    """What is wrong with chunks.

    Sizes, sha256 and crc32 of every file; that chunks, ids, postings and vectors join; that no chunk is live twice;
    what deleted chunks take from the counts; that the log is whole, and whether some of it was set aside. What is seen
    while another process seals is looked at again.
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
    """What is wrong; segments that were found `sound` before are not read again."""
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
