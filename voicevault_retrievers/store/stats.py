"""A knowledge base in numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.snapshot import Snapshot


@dataclass(frozen=True)
class Stats:
    """`deleted` chunks still take room in segments; `logged` ones are in the log alone; `size` is in bytes, on disk.

    `vectors` says how they are searched, `embedder` what made them; None where there are none. `int8` says of the
    segments whose codes passed the gate what they are worth; the others are searched in float32.
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
        """Those of a snapshot; `size` is of the folder as it is now."""
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
    """The bytes of all files; what is removed meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
