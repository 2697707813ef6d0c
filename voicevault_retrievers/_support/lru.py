"""A small memory of what was computed last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

from voicevault_retrievers._support.mutex import Mutex

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_now: ContextVar[object] = ContextVar("_now", default=None)


class LRUCache(Generic[K, V]):
    """The `size` values used last, by key. Safe to share between threads.

    What is kept `for_queries` is not seen by those who measure `afresh`.
    """

    def __init__(self, size: int, *, for_queries: bool = False) -> None:
        self.size = size
        self.for_queries = for_queries
        self._kept: OrderedDict[K, tuple[object, V]] = OrderedDict()
        self._lock = Mutex()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value of a key, which is now the one used last; None where it is not kept."""
        with self._lock:
            since, value = self._kept.get(key, (None, None))
            if value is None or (self.for_queries and since is not _now.get()):
                return None
            self._kept.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, and drop the one unused for longest where there are too many."""
        with self._lock:
            self._kept[key] = _now.get(), value
            self._kept.move_to_end(key)
            if len(self._kept) > self.size:
                self._kept.popitem(last=False)


@contextmanager
def afresh() -> Iterator[None]:
    """Searches in here do not see what was kept for queries before, and theirs is not seen after."""
    before = _now.set(object())
    try:
        yield
    finally:
        _now.reset(before)
