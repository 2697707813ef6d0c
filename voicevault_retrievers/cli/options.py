"""What the commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from voicevault_retrievers.errors import ConfigError, RetrievalError

Command = Callable[..., Any]

root = click.option("--root", type=click.Path(file_okay=False, path_type=Path), help="Folder of the knowledge bases.")
wait = click.option(
    "--wait", default=0.0, metavar="SECONDS", type=click.FloatRange(min=0), help="Wait for another process that writes."
)


def reporting(command: Command) -> Command:
    """Errors of the package as one line and exit code 1, or 2 where an option is wrong."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except ConfigError as error:
            raise click.UsageError(said(error)) from error
        except BrokenPipeError:  # click ends quietly where nobody reads on
            raise
        except (RetrievalError, OSError) as error:
            raise click.ClickException(said(error)) from error

    return run


def said(error: object) -> str:
    """An error's text, with what the command line adds to it."""
    hint = "; a function cannot be given on the command line: do this in Python"
    return f"{error}{hint if 'CustomAnalyzer(' in str(error) else ''}"
