"""Prefixes of vectors, and their recall of the nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense.exact import ExactVectors, VectorPart
from voicevault_retrievers.dense.matrix_cache import MatrixCache
from voicevault_retrievers.errors import ConfigError

PREFIX, CANDIDATES, KEPT = 64, 1000, 100
LEAST = 0.95
"""The mean recall from which a prefix passes."""
QUERIES = 64
"""The number of the index's rows that serve as queries, each held out."""
_AT_ONCE, _PRODUCTS = 1 << 22, 1 << 24


@dataclass(frozen=True)
class PrefixRecall:
    """The share of the true `k` nearest that a funnel keeps among its candidates; shares are in [0, 1].

    Mean and worst over `queries`, which are given, or rows of the index held out one at a time.
    """

    rows: int
    dimension: int
    prefix: int
    candidates: int
    k: int
    queries: int
    mean: float
    worst: float
    least: float = LEAST

    @property
    def passed(self) -> bool:
        """Whether the recall is high enough."""
        return self.mean >= self.least

    @property
    def said(self) -> str:
        """The recall as a text for anyone who searches, without the number of rows."""
        return (
            f"the first {self.prefix} of {self.dimension} dimensions keep {self.mean:.1%} of the best {self.k} among "
            f"{self.candidates:,} candidates, which is {'' if self.passed else 'not '}good enough ({self.least:.0%})"
        )

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {self.queries} queries: {self.said}; at worst {self.worst:.0%}"


def prefix_recall(
    index: ExactVectors,
    *,
    prefix: int = PREFIX,
    candidates: int = CANDIDATES,
    k: int = KEPT,
    queries: NDArray[np.float32] | None = None,
    least: float = LEAST,
) -> PrefixRecall:
    """Measure the share of the true k nearest that a funnel keeps.

    `queries`, of shape (queries, dimension), are real queries; the default is rows of the index (evenly spaced by id),
    each held out. Rows of the index resemble each other more than questions resemble them, so real queries tell more.
    With the same number of candidates, the recall falls as the index grows. Sums are float32, so a share may be off
    where rows are nearly equal. Raises ConfigError for a prefix that is not below the dimension, and queries of another
    dimension.
    """
    prefix, candidates, k = checked_prefix(prefix, index), whole("candidates", candidates), whole("k", k)
    held_out = queries is None
    asked = np.asarray(index.sample(QUERIES) if queries is None else queries, dtype=np.float32)
    if asked.ndim != 2 or asked.shape[1] != index.dimension:
        raise ConfigError(f"queries of shape {asked.shape} for an index of dimension {index.dimension}")
    shares: list[float] = []
    step = max(1, _PRODUCTS // max(len(index), 1))
    for some in (asked[start : start + step] for start in range(0, len(asked), step)):
        full = _products(index, some)
        short = _products(index, np.stack([cut_vector(one, prefix) for one in some]), prefix)
        shares += [_kept(one, other, k, candidates, held_out=held_out) for one, other in zip(full, short, strict=True)]
    mean, worst = (float(np.mean(shares)), min(shares)) if shares else (1.0, 1.0)
    return PrefixRecall(len(index), index.dimension, prefix, candidates, k, len(shares), mean, worst, least)


def cut_vector(vector: Vector, prefix: int) -> Vector:
    """The first dimensions of a vector, scaled to length 1; zeros stay zeros."""
    return unit(vector[:prefix], prefix)


def _products(index: ExactVectors, asked: NDArray[np.float32], prefix: int | None = None) -> NDArray[np.float32]:
    """The products of queries with all live rows, of shape (queries, rows)."""
    found = [np.empty((len(asked), 0), dtype=np.float32)]
    for part in index.parts:
        matrix = part.matrix if prefix is None else short_rows(part, prefix)
        products = (matrix @ asked.T).T
        found.append(products if part.rows.live is None else products[:, part.rows.live])
    return np.concatenate(found, axis=1)


def _kept(full: NDArray[np.float32], short: NDArray[np.float32], k: int, candidates: int, *, held_out: bool) -> float:
    """The share of a query's k nearest that are among the candidates. A held-out row is not its own neighbour."""
    if held_out:
        others = np.ones(len(full), dtype=np.bool_)
        others[int(np.argmax(full))] = False
        full, short = full[others], short[others]
    if not len(full):
        return 1.0
    wanted = _highest(full, k)
    return float(np.isin(wanted, _highest(short, candidates)).mean())


def _highest(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    count = min(count, len(values))
    return np.argpartition(values, len(values) - count)[len(values) - count :]


def short_rows(part: VectorPart, prefix: int) -> NDArray[np.float32]:
    """The first dimensions of each row, scaled to length 1; zeros stay zeros."""
    return made.get(part.matrix, prefix, lambda: _cut_rows(part.matrix, prefix))


def _cut_rows(matrix: NDArray[np.float32], prefix: int) -> NDArray[np.float32]:
    rows = np.empty((len(matrix), prefix), dtype=np.float32)
    step = max(1, _AT_ONCE // matrix.shape[1])
    for start in range(0, len(matrix), step):
        block = matrix[start : start + step][:, :prefix].astype(np.float64)
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        rows[start : start + step] = np.divide(block, lengths, out=np.zeros_like(block), where=lengths > 0)
    return rows


def unit(vector: Vector, prefix: int) -> Vector:
    """A prefix scaled to length 1; ConfigError where it has another dimension."""
    if vector.shape != (prefix,):
        raise ConfigError(f"the query's prefix has shape {vector.shape}, the funnel's is ({prefix},)")
    wide = vector.astype(np.float64)
    length = float(np.linalg.norm(wide))
    return (wide / length).astype(np.float32) if length > 0 else np.zeros(prefix, dtype=np.float32)


def checked_prefix(prefix: int, index: ExactVectors) -> int:
    """Return the prefix; ConfigError where it is not a whole number below the dimension."""
    if whole("prefix", prefix) >= index.dimension:
        raise ConfigError(f"prefix is less than the {index.dimension} dimensions of the vectors, not {prefix}")
    return prefix


made = MatrixCache()
