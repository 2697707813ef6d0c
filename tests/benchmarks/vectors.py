"""Exact vector search by float32 and by int8 codes: time, and the share of rows that codes leave to look at.

    python -m tests.benchmarks.vectors DATA

Writes results/vectors.json. Every system must find the same, to the bit. Embeddings are kept as those of `quality`
are; without a collection in BEIR layout, only random rows are measured. Every system has one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tests.benchmarks.quality import load, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import Chunk
from voicevault_retrievers._support.compiled import installed
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense import Codes, ExactVectors, VectorPart, gate, int8, load_embedder, quantise, rescoring

Matrix = NDArray[np.float32]

COLLECTION = "scifact"
MODELS = ("all-MiniLM-L6-v2", "bge-small-en-v1.5")
DIMENSION, MANY, ASKED, DEPTHS = 384, 100_000, 40, (10, 100)


class Case(NamedTuple):
    """Rows and queries, all of length 1."""

    name: str
    matrix: Matrix
    queries: Matrix


def unit(rows: Matrix) -> Matrix:
    """Rows brought to length 1."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def cases(data: Path) -> Iterator[Case]:
    """Real rows, mixtures of pairs of them, random directions, and rows in two heaps that codes cannot tell apart."""
    rng = np.random.default_rng(0)
    for model in MODELS if (data / COLLECTION).is_dir() else ():
        chunks, questions = load(data / COLLECTION)
        embedder = load_embedder(model)
        matrix = vectors(chunks, embedder).parts[0].matrix
        queries = embedder.embed_queries([question.text for question in questions[:ASKED]])
        yield Case(f"{model}, {len(matrix):,} texts", matrix, queries)
        pairs = rng.integers(0, len(matrix), (2, MANY))
        shares = rng.random((MANY, 1), dtype=np.float32)
        mixed = unit(shares * matrix[pairs[0]] + (1 - shares) * matrix[pairs[1]])
        yield Case(f"{model}, {MANY:,} mixtures", mixed, queries)
    queries = unit(rng.standard_normal((ASKED, DIMENSION), dtype=np.float32))
    matrix = unit(rng.standard_normal((MANY, DIMENSION), dtype=np.float32))
    yield Case(f"random, {MANY:,}", matrix, queries)
    heaps = unit(matrix[np.arange(MANY) % 2] + np.float32(1e-3) * matrix)
    yield Case(f"two heaps, {MANY:,}", heaps, queries)


def searched(index: ExactVectors, queries: Matrix, k: int) -> tuple[float, list[list[tuple[str, float]]]]:
    """The median of milliseconds a query, and what was found."""
    index.nearest(queries[0], k)
    times, found = [], []
    for query in queries:
        began = time.perf_counter()
        nearest = index.nearest(query, k)
        times.append(time.perf_counter() - began)
        found.append([(one.chunk.id, one.score) for one in nearest])
    return float(np.median(times)) * 1000, found


def shares(case: Case, codes: Codes) -> Iterator[Row]:
    """Which share of rows is looked at in float32: for the queries, and for own rows, as the gate asks."""
    for k in DEPTHS:
        looked = [int8.compared(case.matrix, codes, q, k) for q in case.queries]
        yield Row("int8", case.name, f"share at {k}", float(np.mean(looked)) / len(case.matrix))
        yield Row("int8", case.name, f"worst share at {k}", max(looked) / len(case.matrix))
    asked = gate(case.matrix, codes)
    yield Row("int8", case.name, "gate, share at 10", asked.mean_at_10)
    yield Row("int8", case.name, "gate, share at 100", asked.mean_at_100)
    yield Row("int8", case.name, "gate passed", float(asked.passed))


def measure(case: Case) -> Iterator[Row]:
    """Each system on a case."""
    began = time.perf_counter()
    codes = quantise(case.matrix)
    yield Row("int8", case.name, "quantise s", time.perf_counter() - began)
    rows = Rows([Chunk(f"{at:06}", "") for at in range(len(case.matrix))])
    systems = {
        f"{kind}, {way}": own for kind, own in (("float32", None), ("int8", codes)) for way in ("numpy", "numba")
    }
    for k in DEPTHS:
        expected = None
        for system, own in systems.items():
            numba = system.endswith("numba")
            if numba and not installed():
                continue
            beside = SimpleNamespace(
                ready=lambda *_, numba=numba: numba
            )  # at once, and not beside, after some searches
            with (
                patch.object(int8, "COMPILED_FROM", 0),
                patch.object(int8, "BESIDE", beside),
                patch.object(rescoring, "BESIDE", beside),
            ):
                index = ExactVectors([VectorPart(rows, case.matrix, own)], case.matrix.shape[1])
                milliseconds, found = searched(index, case.queries, k)
            if found != (expected := expected or found):
                raise SystemExit(f"{system} finds something else in {case.name}")
            yield Row(system, case.name, f"p50 ms at {k}", milliseconds)
    yield from shares(case, codes)
    for system, arrays in (("float32", [case.matrix]), ("int8", codes.arrays().values())):
        yield Row(system, case.name, "MB scanned", sum(array.nbytes for array in arrays) / 1e6)


def main(data: Path) -> None:
    """Measure each case and write the rows."""
    rows: list[Row] = []
    for case in cases(data):
        with threadpool_limits(1):
            rows += measure(case)
        sys.stdout.write(f"{case.name}: measured\n")
    packages = ["voicevault-retrievers", "numpy", "onnxruntime", *(["numba"] if installed() else [])]
    write("vectors", rows, packages)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
