"""The knowledge base beside Chroma, and beside LangChain's `index()`: filling, opening, changing, size.

    python -m tests.benchmarks.store DATA [--size 100000] [--rounds 1]

Writes results/store.json; other sizes that are there stay. All keep the same real text (of DATA, a folder of
collections in BEIR layout) and metadata with the same vectors, which an embedder looks up. The figures are medians of
the rounds, those of opening of five processes in each; "X / Chroma" is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks import lexical_corpora
from tests.benchmarks.lexical_measure import Figures, medians, ratios
from tests.benchmarks.results import Row, write
from tests.benchmarks.store_measure import measure
from tests.benchmarks.store_systems import PACKAGES, SYSTEMS

BESIDE = ("Chroma", "index() into Chroma")


def figures(data: Path, size: int, systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each system, in one round."""
    made: dict[str, dict[str, float]] = {system: {} for system in systems}
    for system, more in measure(size, data, systems):
        made[system] |= more
        sys.stdout.writelines(f"{system}: {metric} {value:.4g}\n" for metric, value in more.items())
        sys.stdout.flush()
    return made


def rows(case: str, rounds: Sequence[Mapping[str, Figures]]) -> Iterator[Row]:
    """Each system's figures, and what they are of those that another system has too."""
    for system in rounds[0]:
        own = [one[system] for one in rounds]
        yield from (Row(system, case, metric, value) for metric, value in medians(own).items())
        for other in BESIDE:
            if other != system:
                theirs = [one[other] for one in rounds]
                both = [{metric: one[metric] for metric in one if metric in theirs[0]} for one in own]
                yield from (Row(system, case, f"{m} / {other}", value) for m, value in ratios(both, theirs).items())


def main(data: Path, size: int, rounds: int) -> None:
    """Measure every system, and write what has come out."""
    found = [figures(data, size, list(SYSTEMS)) for _ in range(rounds)]
    write("store", rows(lexical_corpora.size(size), found), PACKAGES, merge=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The knowledge base beside Chroma and LangChain's index().")
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    parser.add_argument("--size", type=int, default=100_000, help="chunks")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    if reason := lexical_corpora.missing(given.data):
        sys.stdout.write(f"skipped: {reason}\n")
    else:
        main(given.data, given.size, given.rounds)
