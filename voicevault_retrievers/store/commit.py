"""Commits: a record in the log, or, when that is full, a segment with what the log held and a new log."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.building import build
from voicevault_retrievers.lexical.segment import Segment
from voicevault_retrievers.lexical.tiers import plan
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store import files, log, manifest, segment
from voicevault_retrievers.store.log import Record
from voicevault_retrievers.store.manifest import Manifest, SegmentEntry
from voicevault_retrievers.store.merging import Merged
from voicevault_retrievers.store.snapshot import Part, Snapshot

SEAL_AT = 4096
"""A log that has touched this many chunks becomes a segment."""

_OURS = re.compile(r"log-\d{6,}|seg-\d{6,}(\.dead-\d{6,}(\.terms)?)?")


@dataclass(frozen=True)
class Changes:
    """What an add did, in chunks."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0


def begin(folder: Path, first: Manifest) -> None:
    """Make an empty knowledge base elsewhere and move it into its place, so that there is never half of one."""
    made = folder.with_name(f".{first.id}")
    made.mkdir(parents=True)
    log.create(made / first.log)
    manifest.write(made, first)
    try:
        made.rename(folder)
    except OSError as error:
        shutil.rmtree(made)
        raise ConfigError(f"{folder} cannot be made ({error.strerror}): choose another name or root") from error
    files.flush_folder(folder.parent)


def commit(snapshot: Snapshot, record: Record) -> Snapshot:
    """Write what a record changes; the snapshot that holds it. OSError leaves the last commit."""
    after = snapshot.after([record])
    if len(after.touched) >= SEAL_AT:
        return seal(after)
    return replace(after, end=log.append(after.folder / after.manifest.log, after.end, record))


def seal(snapshot: Snapshot) -> Snapshot:
    """Commit a snapshot as segments with an empty log; the snapshot read back from disk.

    One replacement of the manifest commits the new segments, the tombstones of others and the new log. A segment
    without live chunks is left out; segments of about one size become one, and one of which more than half is dead is
    written again. Raises IndexDamagedError where what would be written again has changed on disk.
    """
    folder, present = snapshot.folder, snapshot.manifest
    sweep(folder, present)
    parts = [*snapshot.sealed, *_fresh(snapshot)]
    groups = plan([part.rows.count for part in parts], SEAL_AT)
    kept = [group[0] for group in groups if _stays(snapshot, group)]
    made = [group for group in groups if group[0] not in kept]
    generation = present.generation + max(1, len(made))
    segments = [_buried(snapshot, place, generation) for place in kept]
    for number, group in enumerate(made, start=present.generation + 1):
        for place in group:
            if place < len(snapshot.segments):
                snapshot.segments[place].check()
        segments.append(written(folder, number, Merged([parts[place] for place in group])))
    name = f"log-{generation:06d}"
    log.create(folder / name)
    files.flush_folder(folder)
    following = replace(present, generation=generation, log=name, segments=tuple(segments))
    manifest.write(folder, following)
    sweep(folder, following)
    return Snapshot.open(folder, snapshot)


def written(folder: Path, number: int, merged: Merged) -> SegmentEntry:
    """Write the segment of this number."""
    return segment.write(folder, f"seg-{number:06d}", merged.chunks, merged.postings, merged.vectors)


def sweep(folder: Path, present: Manifest) -> None:
    """Remove what the manifest does not refer to: what has been replaced, and what a killed writer left."""
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in present.names:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _fresh(snapshot: Snapshot) -> Iterator[Part]:
    """The chunks of the log, where there are any, with postings of their own."""
    if snapshot.tail:
        chunks = [logged.chunk for logged in snapshot.ordered]
        documents = snapshot.analyzer.analyse([chunk.text for chunk in chunks])
        yield Part(Segment(Rows(chunks), build(documents)), snapshot.vectors)


def _stays(snapshot: Snapshot, group: Sequence[int]) -> bool:
    """Whether a group is a segment that is on disk already, and half of it is live."""
    if len(group) > 1 or group[0] >= len(snapshot.segments):
        return False
    rows = snapshot.rows[group[0]]
    return 2 * rows.count >= len(rows)


def _buried(snapshot: Snapshot, place: int, generation: int) -> SegmentEntry:
    """The entry of a segment, with tombstones for all that is not live."""
    entry, lexical = snapshot.manifest.segments[place], snapshot.lexical[place]
    if lexical.rows.live is None or len(lexical.rows) - lexical.rows.count == entry.deleted:
        return entry
    name = f"{entry.name}.dead-{generation:06d}"
    dead = snapshot.segments[place].bury(snapshot.folder, name, lexical, lexical.rows.live)
    return replace(entry, tombstones=dead)
