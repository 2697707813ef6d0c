"""Chunks as an index numbers them: by ordinal, in ascending order of id."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import Filter, canonical, compile_filter
from voicevault_retrievers.recent import Recent
from voicevault_retrievers.types import Chunk

Mask: TypeAlias = NDArray[np.bool_]
MASKS_KEPT = 32


class Rows:
    """The chunks of one segment as one snapshot sees them.

    `live` is false where a chunk has been deleted since; None when none has. Ordinals follow ascending id, so that
    equal scores in order of ordinal are in order of id.
    """

    def __init__(self, chunks: Sequence[Chunk], ids: Sequence[str] | None = None, live: Mask | None = None) -> None:
        self.chunks = chunks
        self.ids: Sequence[str] = [chunk.id for chunk in chunks] if ids is None else ids
        self.live = None if live is None or live.all() else live
        self._masks: Recent[str, Mask] = Recent(MASKS_KEPT)

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> Rows:
        """Rows of chunks in any order; ConfigError when two have one id."""
        ordered = sorted(chunks, key=lambda chunk: chunk.id)
        for before, after in pairwise(ordered):
            if before.id == after.id:
                raise ConfigError(f"two chunks have the id {after.id!r}; ids are unique")
        return cls(ordered)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def count(self) -> int:
        """How many are live."""
        return len(self) if self.live is None else int(self.live.sum())

    def ordinal(self, chunk_id: str) -> int | None:
        """Where a live chunk stands; None when there is none of this id."""
        at = bisect_left(self.ids, chunk_id)
        if at == len(self.ids) or self.ids[at] != chunk_id:
            return None
        return at if self.live is None or self.live[at] else None

    def places(self, ids: Iterable[str], where: Filter | None = None) -> dict[str, int]:
        """The ordinals of those of the given chunks that are live and pass a filter."""
        mask = self.mask(where)
        found = {chunk_id: at for chunk_id in ids if (at := self.ordinal(chunk_id)) is not None}
        return {chunk_id: at for chunk_id, at in found.items() if mask is None or mask[at]}

    def mask(self, where: Filter | None) -> Mask | None:
        """Which live chunks pass a filter; None when every row does."""
        if not where:
            return self.live
        key = canonical(where)
        kept = self._masks.get(key)
        if kept is not None:
            return kept
        passes = compile_filter(where)
        mask = np.fromiter((passes(chunk.metadata) for chunk in self.chunks), dtype=np.bool_, count=len(self))
        if self.live is not None:
            mask &= self.live
        self._masks.put(key, mask)
        return mask


def best(scores: NDArray[np.float64], candidates: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """The k candidates of the highest score, ties by ascending ordinal, best first."""
    if k <= 0:
        return candidates[:0]
    chosen = scores[candidates]
    if len(candidates) > k:
        border = np.partition(chosen, len(chosen) - k)[len(chosen) - k]
        candidates = candidates[chosen >= border]
        chosen = scores[candidates]
    return candidates[np.lexsort((candidates, -chosen))[:k]]
