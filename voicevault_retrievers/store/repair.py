"""Makes again what is derived from a knowledge base's chunks: postings, columns, ids, checksums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical.building import build
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.store import analyzers, codec, disk, files, manifest, segment, sources, wal
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.commit import sweep, written
from voicevault_retrievers.store.compaction import Merged
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.graphs import drop_damaged
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.manifest import SegmentEntry
from voicevault_retrievers.store.names import vacant
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.structure.questions import COLLECTION


def repair(folder: Path, given: SavedAnalyzer | None, progress: Progress | None = None) -> None:
    """Make again what is derived: of the chunks, then of the questions about them; and drop a damaged graph.

    Raises as `KnowledgeBase.repair` does. Where questions cannot be repaired the chunks are by then.
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
        _, end, _ = wal.read(folder / present.log, folder.name)
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
    """Raises IndexDamagedError where what nothing else holds has changed."""
    originals = {name: file for name, file in entry.files.items() if files.original(name)}
    wrong = next(files.problems(folder / entry.name, originals), None)
    if wrong:
        raise IndexDamagedError(f"{wrong}, and cannot be made again: {files.REMEDY}")
    segment.read_live(folder, entry)
    segment.read_live_parents(folder, entry)


def _part(folder: Path, entry: SegmentEntry, analyzer: SavedAnalyzer) -> SearchedPart:
    own = folder / entry.name
    chunks = _chunks(own / "chunks.jsonl", folder.name)
    postings = build(analyzer.analyse(Lazy(len(chunks), lambda at: chunks[at].text)))
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
