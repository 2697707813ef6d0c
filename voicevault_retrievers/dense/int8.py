"""Scalar quantisation: rows as int8, which a search reads in place of float32, a quarter of the bytes.

A row x is approximately m + s c, with the mean m of all rows, the row's scale s, and whole numbers c from -127 to 127;
the length r of the residual is stored. By Cauchy and Schwarz the inner product <x, q> is at most <m, q> + s <c, q> + r
|q|. Only rows whose bound reaches the k-th cosine found are compared in float32, so a search by codes finds what a
search without them finds, to the bit. The cost of codes for a model is the number of such rows: `gate` measures it.

Some models have a few dimensions that are large in every row, and would use up most of each scale: with the mean
subtracted, codes of bge-small lose a quarter of what they otherwise would.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.compiled import BESIDE, FEW, installed, kind
from voicevault_retrievers.core.selection import Ordinals
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.dense.rescoring import Bounds
from voicevault_retrievers.errors import ConfigError

TOP = 127
"""The largest code."""
COMPILED_FROM = 1 << 22
"""The number of codes from which numba, where installed, scans them: importing it takes half a second."""
ROUNDING = 1e-6
"""More than the final rounding errors of a bound, relative to its summands."""
PAYS_FROM = 1 << 22
"""The size of a segment, in numbers, from which numpy is no slower with int8; smaller segments fit the caches."""
MANY = 16
"""The number of vectors from which float32 products with all of them are faster than a scan for each."""
LIMIT = 0.05
"""Codes are kept up to this mean share of rows compared for the best 100."""
QUERIES = 32

_ALL: Ordinals = np.empty(0, dtype=np.uint32)


@dataclass(frozen=True, eq=False)
class Codes:
    """Rows of shape (rows, dimension) as int8, with each row's scale and an upper bound of its residual's length.

    `centre`, of shape (dimension,), was subtracted from every row.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    residuals: NDArray[np.float32]
    centre: NDArray[np.float32]

    def __post_init__(self) -> None:
        rows, dimension = self.scales.shape, self.centre.shape
        if self.codes.shape != (*rows, *dimension) or self.residuals.shape != rows or len(rows) != 1:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in self.arrays().items())
            raise ConfigError(f"{shapes} do not join; expected (rows, dimension), (rows,), (rows,), (dimension,)")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Codes:
        """Codes from the mapping that `arrays` returned; other entries are ignored."""
        return cls(arrays["codes"], arrays["scales"], arrays["residuals"], arrays["centre"])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to store, by name."""
        return {"codes": self.codes, "scales": self.scales, "residuals": self.residuals, "centre": self.centre}

    def bounds(self, vector: Vector, ordinals: Ordinals | None = None) -> Bounds:
        """Upper bounds of the inner products of a vector with all rows, or with some."""
        large = self.codes.size >= COMPILED_FROM and installed()
        if large and BESIDE.ready(self._kind, [partial(self._compiled, vector, ordinals)], FEW):
            return self._compiled(vector, ordinals)
        return self._upper(rescoring.products(self.codes, vector, ordinals), vector, ordinals)

    def bounds_each(self, vectors: Sequence[Vector], ordinals: Ordinals | None = None) -> list[Bounds]:
        """`bounds` for each vector; for many the codes are read once."""
        if len(vectors) < MANY:
            return [self.bounds(vector, ordinals) for vector in vectors]
        found = rescoring.products(self.codes, np.stack(vectors), ordinals)
        return [self._upper(own, vector, ordinals) for own, vector in zip(found, vectors, strict=True)]

    def warm(self) -> None:
        """Compile the machine code that scans these codes, and cache it. MissingExtraError without numba."""
        self._compiled(np.zeros(self.codes.shape[1], np.float32), None)

    def _upper(self, products: Bounds, vector: Vector, ordinals: Ordinals | None) -> Bounds:
        """The bounds from the products with the codes."""
        chosen = slice(None) if ordinals is None else ordinals
        slack, length = self._longest * rescoring.rounding(vector), rescoring.length(vector)
        found: Bounds = (products + np.float32(slack)) * self.scales[chosen]
        found += self.residuals[chosen] * np.float32((1 + ROUNDING) * length)
        return found + np.float32(self._base(vector, length))

    def _compiled(self, vector: Vector, ordinals: Ordinals | None) -> Bounds:
        from voicevault_retrievers.dense.kernels import scan

        levels, step, lost = _levels(vector)
        length = rescoring.length(vector)
        slack = self._longest * (lost + ROUNDING * length)
        found = np.empty(len(self.codes) if ordinals is None else len(ordinals), dtype=np.float32)
        arrays = (self.codes, self.scales, self.residuals, levels)
        constants = (self._base(vector, length), step, slack, (1 + ROUNDING) * length)
        scan(*arrays, *constants, _ALL if ordinals is None else ordinals, found)
        return found

    def _base(self, vector: Vector, length: float) -> float:
        """An upper bound of the centre's contribution to every product with a vector of this length."""
        rounding = ROUNDING * self._centre_length * length
        return float(self.centre.astype(np.float64) @ vector.astype(np.float64)) + rounding

    @cached_property
    def _kind(self) -> Hashable:
        return "int8", kind((self.codes, self.scales, self.residuals))

    @cached_property
    def _centre_length(self) -> float:
        return rescoring.length(self.centre)

    @property
    def _longest(self) -> float:
        """An upper bound of the length of a row of codes."""
        return TOP * sqrt(self.codes.shape[1])


@dataclass(frozen=True)
class Gate:
    """Whether codes pay for a segment: the share of its rows that a search compares in float32.

    Mean and worst over `queries` of the segment's own rows, for the best 10 and 100; shares are in [0, 1].
    """

    rows: int
    dimension: int
    queries: int
    mean_at_10: float
    worst_at_10: float
    mean_at_100: float
    worst_at_100: float

    @property
    def passed(self) -> bool:
        """Whether to keep the codes."""
        return self._large and self.mean_at_100 <= LIMIT

    @property
    def _large(self) -> bool:
        return self.rows * self.dimension >= PAYS_FROM

    def __str__(self) -> str:
        verdict = "int8" if self.passed else f"float32, for int8 pays up to {LIMIT:.0%}"
        if not self._large:
            verdict = f"float32, for int8 pays from {-(-PAYS_FROM // self.dimension):,} rows"
        return (
            f"of {self.rows:,} rows, {self.mean_at_10:.2%} are compared again for the best 10 (at most "
            f"{self.worst_at_10:.2%}), {self.mean_at_100:.2%} for the best 100 (at most {self.worst_at_100:.2%}): "
            f"{verdict}"
        )


def quantise(rows: NDArray[np.float32]) -> Codes:
    """Codes of finite rows, of shape (rows, dimension): less their mean, each row's largest absolute value is 127."""
    centre = (rows.sum(axis=0, dtype=np.float64) / max(1, len(rows))).astype(np.float32)
    codes = np.empty(rows.shape, dtype=np.int8)
    scales, residuals = np.empty((2, len(rows)), dtype=np.float32)
    step = max(1, rescoring.AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        block = rows[some].astype(np.float64) - centre
        scales[some] = np.abs(block).max(axis=1) / TOP
        scale = scales[some, None].astype(np.float64)
        levels = np.divide(block, scale, out=np.zeros_like(block), where=scale > 0)
        codes[some] = np.clip(np.rint(levels), -TOP, TOP)
        residuals[some] = np.linalg.norm(block - codes[some] * scale, axis=1)
    return Codes(codes, scales, np.nextafter(residuals, np.float32(np.inf)), centre)


def gate(matrix: NDArray[np.float32], codes: Codes) -> Gate:
    """Search for the nearest of some evenly spaced rows, and measure how many rows are compared."""
    asked = np.unique(np.linspace(0, len(matrix) - 1, min(QUERIES, len(matrix))).astype(np.intp))
    shares = np.zeros((2, max(1, len(asked))))
    for number, vector in enumerate(matrix[asked]):
        for depth, k in enumerate((10, 100)):
            shares[depth, number] = compared(matrix, codes, vector, k) / len(matrix)
    (mean_10, mean_100), (worst_10, worst_100) = shares.mean(axis=1).tolist(), shares.max(axis=1).tolist()
    return Gate(len(matrix), matrix.shape[1], len(asked), mean_10, worst_10, mean_100, worst_100)


def compared(matrix: NDArray[np.float32], codes: Codes, vector: Vector, k: int) -> int:
    """How many rows must be compared in float32: those whose bound reaches the k-th highest cosine."""
    bounds = codes.bounds(vector)
    _, cosines = rescoring.nearest(matrix, vector, bounds, k)
    return int((bounds >= cosines[-1]).sum())


def _levels(vector: Vector) -> tuple[NDArray[np.int16], float, float]:
    """A vector as int16, with its step, and the length of the quantisation error.

    The step is so large that the inner product with any codes fits int32.
    """
    wide = vector.astype(np.float64)
    sizes = np.abs(wide)
    step = max(float(sizes.max()) / 32767, TOP * float(sizes.sum()) / (2**31 - 1 - 64 * len(wide)))
    levels = np.rint(wide / step).astype(np.int16) if step > 0 else np.zeros(len(wide), dtype=np.int16)
    return levels, step, rescoring.length(wide - step * levels)
