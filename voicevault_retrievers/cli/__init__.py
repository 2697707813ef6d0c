"""The command `voicevault`."""

from __future__ import annotations

import os
import sys

from voicevault_retrievers.errors import MissingExtraError
from voicevault_retrievers.extras import require

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as of a program that the signal ends."""


def main() -> None:
    """Run the command; exit 1 on failure, 2 on wrong usage or a missing extra, 130 where Ctrl-C ended it."""
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
