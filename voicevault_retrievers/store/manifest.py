"""The manifest: the present content of a knowledge base. Replacing it commits a segment."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from voicevault_retrievers.core.types import INDEXED_TEXT
from voicevault_retrievers.dense.int8 import Gate
from voicevault_retrievers.errors import IncompatibleIndexError
from voicevault_retrievers.store import files
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.files import FileEntry

VectorSearch: TypeAlias = Literal["exact", "int8", "chroma"]
"""How vectors are searched: all exactly; all by their int8 codes first; by a Chroma index."""

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class EmbedderEntry:
    """The embedder that made the vectors; `model` and `backend` where `load_embedder` can load it.

    `probe` is the embedder's output for fixed texts, where its name does not identify the model (see `dense.probes`).
    """

    fingerprint: str
    dimension: int
    model: str | None = None
    backend: str | None = None
    probe: str | None = None


@dataclass(frozen=True)
class TombstoneEntry:
    """A segment's deleted chunks, one bit per ordinal: their file, their count and their terms.

    `length` is the number of their terms, repeats included. `terms` is a second file: for each term, how many of the
    deleted chunks have it (see `StoredSegment.bury`).
    """

    name: str
    file: FileEntry
    count: int
    length: int
    terms: FileEntry

    @property
    def terms_name(self) -> str:
        return f"{self.name}.terms"


@dataclass(frozen=True)
class NamedFile:
    """A file beside the segments."""

    name: str
    file: FileEntry


@dataclass(frozen=True)
class SegmentEntry:
    """An immutable folder of `count` chunks and `parents` parents, with its files and tombstones.

    `parent_tombstones` is a file as `TombstoneEntry.file`, with `deleted_parents` bits set. `gate` measures what the
    int8 codes of its vectors save; None where it has no codes.
    """

    name: str
    count: int
    files: Mapping[str, FileEntry]
    tombstones: TombstoneEntry | None = None
    parents: int = 0
    parent_tombstones: NamedFile | None = None
    deleted_parents: int = 0
    gate: Gate | None = None

    @property
    def deleted(self) -> int:
        return self.tombstones.count if self.tombstones else 0

    @property
    def names(self) -> Iterator[str]:
        """Its folder, and its files beside the folder."""
        yield self.name
        if self.tombstones:
            yield from (self.tombstones.name, self.tombstones.terms_name)
        if self.parent_tombstones:
            yield self.parent_tombstones.name


@dataclass(frozen=True)
class Manifest:
    """The present content of a knowledge base.

    `id` distinguishes the base from another that replaced it; `generation` numbers what is written. `vectors` says how
    vectors are searched. `sources` names the file of the sources as of the start of the log. `indexed_text` says what
    of a chunk is indexed.
    """

    id: str
    analyzer: Mapping[str, Any]
    analyzer_fingerprint: str
    embedder: EmbedderEntry | None = None
    generation: int = 0
    log: str = "log-000000"
    segments: tuple[SegmentEntry, ...] = ()
    vectors: VectorSearch = "exact"
    sources: NamedFile | None = None
    indexed_text: str = INDEXED_TEXT

    @classmethod
    def first(cls, analyzer: SavedAnalyzer, embedder: EmbedderEntry | None, vectors: VectorSearch) -> Manifest:
        """The manifest of a new, empty knowledge base."""
        return cls(uuid.uuid4().hex, analyzer.recipe(), analyzer.fingerprint, embedder, vectors=vectors)

    @property
    def dimension(self) -> int | None:
        """The length of the vectors; None where there are none."""
        return self.embedder.dimension if self.embedder else None

    @property
    def names(self) -> set[str]:
        """The files and folders that the manifest refers to."""
        sources = [self.sources.name] if self.sources else []
        return {self.log, *sources, *(name for entry in self.segments for name in entry.names)}


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: the commit."""
    files.write_json(folder / NAME, {"format": FORMAT, **asdict(manifest)})


def read(folder: Path) -> Manifest:
    """The present manifest.

    Raises IndexDamagedError when it is missing or changed, IncompatibleIndexError when its format is newer, or the
    index is of another text of the chunks.
    """
    path = folder / NAME
    body = files.read_json(path)
    if body.pop("format") != FORMAT:
        raise IncompatibleIndexError(
            f"{path} is of a format newer than {FORMAT}, the newest known here: update voicevault-retrievers, or index "
            "the documents again with this version"
        )
    if (indexed := body.get("indexed_text", "text alone")) != INDEXED_TEXT:
        raise IncompatibleIndexError(
            f"{path} is of an index of {indexed!r}, not of {INDEXED_TEXT!r}: delete this knowledge base, and index the "
            "documents again with this version"
        )
    return _manifest(body)


def _manifest(body: dict[str, Any]) -> Manifest:
    embedder = body.pop("embedder")
    segments = tuple(_segment(entry) for entry in body.pop("segments"))
    sources = _named(body.pop("sources", None))
    return Manifest(
        **body, embedder=EmbedderEntry(**embedder) if embedder else None, segments=segments, sources=sources
    )


def _segment(entry: dict[str, Any]) -> SegmentEntry:
    dead = entry["tombstones"]
    return SegmentEntry(
        entry["name"],
        entry["count"],
        {name: FileEntry(**file) for name, file in entry["files"].items()},
        TombstoneEntry(**{**dead, **{key: FileEntry(**dead[key]) for key in ("file", "terms")}}) if dead else None,
        entry.get("parents", 0),
        _named(entry.get("parent_tombstones")),
        entry.get("deleted_parents", 0),
        Gate(**entry["gate"]) if entry.get("gate") else None,
    )


def _named(entry: dict[str, Any] | None) -> NamedFile | None:
    return NamedFile(entry["name"], FileEntry(**entry["file"])) if entry else None
