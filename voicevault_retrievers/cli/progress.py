"""Progress bars, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


@contextmanager
def bars(console: Console, *what: str) -> Iterator[list[Callable[[int, int], None]]]:
    """Callbacks (done, total), each of which draws a bar, and nothing where the output is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def draw(task: TaskID, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield [partial(draw, progress.add_task(name, total=None)) for name in what]


@contextmanager
def bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """One of `bars`."""
    with bars(console, what) as (draw,):
        yield draw
