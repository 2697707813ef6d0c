"""Commits: a record in the log, or, when that is full, a segment with what the log held and a new log."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store import files, log, manifest, segment
from voicevault_retrievers.store.log import Record
from voicevault_retrievers.store.manifest import Manifest, SegmentEntry
from voicevault_retrievers.store.snapshot import Snapshot

SEAL_AT = 4096
"""A log that has touched this many chunks becomes a segment."""

_OURS = re.compile(r"(log|seg)-\d{6}")


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

    One replacement of the manifest commits the new segment, the tombstones of the others and the new log. A segment
    without live chunks is left out.
    """
    folder, present = snapshot.folder, snapshot.manifest
    sweep(folder, present)
    generation = present.generation + 1
    segments = [
        _buried(folder, entry, rows, generation)
        for entry, rows in zip(present.segments, snapshot.rows, strict=True)
        if rows.count
    ]
    if snapshot.tail:
        name = f"seg-{generation:06d}"
        chunks = [logged.chunk for logged in snapshot.ordered]
        documents = (logged.terms for logged in snapshot.ordered)
        segments.append(segment.write(folder, name, chunks, documents, snapshot.vectors))
    name = f"log-{generation:06d}"
    log.create(folder / name)
    files.flush_folder(folder)
    following = replace(present, generation=generation, log=name, segments=tuple(segments))
    manifest.write(folder, following)
    sweep(folder, following)
    return Snapshot.open(folder, snapshot)


def sweep(folder: Path, present: Manifest) -> None:
    """Remove what the manifest does not refer to: what has been replaced, and what a killed writer left."""
    for path in folder.iterdir():
        if _OURS.match(path.name) and path.name not in present.names:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _buried(folder: Path, entry: SegmentEntry, rows: Rows, generation: int) -> SegmentEntry:
    """The entry with tombstones for all that is not live."""
    if rows.live is None or len(rows) - rows.count == entry.deleted:
        return entry
    name = f"{entry.name}.dead-{generation:06d}"
    return replace(entry, tombstones=segment.write_tombstones(folder, name, rows.live))
