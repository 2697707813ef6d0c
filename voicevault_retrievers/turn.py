"""Whose turn it is to compute: searches begin one after the other, first come, first served.

Threads that run Python at the same time only pass the interpreter's lock to and fro: whoever gives it up for one
product waits for up to 5 ms to have it back. A search that reads many rows without that lock steps `aside` for so
long: another one begins meanwhile. Nothing but speed depends on a turn: who has waited `PATIENCE` goes on without.
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


class Turn:
    """A lock that goes to the thread that has waited longest, and may be taken again by the one that has it."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._computing = 0
        self._waiting: deque[threading.Lock] = deque()
        self._own = threading.local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for it, and have it meanwhile."""
        if getattr(self._own, "has", False):
            yield
            return
        self._wait()
        self._own.has = True
        try:
            yield
        finally:
            self._own.has = False
            self._give()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let another one have it meanwhile, where this thread has it. It goes on afterwards without waiting."""
        if not getattr(self._own, "has", False):
            yield
            return
        self._own.has = False
        self._give()
        try:
            yield
        finally:
            with self._lock:
                self._computing += 1
            self._own.has = True

    def _wait(self) -> None:
        with self._lock:
            if not self._computing:
                self._computing = 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        came = False
        try:
            came = mine.acquire(timeout=PATIENCE)
        finally:
            if not came:
                with self._lock:
                    if mine in self._waiting:
                        self._waiting.remove(mine)
                        self._computing += 1

    def _give(self) -> None:
        with self._lock:
            self._computing -= 1
            if not self._computing and self._waiting:
                self._computing = 1
                self._waiting.popleft().release()


TURN = Turn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TURN._reset)
