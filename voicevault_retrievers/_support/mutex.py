"""A lock that can be copied and pickled with the object that holds it; a copy has a lock of its own."""

from __future__ import annotations

from threading import RLock
from types import TracebackType

from voicevault_retrievers._support.forks import reset_in_child


class Mutex:
    """A reentrant lock, used in a `with` block. In a forked child no thread of the parent holds it."""

    def __init__(self) -> None:
        self._lock = RLock()
        reset_in_child(self, Mutex._freed)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def _freed(self) -> None:
        if self._lock.acquire(blocking=False):  # it is free, or the thread that forked holds it
            self._lock.release()
        else:
            self._lock = RLock()

    def __reduce__(self) -> tuple[type[Mutex], tuple[()]]:
        return (Mutex, ())
