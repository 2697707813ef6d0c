"""Analysed documents as numbers: what an index is built from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Analyzed:
    """The terms of d documents, t terms in all.

    `vocabulary` holds the distinct terms, in any order; `terms` (t) their numbers in it, document after document, in
    the order of each text, repeats kept; `ends` (d) where each document's terms end.
    """

    vocabulary: Sequence[str]
    terms: NDArray[np.uint32]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[Iterable[str]]) -> Analyzed:
        """Documents whose terms are given as strings."""
        numbers: dict[str, int] = {}
        flat: list[int] = []
        ends: list[int] = []
        for terms in documents:
            flat.extend([numbers.setdefault(term, len(numbers)) for term in terms])
            ends.append(len(flat))
        return cls(list(numbers), np.array(flat, dtype=np.uint32), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many terms each document has."""
        return np.diff(self.ends, prepend=0)

    def document(self, number: int) -> list[str]:
        """The terms of one document."""
        start = int(self.ends[number - 1]) if number else 0
        return [self.vocabulary[term] for term in self.terms[start : int(self.ends[number])].tolist()]
