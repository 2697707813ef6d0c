"""`voicevault index --watch`: waits for changes of files, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import DocumentError

DEBOUNCE, STEP = 500, 100
"""Milliseconds: the most for which changes are collected, and without a change after which they are complete."""
TICK = 300
"""Milliseconds after which a watcher that sees no change says so."""


def each_change(paths: Sequence[Path]) -> Iterator[None]:
    """Yield when the paths are watched, after each change of files below them, and at the end.

    Ctrl-C, or SIGTERM, is the end once the first turn is over; a second one ends the process. Raises DocumentError
    where nothing of what is given exists, or the system cannot watch it.
    """
    watchfiles = require("watchfiles", extra="cli")
    present = [path for path in paths if path.exists()]
    if not present:
        raise DocumentError(f"{paths[0]} does not exist: give the path of a file or folder to watch")
    stop = threading.Event()
    watched = watchfiles.watch(
        *present,
        watch_filter=None,
        debounce=DEBOUNCE,
        step=STEP,
        rust_timeout=TICK,
        yield_on_timeout=True,
        stop_event=stop,
    )
    try:
        next(watched)  # from here on no change is missed
    except OSError as error:
        raise DocumentError(f"{present[0]} cannot be watched: {error}") from error
    yield
    with _stopping(stop):
        for changes in watched:
            if changes:
                yield
        yield


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first Ctrl-C or SIGTERM, and leave a second one to the system."""

    def end(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    ours = threading.current_thread() is threading.main_thread()
    former = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM) if ours}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
