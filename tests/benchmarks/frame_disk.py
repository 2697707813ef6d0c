"""Hybrid search over a large knowledge base on disk, beside its two searches alone.

    python -m tests.benchmarks.frame_disk [DATA] [SIZE]

Writes results/frame_disk.json; DATA is not needed, and the chunks are synthetic (see `frame_systems`). The vectors are
searched by their int8 codes. Alone as in the hybrid search a channel gives 100 hits, and ten are read. Searches take
turns, question by question, and no question is asked twice. A figure is the median over several rounds of the CPU
time's median; BLAS has one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from tests.benchmarks.frame_systems import Ahead, Drawn, Package, spent
from tests.benchmarks.results import Row, write
from voicevault_retrievers import KnowledgeBase

SIZE, AT_ONCE = 1_000_000, 50_000
ROUNDS, ASKED, WARM = 5, 20, 8
ALONE = "keywords alone", "vectors alone"
HYBRID = "hybrid, RRF", "hybrid, default"


def measured(size: int, folder: Path) -> Iterator[Row]:
    """The CPU time of each search, and of each hybrid one how many times the sum of both alone."""
    drawn = Drawn(size)
    with KnowledgeBase.create("disk", root=folder, embedder=Ahead(drawn.vectors), vectors="int8") as base:
        for start in range(0, size, AT_ONCE):
            chunks = drawn.chunks(AT_ONCE, start)
            drawn.vectors |= zip((chunk.text for chunk in chunks), drawn.rows(AT_ONCE), strict=True)
            base.add(chunks)
            for chunk in chunks:
                del drawn.vectors[chunk.text]
        channels = {"bm25": base.bm25(), "dense": base.dense()}
        packages = {
            **{alone: Package.plain({name: one}) for alone, (name, one) in zip(ALONE, channels.items(), strict=True)},
            **dict(zip(HYBRID, (Package.plain(channels), Package.default(channels)), strict=True)),
        }
        searches = {name: package.search for name, package in packages.items()}
        spent(searches, drawn.questions(WARM))
        rounds = [spent(searches, drawn.questions(ASKED)) for _ in range(ROUNDS)]
    case = f"{size:,} chunks on disk, int8"
    medians = [{name: median(times) * 1e3 for name, times in one.items()} for one in rounds]
    for name in searches:
        yield Row(name, case, "CPU ms p50", median(one[name] for one in medians))
    for name in HYBRID:
        times = median(one[name] / sum(one[alone] for alone in ALONE) for one in medians)
        yield Row(name, case, "CPU p50, times both alone", times)


def main(size: int) -> None:
    """Measure, tell and write."""
    with TemporaryDirectory() as folder, threadpool_limits(1, user_api="blas"):
        rows = list(measured(size, Path(folder)))
    for row in rows:
        sys.stdout.write(f"{row.system:20} {row.metric:28} {row.value:10.3f}\n")
    write("frame_disk", rows, ("voicevault-retrievers", "numpy", "numba"))


if __name__ == "__main__":
    main(next((int(one) for one in sys.argv[1:] if one.isdigit()), SIZE))
