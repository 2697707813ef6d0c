"""What is derived from a matrix, kept while the matrix lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.mutex import Mutex

T = TypeVar("T")


class MatrixCache:
    """Values derived from a matrix, kept while the matrix lives: a channel is made anew after each commit."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[Hashable, Any]] = {}
        self._mutex = Mutex()

    def get(self, matrix: NDArray[np.float32], key: Hashable, make: Callable[[], T]) -> T:
        """The value derived from a matrix under a key; made now where it is missing."""
        with self._mutex:
            if id(matrix) not in self._kept:
                self._kept[id(matrix)] = {}
                finalize(matrix, self._kept.pop, id(matrix), None).atexit = False
            own = self._kept[id(matrix)]
            if key not in own:
                own[key] = make()
            made: T = own[key]
            return made

    def kept(self, matrix_id: int) -> dict[Hashable, Any]:
        """The values kept for the matrix of this id."""
        return self._kept.get(matrix_id, {})
