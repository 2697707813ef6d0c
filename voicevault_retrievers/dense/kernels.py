"""The loops that numba compiles. Imported only on use, since importing numba takes half a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled
from voicevault_retrievers.core.kernels import nearly_kth


@compiled
def scan(
    codes: Any, scales: Any, residuals: Any, levels: Any, base: Any, step: Any, slack: Any, length: Any, ordinals: Any,
    bounds: Any,
) -> None:  # fmt: skip
    """Write a bound for each row of `ordinals`, or for all rows where there are none.

    `levels` (int16) times `step` approximates the query, whose length is `length`; `slack` bounds the error for a row
    of scale 1, and `base` is common to all rows. The sums fit int32. The casts are explicit, because numba would widen
    the sums and halve the multiplications per instruction.
    """
    for i in range(len(bounds)):
        at = i if len(ordinals) == 0 else np.int64(ordinals[i])
        row, total = codes[at], np.int32(0)
        for j in range(len(levels)):
            total = np.int32(total + np.int32(np.int32(row[j]) * np.int32(levels[j])))
        bounds[i] = base + scales[at] * (step * total + slack) + length * residuals[at]


@compiled
def nearest(
    matrix: Any, wide: Any, bounds: Any, chosen: Any, error: Any, floor: Any, ordinals: Any, cosines: Any
) -> Any:
    """`rescoring.nearest` of the `chosen` rows, or of all rows where there are none; `wide` is the vector in float64.

    Writes as many as fit in `ordinals`. Returns their number, and the ordinals of all rows that were read; -1 and none
    where fewer bounds are above 0, which `nearly_kth` cannot tell apart.
    """
    k = len(ordinals)
    border = np.float64(nearly_kth(bounds, k))
    if k > 0 and border <= 0.0:
        return -1, np.empty(0, np.int64)
    border = max(border, floor - error)
    first = _reaching(bounds, border)
    found, products, least = np.empty(len(first)), np.empty(len(wide)), floor
    for j in range(len(first)):
        found[j] = _cosine(matrix, wide, chosen, first[j], products)
    if 0 < k <= len(first):
        least = max(least, found[_falling(found)[k - 1]])
    least -= error
    near = _reaching(bounds, least if least < border else border)  # includes the first ones, even where one is NaN
    every, at = np.empty(len(near)), 0
    for j in range(len(near)):
        if bounds[near[j]] >= border:
            every[j] = found[at]
            at += 1
        else:
            every[j] = _cosine(matrix, wide, chosen, near[j], products)
    for j in range(len(near)):
        near[j] = _row(chosen, near[j])
    order = _falling(every)
    count = min(k, len(near))
    for j in range(count):
        ordinals[j], cosines[j] = near[order[j]], every[order[j]]
    return count, near


@compiled
def _row(chosen: Any, place: Any) -> Any:
    """The ordinal of a chosen row, or of any row where none are."""
    return place if len(chosen) == 0 else np.int64(chosen[place])


@compiled
def _reaching(bounds: Any, least: Any) -> Any:
    """The positions of the bounds that are at least a number, ascending."""
    count, used = 0, 0
    for at in range(len(bounds)):
        count += bounds[at] >= least
    found = np.empty(count, np.int64)
    for at in range(len(bounds)):
        if bounds[at] >= least:
            found[used] = at
            used += 1
    return found


@compiled
def _falling(numbers: Any) -> Any:
    """The positions of numbers by falling number, equal ones ascending."""
    return np.argsort(-numbers, kind="mergesort")


@compiled
def _cosine(matrix: Any, wide: Any, chosen: Any, place: Any, products: Any) -> Any:
    """`rescoring.cosines` of one row, to the bit; `products` is room for them."""
    row = matrix[_row(chosen, place)]
    for j in range(len(wide)):
        products[j] = np.float64(row[j]) * wide[j]
    return 0.0 + _sum(products)  # NumPy's sums begin with 0 too, so that none is -0


@compiled
def _sum(numbers: Any) -> Any:
    """The sum in NumPy's order, which is pairwise beyond 128 numbers and in eight lanes before. Overwrites numbers."""
    count, total = len(numbers), 0.0
    if count > 128:
        half = count // 2 - count // 2 % 8
        return _sum(numbers[:half]) + _sum(numbers[half:])
    used = count - count % 8
    if used > 0:
        lanes = numbers[:8]
        for start in range(8, used, 8):
            more = numbers[start : start + 8]
            for lane in range(8):
                lanes[lane] += more[lane]
        total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
    for at in range(used, count):
        total += numbers[at]
    return total
