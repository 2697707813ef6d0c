"""One pass over the rows of a matrix for all queries that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.execution.baton import PATIENCE
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense import rescoring

MOST = 16
"""Queries that share a pass: each needs room for a number a row."""


@dataclass(eq=False)
class _Asked:
    vector: Vector
    products: NDArray[np.float32] | None = None


class Passes:
    """Inner products of vectors with all rows, in float32.

    Whoever comes first reads the matrix at once; those who come meanwhile wait, and one of them reads it for all.
    In what order a product is summed depends on who else asks, so it may differ in its last bits.
    """

    def __init__(self, matrix: NDArray[np.float32]) -> None:
        self._matrix = matrix
        self._changed = threading.Condition()
        self._reading = False
        self._waiting: list[_Asked] = []

    def __reduce__(self) -> tuple[type[Passes], tuple[NDArray[np.float32]]]:
        return Passes, (self._matrix,)

    def products_each(self, vectors: Sequence[Vector]) -> Sequence[NDArray[np.float32]]:
        """The inner products of each of several vectors: in one pass, where there are at most `MOST`."""
        if len(vectors) == 1:
            return [self.products(vectors[0])]
        groups = [vectors[at : at + MOST] for at in range(0, len(vectors), MOST)]
        return [row for group in groups for row in np.stack(group) @ self._matrix.T]

    def products(self, vector: Vector) -> NDArray[np.float32]:
        """The inner product of a vector with each row."""
        mine = _Asked(vector)
        with self._changed:
            self._waiting.append(mine)
            while self._reading and mine.products is None:
                if not self._changed.wait(PATIENCE):
                    break  # whoever reads may be lost: after a fork it is
            if mine.products is not None:
                return mine.products
            if mine in self._waiting:
                self._waiting.remove(mine)
            others, self._waiting = self._waiting[: MOST - 1], self._waiting[MOST - 1 :]
            self._reading = True
        try:
            if not others:
                mine.products = alone = rescoring.products(self._matrix, vector)
                return alone
            together = [mine, *others]
            found = np.stack([asked.vector for asked in together]) @ self._matrix.T
            for asked, row in zip(together, found, strict=True):
                asked.products = row
            own: NDArray[np.float32] = found[0]
            return own
        finally:
            with self._changed:
                self._waiting += [asked for asked in others if asked.products is None]
                self._reading = False
                self._changed.notify_all()
