"""Passes over all rows of an index, which waiting queries share."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.execution.baton import PATIENCE
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.dense.matrix_cache import MatrixCache
from voicevault_retrievers.dense.rescoring import Bounds

MOST = 16
"""The most queries that share a pass: each needs one number per row."""
SHARED_FROM = 1 << 20
"""The count of numbers in all matrices from which queries share a pass; fewer are read sooner than others wait."""


def products(vectors: Sequence[Vector], matrices: Sequence[NDArray[np.float32]]) -> Sequence[Sequence[Bounds]]:
    """For each matrix the inner products of each vector with its rows; passes over large matrices are shared."""
    if sum(matrix.size for matrix in matrices) < SHARED_FROM:
        return [_products(matrix, vectors) for matrix in matrices]
    return Passes.over(matrices).products(vectors, matrices)


class _Asked:
    """Vectors, and by the id of each matrix their products with it: one for each vector."""

    def __init__(self, vectors: Sequence[Vector], matrices: Sequence[NDArray[np.float32]]) -> None:
        self.vectors, self.matrices = vectors, matrices
        self.products: dict[int, list[Bounds]] = {}

    @property
    def answered(self) -> bool:
        return all(id(matrix) in self.products for matrix in self.matrices)


class Passes:
    """Inner products of vectors with all rows of some matrices, in float32.

    The first thread reads its matrices at once. Threads that come meanwhile wait, and one of them reads theirs for all,
    each matrix once: threads that read different segments at the same time would share nothing, and wait for each
    other's threads of BLAS. Sharing changes the order of summation, so the last bits of a product may differ.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading = False
        self._waiting: list[_Asked] = []

    @classmethod
    def over(cls, matrices: Sequence[NDArray[np.float32]]) -> Passes:
        """The passes of all searches that read the largest of the matrices, of whatever commit."""
        return _PASSES.get(max(matrices, key=len), "passes", cls)

    def products(self, vectors: Sequence[Vector], matrices: Sequence[NDArray[np.float32]]) -> list[list[Bounds]]:
        """For each matrix the inner products of each vector with its rows."""
        groups = [_Asked(vectors[at : at + MOST], matrices) for at in range(0, len(vectors), MOST)]
        for group in groups:
            self._answer(group)
        return [[row for group in groups for row in group.products[id(matrix)]] for matrix in matrices]

    def _answer(self, mine: _Asked) -> None:
        with self._changed:
            self._waiting.append(mine)
            while self._reading and not mine.answered:
                if not self._changed.wait(PATIENCE):
                    break  # the reading thread may be lost, for example after a fork
            if mine.answered:
                return
            others = self._join(mine)
            self._reading = True
        try:
            _read([mine, *others])
        except Exception:
            if not mine.answered:
                raise  # else it is of a matrix of the others, who will read it themselves
        finally:
            with self._changed:
                self._waiting += [asked for asked in others if not asked.answered]
                self._reading = False
                self._changed.notify_all()

    def _join(self, mine: _Asked) -> list[_Asked]:
        """Take from those who wait this one, and the first others for whom there is room."""
        waiting = [asked for asked in self._waiting if asked is not mine]
        room, count = MOST - len(mine.vectors), 0
        while count < len(waiting) and (room := room - len(waiting[count].vectors)) >= 0:
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]


def _read(together: Sequence[_Asked]) -> None:
    matrices = {id(matrix): matrix for asked in together for matrix in asked.matrices}
    for key, matrix in matrices.items():
        those = [asked for asked in together if any(one is matrix for one in asked.matrices)]
        found = iter(_products(matrix, [vector for asked in those for vector in asked.vectors]))
        for asked in those:
            asked.products[key] = [next(found) for _ in asked.vectors]


def _products(matrix: NDArray[np.float32], vectors: Sequence[Vector]) -> list[Bounds]:
    """The inner products of each of some vectors with the rows of a matrix, which is read once for all."""
    if len(vectors) == 1:
        return [rescoring.products(matrix, vectors[0])]
    return list(rescoring.products(matrix, np.stack(vectors)))


_PASSES = MatrixCache()
