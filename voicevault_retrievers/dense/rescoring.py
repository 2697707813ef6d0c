"""The exact k nearest rows: bounds of their inner products select candidates, which are summed again in float64."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.listing import kth_highest
from voicevault_retrievers.core.selection import Ordinals
from voicevault_retrievers.core.types import Vector

Bounds: TypeAlias = NDArray[np.float32]
Cosines: TypeAlias = NDArray[np.float64]

AT_ONCE = 1 << 16
"""The count of numbers that are converted at once: few enough for a core's cache and for malloc's retained memory."""
LONGEST = 1.01
"""An upper bound of a row's length; rows have length 1, or 0, but for rounding."""


def products(rows: NDArray[np.float32] | NDArray[np.int8], vectors: Vector, ordinals: Ordinals | None = None) -> Bounds:
    """Inner products in float32, with errors of at most `rounding(vector)` times a row's length.

    Of one vector the shape is (rows,), of several, of shape (count, dimension), (count, rows): each row is read once.
    """
    if ordinals is None and rows.dtype == np.float32:
        whole: Bounds = vectors @ rows.T
        return whole
    count = len(rows) if ordinals is None else len(ordinals)
    found = np.empty((*vectors.shape[:-1], count), dtype=np.float32)
    step = max(1, AT_ONCE // rows.shape[1])
    for start in range(0, count, step):
        some = slice(start, start + step)
        block = rows[some] if ordinals is None else rows[ordinals[some]]
        found[..., some] = vectors @ block.astype(np.float32, copy=False).T
    return found


def rounding(vector: Vector) -> float:
    """The largest error of a float32 product with a row of length 1, for any order of summation.

    Higham (2002), "Accuracy and Stability of Numerical Algorithms", section 3.1: d / (1 - d u) times u = 2**-24, here
    doubled, and with eight roundings in addition to the d of the sum.
    """
    return (len(vector) + 8) * 2.0**-23 * length(vector)


def length(vector: NDArray[np.floating]) -> float:
    """The Euclidean norm."""
    wide = vector.astype(np.float64, copy=False)
    return math.sqrt(wide @ wide)


def near(found: Bounds, vector: Vector, k: int, ordinals: Ordinals | None = None) -> NDArray[np.intp]:
    """Rows that include the k nearest, ascending, from the `products` of some ordinals, or of all.

    The k-th highest product bounds the cosine of the k-th nearest from below, and so excludes lower products.
    """
    return reaching(found, kth_highest([found], k) - 2 * LONGEST * rounding(vector), ordinals)


def candidates(
    matrix: NDArray[np.float32], vector: Vector, k: int, upper: Bounds, ordinals: Ordinals | None = None
) -> NDArray[np.intp]:
    """Rows that include the k nearest, ascending, where `upper` are bounds of all rows, or of some ordinals.

    The lowest cosine of any k rows is at most that of the k-th nearest, so rows with a lower bound are excluded. The k
    rows with the highest bounds are used.
    """
    return reaching(upper, kth_highest([cosines_of_highest(matrix, vector, k, upper, ordinals)], k), ordinals)


def cosines_of_highest(
    matrix: NDArray[np.float32], vector: Vector, k: int, upper: Bounds, ordinals: Ordinals | None = None
) -> Cosines:
    """The cosines of the k rows with the highest bounds."""
    first = np.argpartition(upper, -k)[-k:] if 0 < k < len(upper) else np.arange(len(upper))
    return cosines(matrix, _at(first, ordinals), vector)


def reaching(bounds: Bounds, least: float, ordinals: Ordinals | None = None) -> NDArray[np.intp]:
    """The rows with a bound of at least `least`, ascending, where `bounds` are those of all rows, or of some."""
    return _at(np.flatnonzero(bounds >= _below(least)), ordinals)


def cosines(matrix: NDArray[np.float32], ordinals: NDArray[np.intp], vector: Vector) -> Cosines:
    """Inner products in float64; the order of summation depends on the dimension alone."""
    found = np.empty(len(ordinals))
    step = max(1, AT_ONCE // matrix.shape[1])
    wide = vector.astype(np.float64)
    for start in range(0, len(found), step):
        some = slice(start, start + step)
        found[some] = np.multiply(matrix[ordinals[some]], wide).sum(axis=1)
    return found


def _below(number: float) -> np.float32:
    """A float32 that is at most a number."""
    below: np.float32 = np.nextafter(np.float32(number), np.float32(-np.inf))
    return below


def _at(places: NDArray[np.intp], ordinals: Ordinals | None) -> NDArray[np.intp]:
    return places if ordinals is None else ordinals[places].astype(np.intp)
