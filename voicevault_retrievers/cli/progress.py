"""A progress bar for terminals, and escaping of untrusted text for terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def bar(console: Console, what: str, *, counts: ProgressColumn | None = None) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that draws a bar; it draws nothing where the output is not a terminal.

    `counts` is the column that shows the progress, where that is not a number of items.
    """
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        counts or MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def draw(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield draw


def shown(text: str) -> str:
    """Untrusted text on one line, with control and bidirectional characters escaped."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
