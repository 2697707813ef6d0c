"""The rows that pass a filter, as ordinals or as a mask."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
Ordinals: TypeAlias = NDArray[np.uint32]

FEW = 64
"""A selection of less than one row in FEW is kept as ordinals: sorting them costs less than a mask of all rows."""


class Selection:
    """Some of `size` rows, from their ordinals (uint32, ascending) or a mask (bool, of shape (size,)).

    The other form is made on first access, and kept. Neither may be written to.
    """

    def __init__(self, size: int, held: NDArray[Any]) -> None:
        self.size = size
        if held.dtype == np.bool_:
            self.mask = held
        else:
            self.ordinals = held

    @classmethod
    def everything(cls, size: int) -> Selection:
        """All rows."""
        return cls(size, np.ones(size, dtype=np.bool_))

    @classmethod
    def union(cls, size: int, pieces: list[Ordinals]) -> Selection:
        """The rows in any of the pieces, which may have any order."""
        if sum(map(len, pieces)) * FEW < size:
            found = np.sort(np.concatenate([np.empty(0, dtype=np.uint32), *pieces]))
            first = np.ones(len(found), dtype=np.bool_)
            np.not_equal(found[1:], found[:-1], out=first[1:])
            return cls(size, found[first])
        mask = np.zeros(size, dtype=np.bool_)
        for piece in pieces:
            mask[piece] = True
        return cls(size, mask)

    @cached_property
    def mask(self) -> Mask:
        """True where a row is selected."""
        mask = np.zeros(self.size, dtype=np.bool_)
        mask[self.ordinals] = True
        return mask

    @cached_property
    def ordinals(self) -> Ordinals:
        """The ordinals of the selected rows, ascending."""
        return np.flatnonzero(self.mask).astype(np.uint32)

    @cached_property
    def count(self) -> int:
        """How many rows are selected."""
        return len(self.ordinals) if "ordinals" in vars(self) else int(np.count_nonzero(self.mask))

    def __len__(self) -> int:
        return self.count

    def __contains__(self, ordinal: int) -> bool:
        return bool(self.has(np.array([ordinal], dtype=np.uint32))[0])

    def __and__(self, other: Selection) -> Selection:
        small, large = sorted((self, other), key=len)
        if "mask" in vars(small) and "mask" in vars(large):
            return Selection(self.size, small.mask & large.mask)
        return Selection(self.size, small.ordinals[large.has(small.ordinals)])

    def __or__(self, other: Selection) -> Selection:
        if (self.count + other.count) * FEW < self.size:
            return Selection.union(self.size, [self.ordinals, other.ordinals])
        return Selection(self.size, self.mask | other.mask)

    def __invert__(self) -> Selection:
        return Selection(self.size, ~self.mask)

    def has(self, ordinals: Ordinals) -> Mask:
        """A mask over the given rows: which of them are selected."""
        if "mask" in vars(self) or not self.count:
            return self.mask[ordinals]
        places = np.searchsorted(self.ordinals, ordinals)
        has: Mask = self.ordinals[np.minimum(places, self.count - 1)] == ordinals
        return has
