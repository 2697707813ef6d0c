"""The scan that numba compiles. Imported where it is called only, since importing numba takes half a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled


@compiled
def scan(
    codes: Any, scales: Any, residuals: Any, levels: Any, base: Any, step: Any, slack: Any, length: Any, ordinals: Any,
    bounds: Any,
) -> None:  # fmt: skip
    """Write a bound for each row of `ordinals`, or for each row where those are none.

    `levels` (int16) times `step` is nearly the query, `length` its own; `slack` is what that may lose of a row of
    scale 1, and `base` what every row has. The sums fit int32, which is written out, for numba would widen them and so
    halve what one instruction multiplies.
    """
    for i in range(len(bounds)):
        at = i if len(ordinals) == 0 else np.int64(ordinals[i])
        row, total = codes[at], np.int32(0)
        for j in range(len(levels)):
            total = np.int32(total + np.int32(np.int32(row[j]) * np.int32(levels[j])))
        bounds[i] = base + scales[at] * (step * total + slack) + length * residuals[at]
