"""Prints the pins of what only the tests and checks use: what `make floors` takes of constraints.txt."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
BESIDE = {"llama-index-retrievers-bm25", "torch"}
"""What the Makefile installs by itself, and what there is one build of."""
PYARROW = "pyarrow==20.0.0"
"""A newer one needs NumPy 2 and does not say so."""


def main() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = BESIDE | {re.split(r"[\[<>=;]", requirement)[0].lower() for requirement in extras["dev"]}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in pinned if line.partition("==")[0].lower().replace("_", "-") in names]
    sys.stdout.write("\n".join([*kept, PYARROW, ""]))


if __name__ == "__main__":
    main()
