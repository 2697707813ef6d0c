"""Who computes: searches begin one after the other, first come, first served.

Threads that run Python at the same time only pass the interpreter's lock back and forth: whoever gives it up for one
product waits for up to 5 ms to have it back. A search that reads many rows without that lock steps `aside` for so
long: another one begins meanwhile. Nothing but speed depends on it: who has waited `PATIENCE` goes on without.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0
"""Seconds."""
LONG = 10_000
"""Rows from which on a pass over all of them is long."""


class Baton:
    """Is passed to the thread that has waited longest; the thread that holds it may take it again.

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
        """Wait for it, and hold it meanwhile."""
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

    @contextmanager
    def aside(self, rows: int = LONG) -> Iterator[None]:
        """Let another thread hold it meanwhile, where this one does, unless too few `rows` are read for that.

        This one goes on afterwards without waiting.
        """
        if rows < LONG or not getattr(self._own, "holds", False):
            yield
            return
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
            self._computing = 1  # whoever has it for so long is not counted on any more: it may be lost

    def _left(self, mine: threading.Lock) -> bool:
        """Wait no more; false where it has come meanwhile."""
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
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BATON._reset)
