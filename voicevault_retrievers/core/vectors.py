"""Checks of the vectors that embedders give for chunks and queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, EmbeddingError

_TOLERANCE = 1e-3


def embedded(embedder: Embedder, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
    """The vectors of chunks, of shape (len(chunks), embedder.dimension), each of length 1.

    Raises EmbeddingError, naming the chunk, where the vector of its text is all zeros or not finite.
    """
    try:
        return rows_of(embedder, embedder.embed_documents([chunk.indexed_text for chunk in chunks]), len(chunks))
    except EmbeddingError as error:
        said = f"chunk {chunks[error.at].id!r} cannot be indexed, for its text has no vector: {error}"
        raise EmbeddingError(said, error.at) from error


def rows_of(embedder: Embedder, vectors: ArrayLike, count: int) -> NDArray[np.float32]:
    """An embedder's output as checked by `unit_rows`; EmbeddingError where a row is all zeros or not finite."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.shape == (count, embedder.dimension) and not len(_wrong(rows)):
        return rows
    good = np.isfinite(rows).all(axis=-1) & rows.any(axis=-1)
    if good.ndim and not good.all():
        at = int(good.argmin())
        raise EmbeddingError(f"{embedder!r} gave a row that is zero or not finite for text {at} of {count}", at)
    return unit_rows(rows, count, embedder.dimension)


def unit_rows(
    vectors: ArrayLike, count: int, dimension: int, chunks: Sequence[Chunk] | None = None
) -> NDArray[np.float32]:
    """Vectors as float32 rows. Raises ConfigError unless there is one finite row of length 1 per text.

    The error names the chunk where `chunks` are given.
    """
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.shape != (count, dimension):
        raise ConfigError(f"the vectors have shape {rows.shape}, expected ({count}, {dimension}): one row per text")
    for at in _wrong(rows)[:1].tolist():
        whose = "" if chunks is None else f" of chunk {chunks[at].id!r}"
        raise ConfigError(
            f"vector {at}{whose} has length {np.linalg.norm(rows[at])}, expected 1: divide each row by its length"
        )
    return rows


def _wrong(rows: NDArray[np.float32]) -> NDArray[np.intp]:
    """The positions of the rows whose length is not 1."""
    squares = np.einsum("ij,ij->i", rows, rows)
    return np.flatnonzero(~(np.abs(np.sqrt(squares) - 1) < _TOLERANCE))
