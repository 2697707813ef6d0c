"""Optional compilation with numba: functions as machine code, without the interpreter lock.

Importing numba takes half a second, and compiling about twenty where the code is not cached on disk. No search waits
for that: numpy gives the same results until a background thread has compiled the code.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import reset_in_child
from voicevault_retrievers.errors import told

F = TypeVar("F", bound=Callable[..., object])

FEW, MANY = 3, 32
"""The number of searches with numpy before code is compiled, for a large index and for a small one."""

_LOG = logging.getLogger(__name__)
_HERE = threading.local()
"""Marks the background thread that compiles (attribute `beside`)."""


@cache
def installed() -> bool:
    """Whether numba (extra `fast`) is installed. Does not import it, which takes half a second."""
    return find_spec("numba") is not None


def compiled(function: F) -> F:
    """The function as machine code, compiled at its first call and cached on disk where possible."""
    numba = _numba()
    try:
        made: F = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no writable cache folder
        made = numba.njit(nogil=True)(function)
    return made


@cache
def _numba() -> Any:
    """Import numba, and stop it from changing global state of the process while other threads run.

    numba formats the text of errors, even unseen ones, with colorama, which replaces `sys.stdout` and `sys.stderr`;
    without it the text is the same. In the background thread, numba must not replace the filters of warnings, either.
    """
    numba = require("numba", extra="fast")
    errors = numba.core.errors
    collect = errors.WarningsFixer.catch_warnings

    def catch_warnings(fixer: Any, *where: Any, **named: Any) -> AbstractContextManager[None]:
        return nullcontext() if getattr(_HERE, "beside", False) else collect(fixer, *where, **named)

    errors.ColorShell = nullcontext
    errors.WarningsFixer.catch_warnings = catch_warnings
    return numba


def kind(arrays: Sequence[NDArray[np.generic]]) -> Hashable:
    """The properties of arrays for which numba compiles separate code."""
    return tuple((array.dtype.str, array.ndim, array.flags.writeable, array.flags.c_contiguous) for array in arrays)


class Beside:
    """Compiles code in a background thread. At exit, the process waits only for the current step."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._ready: set[Hashable] = set()
        self._begun: set[Hashable] = set()
        self._asked: Counter[Hashable] = Counter()
        self._queue: deque[tuple[Hashable, Iterable[Callable[[], object]]]] = deque()
        self._thread: threading.Thread | None = None

    def ready(self, key: Hashable, steps: Iterable[Callable[[], object]], after: int) -> bool:
        """Whether the code for `key` is compiled.

        If not, it is compiled in the background once this was called more than `after` times, by running `steps`.
        """
        if key in self._ready:
            return True
        with self._lock:
            self._asked[key] += 1
            if key not in self._begun and self._asked[key] > after:
                self._begun.add(key)
                self._queue.append((key, steps))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="voicevault-compiler")
                    self._thread.start()
        return False

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all queued code is compiled, for at most `timeout` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _work(self) -> None:
        _HERE.beside = True
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                key, steps = self._queue.popleft()
            try:
                for step in steps:
                    if not threading.main_thread().is_alive():  # the process ends; the rest is compiled another time
                        return
                    step()
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises, numpy still answers
                _LOG.warning("no machine code could be made, numpy searches instead: %s", told(error))
            else:
                self._ready.add(key)


BESIDE = Beside()
reset_in_child(BESIDE, Beside._reset)
