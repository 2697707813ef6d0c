"""Calls into runtimes of models, and the end of the process."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, current_thread, main_thread

from voicevault_retrievers.errors import RetrievalError

LONGEST_WAIT = 30.0
"""Seconds that the end of the process waits for calls that still run."""


class Calls:
    """Counts calls that run; once it is closed, it waits for them and lets no other thread begin one.

    A thread that outlived its deadline may still compute when the interpreter ends. Where a library in C++ or Rust
    returns to an interpreter that is gone, it aborts the whole process, whose work was done.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._running = 0
        self._closed = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """A call. Raises RetrievalError where the process is ending and this is not its main thread."""
        with self._changed:
            if self._closed and current_thread() is not main_thread():
                raise RetrievalError("the process is ending: no model is run any more")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for the calls that run, 30 seconds at the most."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running, LONGEST_WAIT)


NATIVE = Calls()
atexit.register(NATIVE.close)
