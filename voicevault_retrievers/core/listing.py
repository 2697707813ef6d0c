"""Search results as columns of ids and scores; an item is made when it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Listing(Sequence[T]):
    """A sequence whose items are made one by one when they are read, and then kept.

    `ids` and `scores` (float64, None where no item has a score) are those of the items, in order. A slice shares its
    items with the sliced listing. A listing equals any sequence of equal items.
    """

    __slots__ = ("_made", "_make", "ids", "scores")

    def __init__(self, ids: Sequence[str], scores: NDArray[np.float64] | None, make: Callable[[int], T]) -> None:
        self.ids = ids
        self.scores = scores
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Listing[T]: ...
    def __getitem__(self, at: int | slice) -> T | Listing[T]:
        if isinstance(at, slice):
            places = range(len(self))[at]
            if len(places) == len(self) and places.step == 1:
                return self
            scores = None if self.scores is None else self.scores[at]
            return Listing(self.ids[at], scores, lambda place: self[places[place]])
        place = at if 0 <= at < len(self.ids) else range(len(self.ids))[at]
        if place in self._made:
            return self._made[place]
        made = self._made[place] = self._make(place)
        return made

    def at(self, places: Sequence[int]) -> Listing[T]:
        """The items at some places, in the order of the places."""
        scores = None if self.scores is None else self.scores[list(places)]
        return Listing([self.ids[place] for place in places], scores, lambda at: self[places[at]])

    def above_zero(self) -> Listing[T]:
        """The leading items whose score is above 0; the scores must fall."""
        return self if self.scores is None else self[: int((self.scores > 0).sum())]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


def merged(parts: Sequence[Listing[T]], k: int) -> Listing[T]:
    """The k best items of several scored listings: score falling, then id rising. No two listings share an id."""
    if len(parts) == 1:
        return parts[0] if len(parts[0]) <= k else parts[0][:k]
    least = kth_highest([part.scores for part in parts if part.scores is not None], k)
    found = [
        (-score, chunk_id, number, at)
        for number, part in enumerate(parts)
        if part.scores is not None
        for at, (chunk_id, score) in enumerate(zip(part.ids, part.scores.tolist(), strict=True))
        if score >= least
    ]
    best = sorted(found)[:k]
    scores = -np.array([one[0] for one in best], dtype=np.float64)
    return Listing([one[1] for one in best], scores, lambda at: parts[best[at][2]][best[at][3]])


def kth_highest(columns: Sequence[NDArray[np.floating]], k: int) -> float:
    """The k-th highest score of several columns together; -inf where they have fewer than k, inf where k is 0."""
    if k <= 0:
        return math.inf
    count = sum(map(len, columns))
    if count < k:
        return -math.inf
    scores = np.concatenate(columns)
    scores.partition(count - k)
    return float(scores[count - k])
