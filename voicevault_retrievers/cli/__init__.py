"""The command `voicevault`."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import MissingExtraError

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended: that of a program ended by the signal."""


def main() -> None:
    """Run the command; exit 1 on failure, 2 on wrong usage or a missing extra, 130 where Ctrl-C ended it."""
    _prepare_streams()
    try:
        for module in ("click", "rich", "yaml"):
            require(module, extra="cli")
        from voicevault_retrievers.cli.commands import voicevault

        voicevault(prog_name="voicevault")
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if os.environ.get("VOICEVAULT_TRACEBACK"):
            raise
        said = f"Error: unexpected {type(error).__name__}: {error}\nVOICEVAULT_TRACEBACK=1 shows where.\n"
        sys.stderr.write(said)
        raise SystemExit(1) from None


def _prepare_streams() -> None:
    """Open streams that were closed, whose descriptors other files would get; let none fail at characters it lacks."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, opened)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)
