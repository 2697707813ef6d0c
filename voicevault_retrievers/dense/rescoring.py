"""The exact k nearest rows: bounds of their inner products select candidates, which are summed again in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.compiled import BESIDE, FEW, MANY, installed
from voicevault_retrievers.core.listing import kth_highest
from voicevault_retrievers.core.selection import Ordinals
from voicevault_retrievers.core.types import Vector

Bounds: TypeAlias = NDArray[np.float32]
Cosines: TypeAlias = NDArray[np.float64]

AT_ONCE = 1 << 16
"""The count of numbers that are converted at once: few enough for a core's cache and for malloc's retained memory."""
LARGE = 1 << 22
"""The count of numbers in a matrix from which its searches are compiled after few of them."""
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


def nearest(
    matrix: NDArray[np.float32],
    vector: Vector,
    bounds: Bounds,
    k: int,
    ordinals: Ordinals | None = None,
    *,
    error: float = 0.0,
    floor: float = -math.inf,
) -> tuple[NDArray[np.intp], Cosines]:
    """The ordinals and cosines of the k nearest of some rows, or of all, best first, ties by ascending ordinal.

    A cosine exceeds its bound by at most `error`. Rows with a cosine below `floor` may be missing. The cosines of the
    rows with the k highest bounds (by machine code: with at least these) are computed first: the k-th highest of them
    is at most that of the k-th nearest row, so that it excludes the rows with lower bounds.
    """
    k = max(0, min(k, len(bounds)))
    if k == 0:
        return np.empty(0, np.intp), np.empty(0)
    flags = matrix.flags
    key = "nearest", flags.writeable, flags.c_contiguous, ordinals is None or ordinals.flags.writeable
    step = partial(_compiled, matrix, vector, bounds[:0], 0, ordinals, error, floor)  # reads no row
    if installed() and BESIDE.ready(key, [step], FEW if matrix.size >= LARGE else MANY):
        compiled = _compiled(matrix, vector, bounds, k, ordinals, error, floor)
        if compiled is not None:
            return compiled
    border = max(kth_highest([bounds], k), floor - error)
    first = np.flatnonzero(bounds >= border)  # to a float32 near it, and none lies between
    found = cosines(matrix, _at(first, ordinals), vector)
    least = max(kth_highest([found], k), floor) - error
    rest = np.flatnonzero(bounds >= least)
    rest = rest[bounds[rest] < border]
    near = _at(np.concatenate([first, rest]), ordinals)
    found = np.concatenate([found, cosines(matrix, near[len(first) :], vector)])
    top = np.lexsort((near, -found))[:k]
    return near[top], found[top]


def warm(matrix: NDArray[np.float32]) -> None:
    """Compile the machine code of `nearest` for a matrix, and cache it. MissingExtraError without numba."""
    _compiled(matrix, np.zeros(matrix.shape[1], np.float32), np.empty(0, np.float32), 0, None, 0.0, 0.0)


def _compiled(
    matrix: NDArray[np.float32],
    vector: Vector,
    bounds: Bounds,
    k: int,
    ordinals: Ordinals | None,
    error: float,
    floor: float,
) -> tuple[NDArray[np.intp], Cosines] | None:
    """`nearest` by machine code; None where only numpy can tell."""
    from voicevault_retrievers.dense import kernels

    near, found = np.empty(k, np.intp), np.empty(k)
    chosen = np.empty(0, np.uint32) if ordinals is None else ordinals
    wide = vector.astype(np.float64)
    count, read = kernels.nearest(np.asarray(matrix), wide, bounds, chosen, error, floor, near, found)
    if count < 0:
        return None
    check = getattr(matrix, "check_each", None)  # rows of a file, which numpy checks as it takes them
    if check is not None:
        check(read)
    return near[:count], found[:count]


def cosines(matrix: NDArray[np.float32], ordinals: NDArray[np.intp], vector: Vector) -> Cosines:
    """Inner products in float64; the order of summation depends on the dimension alone."""
    found = np.empty(len(ordinals))
    step = max(1, AT_ONCE // matrix.shape[1])
    wide = vector.astype(np.float64)
    for start in range(0, len(found), step):
        some = slice(start, start + step)
        rows = matrix[ordinals[some]].astype(np.float64)
        rows *= wide
        found[some] = rows.sum(axis=1)
    return found


def _at(places: NDArray[np.intp], ordinals: Ordinals | None) -> NDArray[np.intp]:
    return places if ordinals is None else ordinals[places].astype(np.intp)
