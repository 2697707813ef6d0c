"""Commits: records in the log, or, when the log is full, a segment of its chunks and a new log."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.selection import Mask
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.builder import build
from voicevault_retrievers.lexical.merge_policy import plan
from voicevault_retrievers.lexical.postings import Numbers
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.store import disk, manifest, segment, sources, wal
from voicevault_retrievers.store.compaction import Merged
from voicevault_retrievers.store.manifest import Manifest, SegmentEntry
from voicevault_retrievers.store.names import vacant
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.segment import StoredSegment
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.store.wal import CommitRecord

SEAL_AT = 4096
"""The log becomes a segment after this many changes to chunks (added, replaced, deleted)."""

LOG_BYTES = 64 * 1024 * 1024
"""The log becomes a segment also where it would grow larger than this."""

MERGE_AT_ONCE = 16 * SEAL_AT
"""The most chunks that a commit merges itself; larger merges run in the background (see `CommitWriter`)."""

_OURS = re.compile(r"(log|sources)-\d{6,}|seg-\d{6,}(\.dead-\d{6,}(\.terms|\.parents)?)?")


@dataclass(frozen=True)
class Changes:
    """What an add did, in chunks; `removed` counts the chunks that its sources no longer contain."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0


def begin(folder: Path, first: Manifest) -> None:
    """Create an empty knowledge base beside its folder and move it there, so that no partial base is visible."""
    disk.make_folders(folder.parent)
    made = folder.with_name(f".{first.id}")
    disk.make_folder(made)
    try:
        wal.create(made / first.log)
        manifest.write(made, first)
        disk.rename(made, folder)
    except OSError as error:
        disk.remove(made)
        if vacant(folder):
            raise
        raise ConfigError(f"{folder} cannot be made ({error.strerror}): choose another name or root") from error
    disk.flush_folder(folder.parent)


@contextmanager
def moved_to(target: Path) -> Iterator[Path]:
    """A folder beside `target`, moved there when the block ends, and deleted where the block raises."""
    disk.make_folders(target.parent)
    with TemporaryDirectory(prefix=".import-", dir=target.parent) as made:
        folder = Path(made, target.name)
        yield folder
        disk.rename(folder, target)
    disk.flush_folder(target.parent)


def commit(
    before: Snapshot, after: Snapshot, records: Sequence[CommitRecord], number: int, busy: Collection[str]
) -> Snapshot:
    """Write the records that lead from `before` to `after`, with one flush; returns the snapshot that holds them.

    Where the log would be too full it becomes a segment (see `seal`); where the disk has no room for that, records that
    only delete go into the log nevertheless. After an OSError the previous commit stands.
    """
    framed = wal.framed(records)
    if after.written >= SEAL_AT or before.end + len(framed) > LOG_BYTES:
        try:
            return seal(after, number, busy)
        except OSError as error:
            folder, present = before.folder, before.manifest
            full = error.errno == errno.ENOSPC and manifest.read(folder) == present
            if not full or any(record.adds for record in records):
                raise
            sweep(folder, present, busy)
    end = wal.append(after.folder / after.manifest.log, before.end, framed)
    return replace(after, end=end, head=framed[: wal.HEAD], damage=None)


def seal(snapshot: Snapshot, number: int, busy: Collection[str] = (), *, whole: bool = False) -> Snapshot:
    """Commit a snapshot as segments with an empty log; returns the snapshot read back from disk.

    One replacement of the manifest commits the new segments, the tombstones of others and the new log. New files are
    numbered from `number` on. A segment without live chunks and parents is left out. Small segments of about one size
    are merged, and a segment of which more than half is dead is rewritten, except those that are `busy`; with `whole`,
    all are merged into one. Raises IndexDamagedError where a segment to be rewritten has changed on disk.
    """
    folder, present = snapshot.folder, snapshot.manifest
    sweep(folder, present, busy)
    parts = [*snapshot.sealed, *_fresh(snapshot)]
    groups = _whole(parts) if whole else _groups(snapshot, parts, busy)
    kept = [group[0] for group in groups if _stays(snapshot, group, busy, whole=whole, small=not whole)]
    made = [group for group in groups if group[0] not in kept]
    last = number + max(1, len(made)) - 1
    segments = [_buried(snapshot, place, last) for place in kept]
    for at, group in enumerate(made, start=number):
        checked(snapshot, group)
        segments.append(written(present, folder, at, Merged([parts[place] for place in group])))
    name = f"log-{last:06d}"
    wal.create(folder / name)
    listed = sources.write(folder, last, snapshot.sources)
    disk.flush_folder(folder)
    following = replace(present, generation=last, log=name, segments=tuple(segments), sources=listed)
    manifest.write(folder, following)
    sweep(folder, following, busy)
    return Snapshot.open(folder, snapshot)


def checked(snapshot: Snapshot, group: Sequence[int]) -> None:
    """Raises IndexDamagedError where segments that are to be rewritten have changed on disk."""
    for place in group:
        if place < len(snapshot.segments):
            snapshot.segments[place].check()


def written(present: Manifest, folder: Path, number: int, merged: Merged) -> SegmentEntry:
    """Write the segment of this number."""
    name, quantised = f"seg-{number:06d}", present.vectors == "int8" and present.embedder is not None
    return segment.write(
        folder, name, merged.chunks, merged.postings, merged.vectors, merged.parents, quantised=quantised
    )


def pending(snapshot: Snapshot) -> list[int]:
    """The places of segments that should be merged, or of one that should be rewritten; empty for none."""
    groups = plan([_size(part) for part in snapshot.sealed], SEAL_AT)
    return next((group for group in groups if not _stays(snapshot, group)), [])


def replaced(snapshot: Snapshot, merged: Merged, names: Sequence[str], entry: SegmentEntry) -> Snapshot:
    """Commit a segment merged from others while commits went on; later deletions become tombstones in it.

    `names` are the merged segments, in the order in which they were merged.
    """
    folder, present = snapshot.folder, snapshot.manifest
    every = zip(present.segments, snapshot.rows, snapshot.parents, strict=True)
    known = {old.name: (rows, parents) for old, rows, parents in every}
    found = [known.get(name, (None, None)) for name in names]  # an emptied segment is gone already
    live = _still(merged.order, [rows for rows, _ in found])
    live_parents = _still(merged.parent_order, [parents for _, parents in found])
    generation = max(present.generation, int(entry.name.removeprefix("seg-")))
    opened = StoredSegment.open(folder, entry, folder.name, present.dimension)
    lexical = IndexSegment(Rows(*opened.table, live, opened.columns), opened.postings)
    entry = _entry(folder, opened, entry, lexical, Rows(*opened.parents, live_parents), generation)
    others = (old for old in present.segments if old.name not in names)
    following = replace(present, generation=generation, segments=(*others, entry))
    disk.flush_folder(folder)
    disk.cut(folder / present.log, snapshot.end)  # a writer before this one may have ended before it flushed
    manifest.write(folder, following)
    return snapshot.renewed(following)


def sweep(folder: Path, present: Manifest, besides: Collection[str] = ()) -> None:
    """Remove files that the manifest does not refer to: replaced ones, and those left by a killed writer."""
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in present.names and path.name not in besides:
            disk.remove(path)


def _whole(parts: Sequence[SearchedPart]) -> list[list[int]]:
    """All parts with live chunks as one group; no group where there are none."""
    filled = [place for place, part in enumerate(parts) if _size(part)]
    return [filled] if filled else []


def _groups(snapshot: Snapshot, parts: Sequence[SearchedPart], busy: Collection[str]) -> list[list[int]]:
    """The groups of parts that become one segment each; large groups stay separate for now, and so do busy segments."""
    found: list[list[int]] = []
    for group in plan([_size(part) for part in parts], SEAL_AT):
        large = sum(_size(parts[place]) for place in group) > MERGE_AT_ONCE
        apart = large or any(_name(snapshot, place) in busy for place in group)
        found += [[place] for place in group] if apart else [group]
    return found


def _name(snapshot: Snapshot, place: int) -> str | None:
    """The name of a segment; None for the log's chunks."""
    return snapshot.segments[place].entry.name if place < len(snapshot.segments) else None


def _size(part: SearchedPart) -> int:
    """The number of live chunks, or of live parents where they are more."""
    return max(part.rows.count, part.parents.count if part.parents else 0)


def _size_of(snapshot: Snapshot, place: int) -> int:
    return max(snapshot.rows[place].count, snapshot.parents[place].count)


def _fresh(snapshot: Snapshot) -> Iterator[SearchedPart]:
    """The chunks and parents of the log, where there are any, with postings built for them."""
    if snapshot.tail or snapshot.tail_parents:
        chunks = [logged.chunk for logged in snapshot.ordered]
        documents = snapshot.analyzer.analyse([chunk.indexed_text for chunk in chunks])
        parents = Rows.of(snapshot.tail_parents.values())
        rows = Rows(chunks)
        yield SearchedPart(rows, snapshot.vectors, lambda: IndexSegment(rows, build(documents)), parents)


def _stays(
    snapshot: Snapshot, group: Sequence[int], busy: Collection[str] = (), *, whole: bool = False, small: bool = False
) -> bool:
    """Whether a group is one segment, already on disk, that is busy or at least half live (all live, if `whole`).

    With `small`, a large segment stays however little of it is live.
    """
    name = _name(snapshot, group[0])
    if len(group) > 1 or name is None:
        return False
    if name in busy or (small and _size_of(snapshot, group[0]) > MERGE_AT_ONCE):
        return True
    lexical, parents = snapshot.rows[group[0]], snapshot.parents[group[0]]
    live, size = lexical.count + parents.count, len(lexical) + len(parents)
    return live == size if whole else 2 * live >= size


def _buried(snapshot: Snapshot, place: int, generation: int) -> SegmentEntry:
    """The entry of a segment, with tombstones for all that is not live."""
    entry, stored = snapshot.manifest.segments[place], snapshot.segments[place]
    return _entry(snapshot.folder, stored, entry, snapshot.lexical[place], snapshot.parents[place], generation)


def _entry(
    folder: Path, stored: StoredSegment, entry: SegmentEntry, lexical: IndexSegment, parents: Rows, generation: int
) -> SegmentEntry:
    name = f"{entry.name}.dead-{generation:06d}"
    live, live_parents = lexical.rows.live, parents.live
    if live is not None and len(live) - lexical.rows.count != entry.deleted:
        entry = replace(entry, tombstones=stored.bury(folder, name, lexical, live))
    if live_parents is not None and len(live_parents) - parents.count != entry.deleted_parents:
        dead = segment.bury(folder, f"{name}.parents", live_parents)
        entry = replace(entry, parent_tombstones=dead, deleted_parents=len(live_parents) - parents.count)
    return entry


def _still(order: tuple[Numbers, Numbers], tables: Sequence[Rows | None]) -> Mask:
    """Which chunks of a merge order are live in the present rows; none of the tables that are None."""
    numbers, ordinals = order
    live = np.ones(len(numbers), dtype=np.bool_)
    for number, rows in enumerate(tables):
        own = numbers == number
        if rows is None:
            live[own] = False
        elif rows.live is not None:
            live[own] = rows.live[ordinals[own]]
    return live
