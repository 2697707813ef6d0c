"""A lock that can be copied and pickled with the object that holds it; a copy has a lock of its own."""

from __future__ import annotations

from threading import RLock
from types import TracebackType


class Mutex:
    """A reentrant lock, used in a `with` block."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Mutex], tuple[()]]:
        return (Mutex, ())
