"""A searchable part of a knowledge base: the chunks of one segment or of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense.exact import VectorPart
from voicevault_retrievers.dense.int8 import Codes
from voicevault_retrievers.lexical.segment import IndexSegment


@dataclass(frozen=True, eq=False)
class SearchedPart:
    """Chunks with their postings and vectors, by the same ordinals; and parents, which are not searched.

    `make` gives the postings when they are first needed, `coded` the codes of the vectors. `number` is that of the
    segment, -1 for the log.
    """

    rows: Rows
    vectors: NDArray[np.float32] | None
    make: Callable[[], IndexSegment]
    parents: Rows | None = None
    coded: Callable[[], Codes | None] = lambda: None
    number: int = -1

    @cached_property
    def lexical(self) -> IndexSegment:
        return self.make()

    @property
    def codes(self) -> Codes | None:
        return self.coded()

    @property
    def dense(self) -> VectorPart | None:
        return None if self.vectors is None else VectorPart(self.rows, self.vectors, self.codes)

    def renamed(self, rows: Rows) -> SearchedPart:
        """The part under other ids."""
        return replace(self, rows=rows, make=lambda: replace(self.lexical, rows=rows), parents=None)
