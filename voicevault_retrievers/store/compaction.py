"""The content of a segment merged from others; `lexical.merge_policy` chooses which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.lexical import builder
from voicevault_retrievers.lexical.builder import Moved
from voicevault_retrievers.lexical.postings import Numbers, Postings
from voicevault_retrievers.store.part import SearchedPart

ROWS = 4096
"""How many vectors are copied at once."""


@dataclass(frozen=True, eq=False)
class Merged:
    """The live chunks of some parts as the chunks of one segment, by ascending id."""

    parts: Sequence[SearchedPart]

    @cached_property
    def order(self) -> tuple[Numbers, Numbers]:
        """For each chunk, the number of its part and its ordinal there."""
        return _order([part.rows for part in self.parts])

    @cached_property
    def parent_order(self) -> tuple[Numbers, Numbers]:
        """For each parent, the number of its part and its ordinal there."""
        return _order([part.parents or Rows(()) for part in self.parts])

    def __len__(self) -> int:
        return len(self.order[0])

    @property
    def chunks(self) -> Sequence[Chunk]:
        numbers, ordinals = self.order
        return Lazy(len(self), lambda at: self.parts[numbers[at]].rows.chunks[ordinals[at]])

    @property
    def parents(self) -> Sequence[Chunk]:
        tables = [part.parents or Rows(()) for part in self.parts]
        numbers, ordinals = self.parent_order
        return Lazy(len(numbers), lambda at: tables[numbers[at]].chunks[ordinals[at]])

    @property
    def postings(self) -> Postings:
        only = self.parts[0].lexical if len(self.parts) == 1 else None
        if only is not None and only.rows.live is None and isinstance(only.postings, Postings):
            return only.postings
        numbers, ordinals = self.order
        moved: list[Moved] = []
        for number, part in enumerate(self.parts):
            places = np.zeros(len(part.rows), dtype=np.int64)
            places[ordinals[numbers == number]] = np.flatnonzero(numbers == number)
            moved.append(Moved(part.lexical.postings, places, part.rows.live))
        return builder.merge(moved, len(self))

    @property
    def vectors(self) -> Iterator[NDArray[np.float32]]:
        """The vectors in blocks of rows; no blocks where there is no embedder."""
        matrices = [part.vectors for part in self.parts if part.vectors is not None]
        numbers, ordinals = self.order
        for start in (range(0, len(self), ROWS) or [0]) if matrices else ():
            own, at = numbers[start : start + ROWS], ordinals[start : start + ROWS]
            block = np.empty((len(own), matrices[0].shape[1]), dtype=np.float32)
            for number, matrix in enumerate(matrices):
                block[own == number] = matrix[at[own == number]]
            yield block


def _order(tables: Sequence[Rows]) -> tuple[Numbers, Numbers]:
    """The live chunks of all tables by ascending id: for each, the number of its table and its ordinal there."""
    entries = sorted((rows.ids[at], number, at) for number, rows in enumerate(tables) for at in rows.living)
    numbers, ordinals = (np.array([entry[place] for entry in entries], dtype=np.int64) for place in (1, 2))
    return numbers, ordinals
