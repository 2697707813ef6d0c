"""Opening a knowledge base in a fresh process: milliseconds, and what is resident before the first search."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.lexical_corpora import chunks_of, size
from tests.benchmarks.lexical_measure import Case, isolated, medians
from tests.benchmarks.results import Row
from voicevault_retrievers import KnowledgeBase

ROUNDS = 5
PROGRAM = """
import sys, time
from pathlib import Path
from voicevault_retrievers import KnowledgeBase
start = time.perf_counter()
base = KnowledgeBase.open(Path(sys.argv[1]))
took = time.perf_counter() - start
import psutil
sys.stdout.write(f"{took * 1e3} {psutil.Process().memory_info().rss / 1e6}")
"""


def measure(cases: Sequence[Case]) -> Iterator[list[Row]]:
    """The figures of each collection: medians of fresh processes."""
    for case in cases:
        with TemporaryDirectory() as parent:
            folder = Path(parent) / "base"
            isolated(fill, case, folder)
            rounds = [_open(folder) for _ in range(ROUNDS)]
        yield [Row("ours", size(case.documents), metric, value) for metric, value in medians(rounds).items()]


def fill(case: Case, folder: Path) -> None:
    """A knowledge base of the documents, by keywords only."""
    with KnowledgeBase.create(folder) as base:
        base.add(chunks_of(case.load(), texts=True))


def _open(folder: Path) -> dict[str, float]:
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(("open ms", "open resident MB"), map(float, run.stdout.split()), strict=True))
