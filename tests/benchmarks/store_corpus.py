"""What the store benchmark keeps: real text with metadata, and vectors that were made before.

Vectors are random in 24 directions, with little noise in all 384: models use few directions too, and where all are
random, a graph such as Chroma's takes half as long again to build. Comparing all costs the same with either.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.lexical_corpora import real
from tests.benchmarks.store_systems import DIMENSION, Lookup
from voicevault_retrievers import Chunk

DIRECTIONS = 24
NOISE = 0.3


class Corpus(NamedTuple):
    """Chunks, and the embedder that has their vectors."""

    chunks: list[Chunk]
    lookup: Lookup


def corpus(chunks: int, data: Path) -> Corpus:
    """Chunks of real text, each with a number, so that no two are alike; 50 are of one file, 5 of one page."""
    texts = [f"{text}\nChunk {at}." for at, text in enumerate(real(chunks, data).texts)]
    made = [Chunk(f"{at:08}", text, metadata=_metadata(at)) for at, text in enumerate(texts)]
    return Corpus(made, Lookup(texts, rows(chunks)))


def rows(count: int) -> NDArray[np.float32]:
    """Vectors of length 1; those of fewer are the first of those of more."""
    base, places, noise = (np.random.default_rng(seed) for seed in (7, 8, 9))
    directions = base.standard_normal((DIRECTIONS, DIMENSION), np.float32)
    matrix = places.standard_normal((count, DIRECTIONS), np.float32) @ directions
    matrix += NOISE * noise.standard_normal((count, DIMENSION), np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def _metadata(at: int) -> dict[str, str | int]:
    return {"source_file": f"file-{at // 50:05}.pdf", "page_number": at % 50 // 5 + 1, "chunk_index": at % 50}
