"""Statistics of a knowledge base."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.snapshot import Snapshot


@dataclass(frozen=True)
class Stats:
    """Counts and sizes of a knowledge base.

    `deleted` chunks still take space in segments; `logged` chunks are only in the log; `size` is in bytes, on disk.
    `vectors` says how vectors are searched, `embedder` which embedder made them; None where there are none. `int8` has
    the gate of each segment whose int8 codes passed; the other segments are searched in float32.
    """

    name: str
    chunks: int
    parents: int
    sources: int
    segments: int
    deleted: int
    logged: int
    size: int
    analyzer: str
    vectors: VectorSearch | None
    int8: tuple[str, ...]
    embedder: str | None
    dimension: int | None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Stats:
        """The statistics of a snapshot; `size` is that of the folder now."""
        present = snapshot.manifest
        embedder = present.embedder
        return cls(
            snapshot.folder.name,
            len(snapshot),
            sum(1 for _ in snapshot.parent_ids()),
            len(snapshot.sources),
            len(snapshot.segments),
            sum(len(rows) - rows.count for rows in snapshot.rows),
            len(snapshot.tail),
            _size(snapshot.folder),
            repr(snapshot.analyzer),
            present.vectors if embedder else None,
            tuple(f"{entry.name}: {entry.gate}" for entry in present.segments if entry.gate),
            embedder.fingerprint if embedder else None,
            present.dimension,
        )


def _size(folder: Path) -> int:
    """The bytes of all files; files removed meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
