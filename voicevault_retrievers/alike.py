"""How alike a channel finds some chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE = 256
"""Chunks that are compared."""


@dataclass(frozen=True, eq=False)
class Alike:
    """Chunks searched for by chunks.

    `scores`, of shape (chunks, chunks), says in row i how a channel scores each when it is asked for chunk i; `found`
    which of them match at all.
    """

    ids: tuple[str, ...]
    scores: NDArray[np.float64]
    found: NDArray[np.bool_]

    def among(self, ids: Sequence[str]) -> Alike:
        """The same of some of its chunks, in their order."""
        if tuple(ids) == self.ids:
            return self
        known = {chunk_id: at for at, chunk_id in enumerate(self.ids)}
        places = np.ix_(*2 * ([known[chunk_id] for chunk_id in ids],))
        return Alike(tuple(ids), self.scores[places], self.found[places])
