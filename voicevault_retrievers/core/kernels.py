"""A loop that numba compiles for several indices. Imported only on use, since importing numba takes half a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicevault_retrievers._support.compiled import compiled

CLOSE, SIXTEENTH = 1 << 12, 4 << 23
"""As differences of float32 bits: less than .1 % of a number, and from a number to its sixteenth."""


@compiled
def nearly_kth(scores: Any, k: Any) -> Any:
    """A score that at least k of some float32 scores reach, within .1 % of the highest such; 0 where fewer are above 0.

    Numbers above 0 are in the order of their bits, which bisection halves.
    """
    bits, highest = scores.view(np.int32), np.int32(0)
    for at in range(len(bits)):
        if bits[at] > highest:
            highest = bits[at]
    middle_bits = np.empty(1, np.int32)
    middle_score = middle_bits.view(np.float32)
    low, high = np.int64(0), np.int64(highest) + 1
    middle = max(low, high - SIXTEENTH)
    while high - low > CLOSE:
        middle_bits[0] = middle
        least, reaching = middle_score[0], 0
        for at in range(len(scores)):
            reaching += scores[at] >= least
        if reaching >= k:
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    middle_bits[0] = low
    return middle_score[0]
