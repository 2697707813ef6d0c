"""Sequences whose items are made when they are asked for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Generic, TypeVar, overload

T = TypeVar("T")

_STEP = 16


class Lazy(Sequence[T], Generic[T]):
    """A sequence whose items are made when they are asked for."""

    def __init__(self, length: int, get: Callable[[int], T]) -> None:
        self._length = length
        self._get = get

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        places = range(self._length)[at]
        return self._get(places) if isinstance(places, int) else [self._get(place) for place in places]


class Ascending(Lazy[str]):
    """Strings that ascend; one is found by making few of them, for every `_STEP`-th is kept."""

    def place(self, wanted: str) -> int:
        """As `bisect_left`: where it stands, or would stand."""
        first = max(0, bisect_right(self._kept, wanted) - 1) * _STEP
        return bisect_left(self, wanted, first, min(first + _STEP, len(self)))

    @cached_property
    def _kept(self) -> list[str]:
        return [self[at] for at in range(0, len(self), _STEP)]
