"""Keyword search beside rank-bm25, bm25s and tantivy: speed, memory, size, changes, filters, quality.

    python -m tests.benchmarks.lexical DATA [PART ...] [--documents 10000,100000]

Writes results/lexical.json; what other parts and sizes have written there stays. Latencies and batches are measured on
synthetic documents of each size, and on real text (of DATA, a folder of collections in BEIR layout) of the greatest
up to 100,000 documents; builds likewise, from 100,000 on where there are such; changes, opening and filters on
synthetic documents of the greatest size; quality on DATA. The case "10k" has 10,000 documents.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import (
    lexical_build,
    lexical_filter,
    lexical_latency,
    lexical_open,
    lexical_quality,
    lexical_update,
)
from tests.benchmarks.lexical_corpora import missing
from tests.benchmarks.lexical_measure import Case
from tests.benchmarks.lexical_systems import PACKAGES
from tests.benchmarks.results import Row, write

PARTS = ("latency", "build", "update", "open", "filter", "quality")
GREATEST_SIZE = {"update": lexical_update.measure, "open": lexical_open.measure, "filter": lexical_filter.measure}
MOST_TEXT = 100_000


def measured(part: str, sizes: list[int], data: Path) -> Iterator[list[Row]]:
    """The rows of a part, as they come."""
    if part in GREATEST_SIZE:
        return GREATEST_SIZE[part]([Case(max(sizes))])
    if part == "latency":
        return lexical_latency.measure(cases(sizes, data))
    if part == "build":
        return lexical_build.measure(cases([size for size in sizes if size >= MOST_TEXT] or sizes, data))
    return lexical_quality.measure(data)


def cases(sizes: list[int], data: Path) -> list[Case]:
    """Synthetic documents of each size, and real text of the greatest size up to 100,000."""
    text = [] if missing(data) else [size for size in sizes if size <= MOST_TEXT]
    return [*(Case(size) for size in sizes), *(Case(size, data) for size in text[-1:])]


def main(arguments: argparse.Namespace) -> None:
    """Measure part after part; an answer that should be exact and is not ends the run."""
    sizes = sorted(int(size) for size in arguments.documents.split(","))
    reason = missing(arguments.data)
    if reason:
        sys.stdout.write(f"real text skipped: {reason}\n")
    for part in arguments.parts or PARTS:
        for rows in measured(part, sizes, arguments.data):
            write("lexical", rows, PACKAGES, merge=True)
            sys.stdout.writelines(f"{row.system}, {row.case}: {row.metric} {row.value:.4g}\n" for row in rows)
            sys.stdout.flush()
            if inexact := [row for row in rows if row.metric.startswith("exact") and not row.value]:
                sys.exit(f"not exact: {inexact}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Keyword search beside rank-bm25, bm25s and tantivy.")
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--documents", default="10000,100000,1000000", help="sizes, with commas")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    main(given)
