"""A Matryoshka funnel against exact search: recall of the best 100, and the time of a query.

    python -m tests.benchmarks.funnel DATA

Writes results/funnel.json. The vectors are 100,000 made ones of 768 dimensions that are nested (their spectrum falls),
as many whose dimensions say equally much, and those of all-MiniLM-L6-v2, which was not trained for prefixes, over the
texts and questions of the collections in BEIR layout that are in DATA. Embeddings are kept as those of `quality` are.
Every system has one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tests.benchmarks.quality import COLLECTIONS, embedded, load
from tests.benchmarks.results import Row, write
from voicevault_retrievers import Chunk
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense import ExactVectors, SentenceTransformerEmbedder, VectorPart
from voicevault_retrievers.dense.funnel import MatryoshkaFunnel
from voicevault_retrievers.dense.prefixes import CANDIDATES, prefix_recall

Matrix = NDArray[np.float32]

ROWS, DIMENSION, ASKED, DEPTH = 100_000, 768, 100, 100
PREFIXES = (64, 128, 256)
FALL = 0.99
"""By which each further dimension of a nested vector is smaller."""
MODEL = "all-MiniLM-L6-v2"


class Case(NamedTuple):
    """Rows and queries, all of length 1."""

    name: str
    matrix: Matrix
    queries: Matrix


def made(rows: int, fall: float, seed: int) -> Matrix:
    """Random rows of length 1 whose dimensions are smaller and smaller."""
    drawn = np.random.default_rng(seed).standard_normal((rows, DIMENSION), dtype=np.float32)
    drawn *= (fall ** np.arange(DIMENSION)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def real(data: Path) -> Iterator[Case]:
    """The texts of all collections that are there, and a part of their questions."""
    there = [load(data / name) for name in COLLECTIONS if (data / name).is_dir()]
    if there:
        embedder = SentenceTransformerEmbedder(MODEL)
        texts = [embedded([chunk.text for chunk in Rows.of(chunks).chunks], embedder) for chunks, _ in there]
        matrix = np.concatenate(texts)
        asked = list(dict.fromkeys(question.text for _, questions in there for question in questions))
        some = [asked[at] for at in np.linspace(0, len(asked) - 1, 4 * ASKED).astype(int)]
        yield Case(f"{MODEL}, {len(matrix):,} texts", matrix, embedded(some, embedder, queries=True))


def cases(data: Path) -> Iterator[Case]:
    """Vectors trained for prefixes, as made ones stand in for; those that are not; real ones."""
    yield Case(f"nested, {ROWS:,}", made(ROWS, FALL, 1), made(ASKED, FALL, 2))
    yield Case(f"flat, {ROWS:,}", made(ROWS, 1.0, 3), made(ASKED, 1.0, 4))
    yield from real(data)


def timed(nearest: Callable[[Matrix, int], Sequence[Found]], queries: Matrix) -> tuple[float, list[list[Found]]]:
    """The median of milliseconds a query, and what was found."""
    nearest(queries[0], DEPTH)
    times, found = [], []
    for query in queries:
        began = time.perf_counter()
        found.append(list(nearest(query, DEPTH)))
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1000, found


def measure(case: Case) -> Iterator[Row]:
    """Exact search, and a funnel for each prefix."""
    rows = Rows([Chunk(f"{at:06}", "") for at in range(len(case.matrix))])
    index = ExactVectors([VectorPart(rows, case.matrix)], case.matrix.shape[1])
    milliseconds, expected = timed(index.nearest, case.queries)
    yield Row("exact", case.name, "p50 ms", milliseconds)
    for prefix in PREFIXES:
        system = f"funnel {prefix} -> {CANDIDATES}"
        began = time.perf_counter()
        checked = prefix_recall(index, prefix=prefix)
        yield Row(system, case.name, "cut and check s", time.perf_counter() - began)
        yield Row(system, case.name, "recall@100, rows held out", checked.mean)
        yield Row(system, case.name, "good enough", float(checked.passed))
        funnel = MatryoshkaFunnel(index, prefix=prefix, on_loss="accept")
        milliseconds, found = timed(funnel.nearest, case.queries)
        yield Row(system, case.name, "p50 ms", milliseconds)
        shares = [len(set(one) & set(true)) / len(true) for one, true in zip(found, expected, strict=True)]
        yield Row(system, case.name, "recall@100", float(np.mean(shares)))
        yield Row(system, case.name, "worst recall@100", min(shares))
        yield Row(system, case.name, "MB more", 4e-6 * len(case.matrix) * prefix)


def main(data: Path) -> None:
    """Measure each case and write the rows."""
    rows: list[Row] = []
    for case in cases(data):
        with threadpool_limits(1):
            rows += measure(case)
        sys.stdout.write("".join(f"{row}\n" for row in rows if row.case == case.name))
        sys.stdout.flush()
    write("funnel", rows, ["voicevault-retrievers", "numpy", "sentence-transformers", "torch"])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
