"""Removal of near-duplicate texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.rerank.likeness import By, Comparing
from voicevault_retrievers.rerank.mmr import share

_AT_ONCE = 256
_ROUNDING = 1e-6
"""More than the rounding errors of a cosine, so that the order of summation decides nothing."""


class NearDuplicates(Comparing):
    """Drops each hit whose text is nearly equal to that of a kept hit before it; the others keep their order.

    Nearly equal means a similarity of `threshold` or more, in [0, 1]; None means 0.8 for shingles and 0.95 for cosines.
    Deeper hits fill up k; where none are left there are fewer. For `by` and `timeout` see `Comparing`.
    """

    def __init__(
        self,
        threshold: float | None = None,
        *,
        by: By = "shingles",
        timeout: float | None = None,
        name: str = "near_duplicates",
    ) -> None:
        super().__init__(by, timeout)
        self.threshold = None if threshold is None else share("threshold", threshold)
        self.name = name

    def needs(self, k: int) -> int:
        return 2 * k

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        rows = self.by.rows(ranking.hits)
        limit = (self.by.near if self.threshold is None else self.threshold) - _ROUNDING
        kept = np.zeros(len(ranking), dtype=np.bool_)
        for start in range(0, len(ranking), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(ranking))
            alike = np.triu(self.by.table(rows[:stop], start) >= limit, 1 - start)  # each hit and those before it
            found = alike.any(axis=0)
            kept[start:stop] = ~found
            for at in np.flatnonzero(found):
                kept[start + at] = not (alike[:, at] & kept[:stop]).any()
        return replace(ranking, hits=tuple(hit for hit, keep in zip(ranking, kept.tolist(), strict=True) if keep))

    def __repr__(self) -> str:
        return f"NearDuplicates({self.threshold}, {self._recipe()})"
