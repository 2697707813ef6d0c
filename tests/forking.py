"""Forked children of a test."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable

PATIENCE = 60
"""Seconds after which a child that hangs is ended."""


def fork(child: Callable[[], int] | None = None) -> int:
    """The id of a child, which ends with what the function returns; without one, 0 in the child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of earlier tests may live, which Python 3.12 and LanceDB say
        pid = os.fork()
    if pid or child is None:
        return pid
    signal.alarm(PATIENCE)
    try:
        code = child()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is one
        code = 1
    os._exit(code)


def ended(pid: int) -> int:
    """What a child ended with; less than 0 for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
