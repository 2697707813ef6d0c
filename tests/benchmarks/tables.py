"""Writes the README's tables from the benchmarks' results: `python -m tests.benchmarks.tables`.

A table stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`, where NAME is that of a file in results/. It stays
as it is where that benchmark has not been run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.benchmarks.results import FOLDER

README = Path(__file__).parents[2] / "README.md"
COLUMNS = {
    "lexical": [
        *((size, metric) for size in ("10k", "100k", "1M") for metric in ("p50 ms", "batch q/s")),
        ("100k text", "build s"),
        ("100k text", "bytes per posting"),
    ],
}
"""Cases and metrics of the tables that do not show all that was measured."""


def table(name: str) -> str | None:
    """Systems down, cases and metrics across, a dash for what was not measured; None where there are no results."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    columns = COLUMNS.get(name) or list(dict.fromkeys((row["case"], row["metric"]) for row in rows))
    values = {(row["system"], row["case"], row["metric"]): row["value"] for row in rows}
    lines = ["| system | " + " | ".join(f"{case}, {metric}" for case, metric in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for system in dict.fromkeys(row["system"] for row in rows if (row["case"], row["metric"]) in columns):
        lines.append(f"| {system} | " + " | ".join(_cell(values.get((system, *column))) for column in columns) + " |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The text with every marked table made anew."""
    pattern = re.compile(r"(<!-- (?P<name>\w+):begin -->\n).*?(\n<!-- (?P=name):end -->)", re.DOTALL)
    return pattern.sub(_made_anew, text)


def _made_anew(place: re.Match[str]) -> str:
    made = table(place["name"])
    return place[0] if made is None else place[1] + made + place[3]


def _cell(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
