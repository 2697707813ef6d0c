"""The chunks of an index by ordinal, in ascending order of id."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers.core.columns import Columns
from voicevault_retrievers.core.filters import Filter, canonical, parse
from voicevault_retrievers.core.listing import kth_highest
from voicevault_retrievers.core.selection import Mask, Selection
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError

KEPT = 32
"""How many filters' selections a `Rows` caches: the most recently used."""

KEPT_BYTES = 64 * 1024 * 1024
"""The most bytes that the cached selections of one segment may take, in the worst case that every row passes."""


class SearchableIds(Sequence[str]):
    """Ids in ascending order that are not kept as strings; `find` searches them without making many strings."""

    @abstractmethod
    def find(self, chunk_id: str) -> int | None:
        """The position of an id; None where it is absent."""

    @abstractmethod
    def at(self, places: Sequence[int]) -> list[str]:
        """The ids at some places, each at least 0; in less time than one by one."""


class Rows:
    """The chunks of one segment in one snapshot.

    `live` is false where a chunk has been deleted since; None when none has. Ordinals follow ascending ids, so ties in
    ordinal order are in id order. `columns` cover all chunks, deleted ones included, so that snapshots can share them.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        ids: Sequence[str] | None = None,
        live: Mask | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.chunks = chunks
        self.ids: Sequence[str] = [chunk.id for chunk in chunks] if ids is None else ids
        self.live = None if live is None or live.all() else live
        self.columns = Columns(chunks) if columns is None else columns
        self._living = None if self.live is None else Selection(len(self), self.live)
        largest = len(self) * (np.bool_().nbytes + np.uint32().nbytes)
        self._selections: LRUCache[str, Selection] = LRUCache(min(KEPT, 1 + KEPT_BYTES // max(largest, 1)))

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> Rows:
        """The rows of chunks given in any order; ConfigError when two have one id, and for what is no Chunk."""
        ordered = sorted(_checked(chunks), key=lambda chunk: chunk.id)
        for before, after in pairwise(ordered):
            if before.id == after.id:
                raise ConfigError(f"two chunks have the id {after.id!r}; ids are unique")
        return cls(ordered)

    @classmethod
    def searched(cls, chunks: Iterable[Chunk]) -> Rows:
        """`of` those that are no parents."""
        return cls.of(chunk for chunk in _checked(chunks) if not chunk.is_parent)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def count(self) -> int:
        """How many chunks are live."""
        return len(self) if self.live is None else int(self.live.sum())

    @property
    def living(self) -> list[int]:
        """The ordinals of the live chunks, ascending."""
        return list(range(len(self))) if self.live is None else np.flatnonzero(self.live).tolist()

    def ids_at(self, ordinals: Sequence[int]) -> list[str]:
        """The ids of some chunks, in the order of the ordinals."""
        ids = self.ids
        return ids.at(ordinals) if isinstance(ids, SearchableIds) else [ids[at] for at in ordinals]

    def without(self, ordinals: Sequence[int]) -> Rows:
        """The rows with some ordinals marked as deleted."""
        live = np.ones(len(self), dtype=np.bool_) if self.live is None else self.live.copy()
        live[list(ordinals)] = False
        return Rows(self.chunks, self.ids, live, self.columns)

    def ordinal(self, chunk_id: str) -> int | None:
        """The ordinal of a live chunk; None when no live chunk has this id."""
        ids = self.ids
        at: int | None
        if isinstance(ids, SearchableIds):
            at = ids.find(chunk_id)
        else:
            at = bisect_left(ids, chunk_id)
            at = at if at < len(ids) and ids[at] == chunk_id else None
        return at if at is None or self.live is None or self.live[at] else None

    def _here(self, ids: Iterable[str]) -> dict[str, int]:
        """The ordinals of those given chunks that are live."""
        own, live = self.ids, self.live
        if isinstance(own, SearchableIds):
            find = own.find
            found = {chunk_id: at for chunk_id in ids if (at := find(chunk_id)) is not None}
            return found if live is None else {chunk_id: at for chunk_id, at in found.items() if live[at]}
        if live is not None or not isinstance(own, list):
            return {chunk_id: at for chunk_id in ids if (at := self.ordinal(chunk_id)) is not None}
        count = len(own)
        return {one: at for one in ids if (at := bisect_left(own, one)) < count and own[at] == one}

    def places(self, ids: Iterable[str], where: Filter | None = None) -> dict[str, int]:
        """The ordinals of those given chunks that are live and pass a filter."""
        passing = self.selection(where)
        found = self._here(ids)
        if passing is None or not found:
            return found
        has = passing.has(np.fromiter(found.values(), np.uint32, len(found))).tolist()
        return {chunk_id: at for (chunk_id, at), passes in zip(found.items(), has, strict=True) if passes}

    def selection(self, where: Filter | None) -> Selection | None:
        """The live rows that pass a filter; None when every row does. ConfigError for a malformed filter."""
        if not where:
            return self._living
        key = canonical(where)
        passing = self._selections.get(key)
        if passing is None:
            passing = self.columns.select(parse(where))
            if self._living is not None:
                passing &= self._living
            self._selections.put(key, passing)
        return passing if passing.count < len(self) else None


def located(tables: Sequence[Rows], ids: Iterable[str], where: Filter | None = None) -> Iterator[dict[str, int]]:
    """`Rows.places` for each table. A chunk is in at most one table, so ids that were found are not looked up again."""
    wanted, others = list(ids), len(tables)
    for rows in tables:
        places = rows.places(wanted, where) if wanted else {}
        yield places
        others -= 1
        if places and others:
            wanted = [chunk_id for chunk_id in wanted if chunk_id not in places]


def spaced(tables: Sequence[Rows], size: int) -> list[list[int]]:
    """For each table the ordinals of a sample: at most `size` live rows in all, evenly spaced."""
    step = max(1, -(-sum(rows.count for rows in tables) // max(1, size)))
    passed, sample = 0, list[list[int]]()
    for rows in tables:
        sample.append(rows.living[-passed % step :: step])
        passed += rows.count
    return sample


def best_by_id(ids: Sequence[str], scores: NDArray[np.float64], k: int, *, positive: bool = False) -> list[int]:
    """The positions of the k highest scores, best first, ties by ascending id; `positive` drops scores of 0 or less."""
    wanted = scores >= kth_highest([scores], k)
    near = np.flatnonzero(wanted & (scores > 0) if positive else wanted).tolist()
    return [at for _, _, at in sorted(zip((-scores[near]).tolist(), [ids[at] for at in near], near, strict=True))[:k]]


def best(scores: NDArray[np.float64], candidates: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """The k candidates with the highest scores, best first, ties by ascending ordinal."""
    if k <= 0:
        return candidates[:0]
    chosen = scores[candidates]
    if len(candidates) > k:
        candidates = candidates[chosen >= kth_highest([chosen], k)]
        chosen = scores[candidates]
    return candidates[np.lexsort((candidates, -chosen))[:k]]


def _checked(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if not isinstance(chunk, Chunk):
            raise ConfigError(f"expected a Chunk, not a {type(chunk).__name__}: Chunk(id, text)")
        yield chunk
