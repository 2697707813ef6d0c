"""Lets one thread compute at a time: searches take turns in the order of their arrival.

Threads that run Python at the same time contend for the interpreter lock: a thread that releases the lock for one
matrix product waits for up to 5 ms to get it back. A search that reads many rows without the lock steps `aside`, so
that another search can begin. Only speed depends on the baton: a thread that has waited `PATIENCE` goes on without.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from voicevault_retrievers._support.forks import reset_in_child

PATIENCE = 1.0
"""The longest wait for the baton, in seconds."""
LONG = 10_000
"""The number of rows from which a pass over all rows counts as long."""

_NOTHING = nullcontext()


class Baton:
    """Is passed to the thread that has waited longest. The holder may take it again.

    Andrews (1991), "Concurrent Programming", on passing the baton.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._computing = 0
        self._waiting: deque[threading.Lock] = deque()
        self._own = threading.local()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the baton, and hold it within the block."""
        if getattr(self._own, "holds", False):
            yield
            return
        self._wait()
        self._own.holds = True
        try:
            yield
        finally:
            self._own.holds = False
            self._pass()

    def aside(self, rows: int = LONG) -> AbstractContextManager[None]:
        """Pass the baton on within the block, if this thread holds it and at least LONG `rows` are read.

        Afterwards this thread holds the baton again without waiting.
        """
        return self._aside() if rows >= LONG and getattr(self._own, "holds", False) else _NOTHING

    @contextmanager
    def _aside(self) -> Iterator[None]:
        self._own.holds = False
        self._pass()
        try:
            yield
        finally:
            with self._lock:
                self._computing += 1
            self._own.holds = True

    def _wait(self) -> None:
        with self._lock:
            if not self._computing:
                self._computing = 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            came = mine.acquire(timeout=PATIENCE)
        except BaseException:
            if not self._left(mine):
                self._pass()
            raise
        if not came and self._left(mine):
            self._computing = 1  # the holder may be lost, so the count starts anew

    def _left(self, mine: threading.Lock) -> bool:
        """Leave the queue. False where the baton has arrived meanwhile."""
        with self._lock:
            waits = mine in self._waiting
            if waits:
                self._waiting.remove(mine)
            return waits

    def _pass(self) -> None:
        with self._lock:
            self._computing = max(0, self._computing - 1)
            if not self._computing and self._waiting:
                self._computing = 1
                self._waiting.popleft().release()


BATON = Baton()
reset_in_child(BATON, Baton._reset)
