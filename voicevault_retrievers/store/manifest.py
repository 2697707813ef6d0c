"""The manifest: what a knowledge base consists of now. Replacing it is what commits a segment."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voicevault_retrievers.errors import IncompatibleIndexError
from voicevault_retrievers.store import files
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.files import FileEntry

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class EmbedderEntry:
    """Which embedder made the vectors; `model` and `backend` where `load_embedder` can make it again."""

    fingerprint: str
    dimension: int
    model: str | None = None
    backend: str | None = None


@dataclass(frozen=True)
class TombstoneEntry:
    """A segment's deleted chunks, a bit for each ordinal: their file, how many they are, what they take with them.

    That is the number of terms that they have, repeats included, and `terms`, a second file, in how many of them each
    term is (see `segment.write_tombstones`).
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
class SegmentEntry:
    """An immutable folder of `count` chunks, its files, and which of its chunks are no more."""

    name: str
    count: int
    files: Mapping[str, FileEntry]
    tombstones: TombstoneEntry | None = None

    @property
    def deleted(self) -> int:
        return self.tombstones.count if self.tombstones else 0


@dataclass(frozen=True)
class Manifest:
    """`id` tells a knowledge base from another that took its place; `generation` numbers what is written."""

    id: str
    analyzer: Mapping[str, Any]
    analyzer_fingerprint: str
    embedder: EmbedderEntry | None = None
    generation: int = 0
    log: str = "log-000000"
    segments: tuple[SegmentEntry, ...] = ()

    @classmethod
    def first(cls, analyzer: SavedAnalyzer, embedder: EmbedderEntry | None) -> Manifest:
        """That of a new, empty knowledge base."""
        return cls(uuid.uuid4().hex, analyzer.recipe(), analyzer.fingerprint, embedder)

    @property
    def names(self) -> set[str]:
        """The files and folders that it refers to."""
        dead = [entry.tombstones for entry in self.segments if entry.tombstones]
        names = {name for entry in dead for name in (entry.name, entry.terms_name)}
        return {self.log, *names, *(entry.name for entry in self.segments)}


def write(folder: Path, manifest: Manifest) -> None:
    """Put the manifest in the place of the last one: the commit."""
    body = {"format": FORMAT, **asdict(manifest)}
    files.replace(folder / NAME, json.dumps({"checksum": _checksum(body), **body}, indent=1).encode())


def read(folder: Path) -> Manifest:
    """The present manifest.

    Raises IndexDamagedError when it is missing or changed, IncompatibleIndexError when its format is not known here.
    """
    path = folder / NAME
    try:
        body = json.loads(path.read_bytes())
        checksum = body.pop("checksum")
    except FileNotFoundError:
        raise files.damaged(path, "is missing") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise files.damaged(path, "is not a manifest") from None
    if checksum != _checksum(body):
        raise files.damaged(path, "has changed: its checksum is another")
    if body.pop("format") != FORMAT:
        raise IncompatibleIndexError(
            f"{path} is of a format newer than {FORMAT}, the newest known here: update voicevault-retrievers, or index "
            "the documents again with this version"
        )
    return _manifest(body)


def _manifest(body: dict[str, Any]) -> Manifest:
    embedder = body.pop("embedder")
    segments = tuple(_segment(entry) for entry in body.pop("segments"))
    return Manifest(**body, embedder=EmbedderEntry(**embedder) if embedder else None, segments=segments)


def _segment(entry: dict[str, Any]) -> SegmentEntry:
    dead = entry["tombstones"]
    return SegmentEntry(
        entry["name"],
        entry["count"],
        {name: FileEntry(**file) for name, file in entry["files"].items()},
        TombstoneEntry(**{**dead, **{key: FileEntry(**dead[key]) for key in ("file", "terms")}}) if dead else None,
    )


def _checksum(body: Mapping[str, Any]) -> str:
    """The same in every format, so that damage and a newer format are told apart."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
