"""Compiles the loops that most tests run, before their processes would each compile them: `make loops`."""

from __future__ import annotations

import numpy as np

from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import VectorPart, quantise
from voicevault_retrievers.lexical.bm25 import BM25


def main() -> None:
    """Compile and cache them: those of keyword search for frequencies of one byte and of two, those of vectors."""
    for text in ("pump", "pump " * 300):
        channel = BM25.from_chunks([Chunk("1", text)], backend="numba")
        channel.index.warm()
        channel.search_many(["pump", "valve"], 1)
    matrix = np.eye(1, 8, dtype=np.float32)
    VectorPart(Rows([Chunk("1", "")]), matrix, quantise(matrix)).warm()


if __name__ == "__main__":
    main()
