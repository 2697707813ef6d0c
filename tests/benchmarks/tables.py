"""Writes the README's tables from the benchmarks' results: `python -m tests.benchmarks.tables`.

A table stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`, where NAME is that of a file in results/.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.benchmarks.results import FOLDER

README = Path(__file__).parents[2] / "README.md"


def table(name: str) -> str:
    """Systems down, cases and metrics across."""
    rows = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    columns = list(dict.fromkeys((row["case"], row["metric"]) for row in rows))
    values = {(row["system"], row["case"], row["metric"]): row["value"] for row in rows}
    lines = ["| system | " + " | ".join(f"{case}, {metric}" for case, metric in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for system in dict.fromkeys(row["system"] for row in rows):
        lines.append(f"| {system} | " + " | ".join(f"{values[(system, *column)]:.3f}" for column in columns) + " |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The text with every marked table made anew."""
    pattern = re.compile(r"(<!-- (?P<name>\w+):begin -->\n).*?(\n<!-- (?P=name):end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + table(match["name"]) + match[3], text)


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
