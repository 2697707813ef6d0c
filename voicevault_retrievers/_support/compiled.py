"""numba, where it is installed: functions that run as machine code, without the interpreter's lock.

Importing numba takes half a second, and making the code some twenty where it is not kept on disk yet. No search waits
for that: numpy answers, and gives the same, until a thread beside has made the code.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import told

F = TypeVar("F", bound=Callable[..., object])

FEW, MANY = 3, 32
"""Searches that numpy answers before code is made for a large index, and for a small one."""

_LOG = logging.getLogger(__name__)
_HERE = threading.local()
"""Whether this thread is one that makes code beside the program: `beside`."""


@cache
def installed() -> bool:
    """Whether the extra `fast` is there; importing it takes half a second, which this does not do."""
    return find_spec("numba") is not None


def compiled(function: F) -> F:
    """The function as machine code: made at its first call, kept on disk where there is a place to keep it."""
    numba = _numba()
    try:
        made: F = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba's word for "no folder that can be written"
        made = numba.njit(nogil=True)(function)
    return made


@cache
def _numba() -> Any:
    """numba, kept from changing what is one for all threads of the process while they go on.

    It marks up the text of errors, also of those that nobody sees, while colorama has exchanged `sys.stdout` and
    `sys.stderr`: the text is the same without. It exchanges the filters of warnings to find doubles among its own.
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
    """What numba tells arrays apart by: it makes code for each kind."""
    return tuple((array.dtype.str, array.ndim, array.flags.writeable, array.flags.c_contiguous) for array in arrays)


class Beside:
    """Makes code in a thread beside the program, which waits at its end for the step that is being taken, no more."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._ready: set[Hashable] = set()
        self._begun: set[Hashable] = set()
        self._asked: Counter[Hashable] = Counter()
        self._queue: deque[tuple[Hashable, Sequence[Callable[[], object]]]] = deque()
        self._thread: threading.Thread | None = None

    def ready(self, key: Hashable, steps: Sequence[Callable[[], object]], after: int) -> bool:
        """Whether the code that `key` stands for is there.

        Where it is not, it is made beside as soon as this has been asked more than `after` times: `steps` call it.
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
        """Wait until all that was begun is there, for at most `timeout` seconds."""
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
                    if not threading.main_thread().is_alive():  # the program ends: what is left is made another time
                        return
                    step()
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises, numpy goes on answering
                _LOG.warning("no machine code could be made, numpy searches instead: %s", told(error))
            else:
                self._ready.add(key)


BESIDE = Beside()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BESIDE._reset)
