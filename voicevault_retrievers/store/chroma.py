"""Chroma as the vector index of a knowledge base: a copy of the committed segments, rebuilt from them when needed.

The collection in the folder `chroma` has a row for each chunk of the segments: its id, its vector, and a checksum of
the vector. Chroma never stores a text. Its candidates are looked up in the segments, which apply filters and tombstones
and compute exact cosines; the log is searched outside Chroma. So a Chroma that is behind, damaged or gone slows a
search but does not change its result.

`chroma.json` says which commit Chroma has reached. An embedded Chroma does not see what other processes write to its
folder, so it is opened again where that file has changed.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require as installed
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.listing import Listing, merged
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense.exact import ExactVectors
from voicevault_retrievers.errors import MissingExtraError, StorageError, told
from voicevault_retrievers.store import disk, files
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.part import SearchedPart
from voicevault_retrievers.store.segment import StoredSegment
from voicevault_retrievers.store.snapshot import Snapshot

FOLDER = "chroma"
MARKER = "chroma.json"

EXACT_UP_TO = 16 * 1024
"""Up to this many chunks, all vectors are compared exactly, which takes a few milliseconds."""

LEAST = 100
"""The fewest rows that Chroma is asked for: its search is approximate, and its rows are scored again."""

BATCH = 1000

_SETTINGS: Mapping[str, Any] = {"configuration": {"hnsw": {"space": "cosine"}}, "embedding_function": None}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CopyProgress:
    """Which commit the Chroma copy has reached.

    It holds the chunks of the segments of knowledge base `base` numbered up to `holds` that are live at generation
    `changed`, in at least `rows` rows. For snapshots older than `changed` it may hold other vectors.
    """

    base: str
    holds: int
    changed: int
    rows: int = 0

    def at(self, snapshot: Snapshot) -> bool:
        """Whether the copy holds all segments of a snapshot."""
        present = snapshot.manifest
        return (self.base, self.holds, self.changed) == (present.id, present.generation, present.generation)


class ChromaCopy:
    """The Chroma collection in the folder of a knowledge base, shared by the threads of a process (`at`).

    A process that was forked while the collection was open cannot use it (`usable`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = Mutex()
        self.usable = True
        self._close: finalize[..., ChromaCopy] | None = None
        self._collection: Any = None
        self._seen: CopyProgress | None = None
        reset_in_child(self, ChromaCopy._forked)

    @classmethod
    def at(cls, folder: Path) -> ChromaCopy:
        """The copy in a folder, one object per folder and process."""
        with _mutex:
            return _known.get(folder.absolute()) or _known.setdefault(folder.absolute(), cls(folder))

    @property
    def marker(self) -> CopyProgress | None:
        """The progress of the copy; None where it is unknown."""
        try:
            return CopyProgress(**json.loads((self._folder / MARKER).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def nearest(self, vector: Vector, count: int, marker: CopyProgress) -> list[str]:
        """The ids of approximately the nearest `count` rows, unordered; fewer where there are fewer rows."""
        with self._mutex:
            found = self._whole(marker).query(query_embeddings=[vector.tolist()], n_results=count, include=[])
        return [_id(key) for key in found["ids"][0]]

    def in_step(self, snapshot: Snapshot) -> bool:
        """Whether the copy holds the segments of a snapshot, or this process cannot update it."""
        marker = self.marker
        return not self.usable or (marker is not None and marker.at(snapshot))

    def follow(self, snapshot: Snapshot, goes_on: Callable[[], bool]) -> None:
        """Add the rows that the copy lacks of a snapshot's segments; remove deleted rows where they are many.

        Stops where `goes_on` returns false; the next call resumes there. Where Chroma fails, the copy is rebuilt once
        from nothing; if that fails too, raises StorageError.
        """
        tables = list(snapshot.committed())
        try:
            return self._follow(snapshot.manifest, tables, self.marker, goes_on)
        except MissingExtraError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a damaged Chroma raises: all of it is derived
            _logger.warning("Chroma in %s fails (%s) and is made again", self._folder, told(error))
        try:
            self.remove()
            self._follow(snapshot.manifest, tables, None, goes_on)
        except Exception as error:
            raise StorageError(
                f"Chroma in {self._folder} cannot be made ({error!r}): until it can, all vectors are compared"
            ) from error

    def remove(self) -> None:
        """Remove the copy; searches go on without it."""
        with self._mutex:
            self._shut()
            for path in (self._folder / MARKER, self._folder / FOLDER):
                if path.exists():
                    disk.remove(path)

    def _follow(
        self,
        present: Manifest,
        tables: Sequence[tuple[StoredSegment, Rows]],
        marker: CopyProgress | None,
        goes_on: Callable[[], bool],
    ) -> None:
        if marker is None or marker.base != present.id or max(marker.holds, marker.changed) > present.generation:
            self.remove()  # of another base, or of this one before it was put back from a copy
            marker = CopyProgress(present.id, -1, present.generation)
        held = marker.holds
        if held >= 0:
            with self._mutex:
                self._whole(marker)
        self._mark(replace(marker, rows=0, changed=present.generation))
        for segment, rows in tables:
            if segment.number > held and segment.vectors is not None:
                for some in _batches(rows.living):
                    if not goes_on():
                        return
                    self._put([rows.ids[at] for at in some], segment.vectors[some])
        left = self._purged([rows for _, rows in tables])
        self._mark(CopyProgress(present.id, present.generation, present.generation, left))

    def _put(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        with self._mutex:
            collection = self._open(self.marker)
            keys = [_key(chunk_id) for chunk_id in ids]
            sums = [zlib.crc32(row.tobytes()) for row in vectors]
            got = collection.get(ids=keys, include=["metadatas"])
            known = {key: found["v"] for key, found in zip(got["ids"], got["metadatas"], strict=True)}
            new = [at for at, key in enumerate(keys) if known.get(key) != sums[at]]
            if new:
                collection.upsert(
                    ids=[keys[at] for at in new],
                    embeddings=vectors[new],
                    metadatas=[{"v": sums[at]} for at in new],
                )

    def _purged(self, tables: Sequence[Rows]) -> int:
        """Delete the rows that no segment has, where they are more than a fifth; returns how many rows are left."""
        with self._mutex:
            collection = self._open(self.marker)
            if collection.count() <= 1.2 * sum(rows.count for rows in tables):
                return int(collection.count())
            live = {_key(rows.ids[at]) for rows in tables for at in rows.living}
            stale = [key for key in collection.get(include=[])["ids"] if key not in live]
            for start in range(0, len(stale), BATCH):
                collection.delete(ids=stale[start : start + BATCH])
            return int(collection.count())

    def _mark(self, marker: CopyProgress) -> None:
        with self._mutex:
            files.replace(self._folder / MARKER, json.dumps(asdict(marker)).encode())
            self._seen = marker

    def _whole(self, marker: CopyProgress) -> Any:
        """The collection; StorageError where rows are missing."""
        collection = self._open(marker)
        if (count := collection.count()) < marker.rows:
            raise StorageError(f"{self!r} has {count} rows left of {marker.rows}")
        return collection

    def _open(self, marker: CopyProgress | None) -> Any:
        """The collection as it is on disk now; created where the marker says that it holds nothing yet."""
        new = marker is not None and marker.holds < 0
        if self._close is None or self._seen != marker:
            self._shut()
            if not new and not (self._folder / FOLDER / "chroma.sqlite3").is_file():
                raise StorageError(f"{self!r} is gone")
            chromadb = installed("chromadb", extra="chroma")
            settings = chromadb.config.Settings(anonymized_telemetry=False)
            client = chromadb.PersistentClient(path=str(self._folder / FOLDER), settings=settings)
            self._close = finalize(self, client.close)  # Chroma gives all callers the one open client
            self._close.atexit = False
            get = client.get_or_create_collection if new else client.get_collection
            self._collection = get("vectors", **(_SETTINGS if new else {"embedding_function": None}))
            self._seen = marker
        return self._collection

    def _forked(self) -> None:
        if self._close is not None:
            leave_to_parent(self._close.detach())
            self.usable = False

    def _shut(self) -> None:
        if self._close is not None:
            self._close()
        self._close = self._collection = None

    def __repr__(self) -> str:
        return f"ChromaCopy({str(self._folder)!r})"


_known: WeakValueDictionary[Path, ChromaCopy] = WeakValueDictionary()
_mutex = Mutex()


class SnapshotVectors:
    """The vectors of a snapshot, searched through Chroma where the copy is up to date, and exactly where it is not.

    `prefix` precedes the ids of the parts; the ids in Chroma lack it.
    """

    local = True

    def __init__(
        self,
        parts: Sequence[SearchedPart],
        chroma: ChromaCopy,
        base: str,
        generation: int,
        dimension: int,
        prefix: str = "",
    ) -> None:
        self.dimension = dimension
        self._parts = parts
        self._chroma = chroma
        self._base = base
        self._generation = generation
        self._prefix = prefix

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Listing[Found]:
        """At most k chunks that pass the filters, by falling cosine, ties by ascending id."""
        passing = both(require, where)
        marker = self._chroma.marker
        held = [part for part in self._parts if self._in_chroma(part, marker)]
        if marker is None or sum(_chosen(part.rows, passing) for part in held) <= max(EXACT_UP_TO, k):
            return self._everything.nearest(vector, k, where=passing)
        try:
            near = self._near(held, vector, k, passing, marker)
        except Exception as error:  # noqa: BLE001 - whatever Chroma raises, the vectors are here
            _logger.warning("Chroma in %r fails (%s): all vectors are compared", self._chroma, told(error))
            near = None
        if near is None or self._chroma.marker != marker:
            return self._everything.nearest(vector, k, where=passing)
        rest = [part for part in self._parts if part not in held]
        return merged([*near, self._exact(rest).nearest(vector, k, where=passing)], k)

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> dict[str, float]:
        """The cosines, by id, of the given chunks that exist and pass the filters."""
        return self._everything.similarities(vector, ids, where=where, require=require)

    def vectors(self, ids: Iterable[str]) -> dict[str, Vector]:
        """As `ExactVectors.vectors`."""
        return self._everything.vectors(ids)

    @cached_property
    def _everything(self) -> ExactVectors:
        return self._exact(self._parts)

    def _in_chroma(self, part: SearchedPart, marker: CopyProgress | None) -> bool:
        if marker is None or marker.base != self._base or marker.changed > self._generation or not self._chroma.usable:
            return False
        return 0 <= part.number <= marker.holds

    def _near(
        self, held: Sequence[SearchedPart], vector: Vector, k: int, passing: Filter | None, marker: CopyProgress
    ) -> list[Listing[Found]] | None:
        """Chroma's best rows, asked for more until k pass the filter; None where too many rows are needed."""
        size = sum(len(part.rows) for part in held)
        ask = max(LEAST, 2 * k)
        while ask <= size // 4:
            ids = [self._prefix + chunk_id for chunk_id in self._chroma.nearest(vector, ask, marker)]
            places = [list(part.rows.places(ids, passing).values()) for part in held]
            if sum(map(len, places)) >= k:
                return list(_rescored(held, places, vector, k))
            ask *= 4
        return None

    def _exact(self, parts: Iterable[SearchedPart]) -> ExactVectors:
        return ExactVectors((part.dense for part in parts if part.dense is not None), self.dimension)

    def __repr__(self) -> str:
        return f"SnapshotVectors({self._chroma!r})"


def _rescored(
    parts: Sequence[SearchedPart], places: Sequence[Sequence[int]], vector: Vector, k: int
) -> Iterator[Listing[Found]]:
    for part, own in zip(parts, places, strict=True):
        if part.dense is not None and own:
            chosen = Selection(len(part.rows), np.array(sorted(own), dtype=np.uint32))
            yield from part.dense.nearest_each([vector], k, chosen)


def _chosen(rows: Rows, passing: Filter | None) -> int:
    """How many live rows pass."""
    found = rows.selection(passing)
    return len(rows) if found is None else found.count


def _batches(ordinals: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ordinals[start : start + BATCH] for start in range(0, len(ordinals), BATCH))


def _key(chunk_id: str) -> str:
    """A chunk id as Chroma accepts it: printable text."""
    plain = chunk_id.isprintable() and not chunk_id.startswith("hex:")
    return chunk_id if plain else "hex:" + chunk_id.encode("utf-8", "surrogatepass").hex()


def _id(key: str) -> str:
    return bytes.fromhex(key[4:]).decode("utf-8", "surrogatepass") if key.startswith("hex:") else key
