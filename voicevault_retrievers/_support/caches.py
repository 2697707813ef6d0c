"""Caches: the most recently used values, and objects built from options."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar

from voicevault_retrievers._support.mutex import Mutex

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_now: ContextVar[object] = ContextVar("_now", default=None)


class LRUCache(Generic[K, V]):
    """A cache of the `size` most recently used values, by key. Safe to share between threads.

    Within `afresh`, a cache `for_queries` ignores the values from outside.
    """

    def __init__(self, size: int, *, for_queries: bool = False) -> None:
        self.size = size
        self.for_queries = for_queries
        self._kept: OrderedDict[K, tuple[object, V]] = OrderedDict()
        self._lock = Mutex()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value of a key, marked as most recently used; None where it is not cached."""
        with self._lock:
            since, value = self._kept.get(key, (None, None))
            if value is None or (self.for_queries and since is not _now.get()):
                return None
            self._kept.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Cache a value, and drop the least recently used value where there are too many."""
        with self._lock:
            self._kept[key] = _now.get(), value
            self._kept.move_to_end(key)
            if len(self._kept) > self.size:
                self._kept.popitem(last=False)


@contextmanager
def afresh() -> Iterator[None]:
    """A context in which searches ignore earlier query caches, and leave nothing in them for later searches."""
    before = _now.set(object())
    try:
        yield
    finally:
        _now.reset(before)


T = TypeVar("T")
KEPT = 8


class Parts:
    """A cache of objects built from options, by name, the `KEPT` latest of each. A pickled copy is empty."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[list[Any], Any]]] = {}
        self._mutex = Mutex()

    def get(self, name: str, options: list[Any], make: Callable[[], T], *, keep: int = KEPT) -> T:
        """The object of this name built from these options; built now where there is none.

        Existing objects are returned without waiting for one that is being built.
        """
        found = self._find(name, options)
        if found is None:
            with self._mutex:
                found = self._find(name, options)
                if found is None:
                    found = _snapshot(options), make()
                    self._parts[name] = [found, *self._parts.get(name, [])][:keep]
        made: T = found[1]
        return made

    def all(self, name: str) -> list[Any]:
        """The cached objects of this name."""
        return [part for _, part in self._parts.get(name, [])]

    def has(self, name: str, options: list[Any]) -> bool:
        """Whether an object for these options is cached."""
        return self._find(name, options) is not None

    def forget(self, name: str, stale: Callable[[list[Any]], bool] = lambda options: True) -> None:
        """Drop the objects of this name, or those with stale options; they are rebuilt on the next request."""
        with self._mutex:
            self._parts[name] = [entry for entry in self._parts.get(name, []) if not stale(entry[0])]

    def _find(self, name: str, options: list[Any]) -> tuple[list[Any], Any] | None:
        def fits(entry: tuple[list[Any], Any]) -> bool:
            return len(entry[0]) == len(options) and all(map(same, entry[0], options))

        return next(filter(fits, self._parts.get(name, [])), None)

    def __reduce__(self) -> tuple[type[Parts], tuple[()]]:
        return (type(self), ())


def _snapshot(option: Any) -> Any:
    """A snapshot of an option: lists and mappings are copied deeply, the objects in them are not."""
    if isinstance(option, dict):
        return {key: _snapshot(value) for key, value in option.items()}
    return [_snapshot(value) for value in option] if isinstance(option, list) else option


def same(one: Any, other: Any) -> bool:
    """Whether two options are the same: plain data by value, anything else by identity."""
    plain = isinstance(one, str | int | float | list | tuple | dict) or (is_dataclass(one) and type(one) is type(other))
    return one is other or (plain and bool(one == other))
