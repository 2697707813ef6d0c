"""The command `voicevault`."""

from __future__ import annotations

import sys

from voicevault_retrievers.errors import MissingExtraError
from voicevault_retrievers.extras import require


def main() -> None:
    """Run the command; exit 1 on failure, 2 on wrong usage or a missing extra."""
    try:
        for module in ("click", "rich", "yaml"):
            require(module, extra="cli")
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    from voicevault_retrievers.cli.commands import voicevault

    voicevault()
