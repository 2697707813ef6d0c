"""Progress of long commands: a live view on a terminal, periodic lines elsewhere; and handling of Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from voicevault_retrievers.cli.progress import shown
from voicevault_retrievers.store.indexing import Observer, ReadingProgress

Clock: TypeAlias = Callable[[], float]

EVERY = 10.0
"""Seconds between two lines without a terminal."""
SIZED = 2.0
"""Seconds for which a measured size on disk is reused."""
TOLD = 0.001
"""The share that must be done before the remaining time is estimated."""
DONE, LABEL, BAR = "done", 10, 24


class Pace:
    """The rate at which a value has risen within the last `window` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Record the current value."""
        points = self._points
        points.append((now, value))
        while len(points) > 2 and points[1][0] <= now - self._window:
            points.popleft()

    def rate(self, now: float) -> float:
        """The rate per second; 0 before there are two points in time."""
        if not self._points:
            return 0.0
        (since, first), (_, last) = self._points[0], self._points[-1]
        return (last - first) / (now - since) if now > since else 0.0


class ProgressView:
    """The progress of reading files, as an observer of `update`; another thread may draw it."""

    def __init__(self, folder: Path, clock: Clock = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._began = clock()
        self._now = ReadingProgress()
        self._embedded = Pace(10.0)
        self._share = Pace(60.0)
        self._sized = (-SIZED, 0)
        self.__call__(self._now)

    def __call__(self, reading: ReadingProgress) -> None:
        now = self._clock() - self._began
        self._now = reading
        self._embedded.add(now, reading.embedded)
        self._share.add(now, reading.share)

    def line(self) -> str:
        """The progress in one line, without the current file."""
        now = self._now
        skipped = f", {now.skipped} skipped" if now.skipped else ""
        files = f"{now.done:,} of {now.files:,} files{skipped}"
        return f"{now.share:.0%}: {files}; {self._chunks()}; {self._size()}; {self._time()}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Pairs of label and text, at most 7."""
        now = self._now
        yield DONE, f"{now.share:.0%}"
        yield "files", f"{now.done:,} of {now.files:,}"
        yield "reading", shown(now.file) or ("(embedding and writing)" if now.done else "")
        yield "chunks", self._chunks()
        yield "time", self._time()
        yield "on disk", self._size()
        if now.latest:
            yield "skipped", f"{now.skipped:,}, last {shown(now.latest.source_file)}: {shown(now.latest.reason)}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for label, text in self.rows():
            line = Text(label.ljust(LABEL), "dim", no_wrap=True, overflow="ellipsis", end="\n")
            if label == DONE:
                line.append_text(_bar(self._now.share, "#-" if options.ascii_only else "━─"))
            room = options.max_width - LABEL
            line.append(tail(text, room) if label == "reading" else text, "not dim")
            yield line

    def _chunks(self) -> str:
        now = self._now
        rate = self._embedded.rate(self._clock() - self._began)
        return f"{now.chunks:,} made, {now.embedded:,} embedded, {rate:,.{0 if rate >= 10 else 1}f} a second"

    def _time(self) -> str:
        now = self._clock() - self._began
        rate, share = self._share.rate(now), self._now.share
        left = f", about {_clock((1 - share) / rate)} left" if rate > 0 and TOLD <= share < 1 else ""
        return f"{_clock(now)}{left}"

    def _size(self) -> str:
        now, (then, size) = self._clock() - self._began, self._sized
        if now - then >= SIZED:
            size = on_disk(self._folder)
            self._sized = (now, size)
        return decimal(size)


class Lines:
    """Prints a view's line once `EVERY` seconds have passed since the last one."""

    def __init__(self, say: Callable[[str], None], view: ProgressView, clock: Clock = time.monotonic) -> None:
        self._say = say
        self._view = view
        self._clock = clock
        self._said = clock()

    def __call__(self, reading: ReadingProgress) -> None:
        self._view(reading)
        if self._clock() - self._said >= EVERY:
            self._said = self._clock()
            self._say(self._view.line())


@contextmanager
def following(console: Console, folder: Path, *, quiet: bool = False) -> Iterator[Observer | None]:
    """An observer of `update` that shows its progress, on a terminal or in lines; None where `quiet`."""
    if quiet:
        yield None
    elif console.is_terminal and not console.is_dumb_terminal:
        view = ProgressView(folder)
        with Live(view, console=console, refresh_per_second=4, transient=True):
            yield view
    else:
        yield Lines(lambda line: console.print(line, markup=False, highlight=False), ProgressView(folder))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first Ctrl-C raise KeyboardInterrupt as usual, and a second one end the process at once."""
    former = signal.getsignal(signal.SIGINT)
    ours = former is not signal.SIG_IGN and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, former)


def _interrupt(*_: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends native code too, during which Python's handlers do not run
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h")  # show the cursor, which a live view hides
    raise KeyboardInterrupt


def on_disk(folder: Path) -> int:
    """The bytes of the files in a folder; files that vanish meanwhile count as 0."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue
    return total


def tail(text: str, room: int) -> str:
    """The end of a text that fits into `room` terminal cells: the end of a path distinguishes it from others."""
    if cell_len(text) <= room:
        return text
    text = text[-max(room, 1) :]
    while text and cell_len(text) >= room:
        text = text[1:]
    return f"…{text}"


def _bar(share: float, drawn: str) -> Text:
    full = int(BAR * share)
    return Text.assemble((drawn[0] * full, "not dim green"), (drawn[1] * (BAR - full), "dim"), " ")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
