"""A progress bar, on a terminal only; and texts of others as a terminal may be shown them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total), which draws a bar, and nothing where the output is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def draw(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield draw


def shown(text: str) -> str:
    """A text of others on one line: what a terminal would obey, or turn around, is written out."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
