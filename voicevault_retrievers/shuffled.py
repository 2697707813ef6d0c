"""Samples of chunks: those whose ids have the smallest hashes.

Which they are depends on nothing but the live chunks' ids: what was added and deleted meanwhile leaves no trace. They
are the k minimum values of Beyer et al. (2007), SIGMOD, "On synopses for distinct-value estimation under multiset
operations": a uniform sample, and that of a union is the best of its parts'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.selection import Ordinals, Selection

_AT_ONCE = 1 << 14
_FACTOR = 0x9E3779B97F4A7C15
Hashes = NDArray[np.uint64]


class Drawn(NamedTuple):
    """Some rows and the hashes of their ids, which ascend."""

    hashes: Hashes
    ordinals: Ordinals


class Shuffled:
    """Rows in the order of their ids' hashes, deleted ones too; made when it is first asked for."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    def first(self, size: int, chosen: Selection | None) -> Drawn:
        """The first of some rows (None for all)."""
        hashes, ordinals = self._order
        if chosen is None:
            return Drawn(hashes[:size], ordinals[:size])
        look = size
        while True:  # where most rows are chosen, few are looked at
            places = np.flatnonzero(chosen.has(ordinals[:look]))[:size]
            if len(places) == size or look >= len(ordinals):
                return Drawn(hashes[places], ordinals[places])
            look *= 4

    @cached_property
    def _order(self) -> Drawn:
        ids = self._ids
        blocks = (_hashes(ids[at : at + _AT_ONCE]) for at in range(0, len(ids), _AT_ONCE))
        hashes = np.concatenate([np.empty(0, np.uint64), *blocks])
        order = np.argsort(hashes, kind="stable")
        return Drawn(hashes[order], order.astype(np.uint32))


def smallest(drawn: Sequence[Hashes], size: int) -> NDArray[np.intp]:
    """Where the smallest hashes stand in all of some samples, one after the other."""
    return np.argsort(np.concatenate([np.empty(0, np.uint64), *drawn]), kind="stable")[:size]


def _hashes(ids: Sequence[str]) -> Hashes:
    """A polynomial in the bytes of each id, mixed as splitmix64 does (Steele, Lea, Flood, 2014)."""
    encoded = [chunk_id.encode("utf-8", "surrogatepass") for chunk_id in ids]
    lengths = np.array([len(one) for one in encoded])
    starts = np.cumsum(lengths) - lengths
    letters = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    powers = np.multiply.accumulate(np.full(int(lengths.max(initial=1)), _FACTOR, dtype=np.uint64))
    places = np.arange(len(letters)) - np.repeat(starts, lengths)
    mixed = np.add.reduceat(letters * powers[places], starts)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed
