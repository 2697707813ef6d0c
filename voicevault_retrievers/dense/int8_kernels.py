"""The scan that numba compiles. Imported only on use, since importing numba takes half a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled


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
