"""Sequences whose items are made on access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T], Generic[T]):
    """A sequence whose items are made on every access."""

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
