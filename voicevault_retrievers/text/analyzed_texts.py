"""Analysed documents as arrays, from which an index is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

ROWS = 1 << 16
"""The number of documents that are processed at a time."""


@dataclass(frozen=True, eq=False)
class Analyzed:
    """The terms of d documents, t terms in all.

    `vocabulary` holds the distinct terms, in any order; `terms` (t) their numbers in the vocabulary, document after
    document, in the order of each text, with repeats; `ends` (d) where each document's terms end.
    """

    vocabulary: Sequence[str]
    terms: NDArray[np.uint32]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[Iterable[str]]) -> Analyzed:
        """Documents from terms as strings."""
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
        """The number of terms of each document."""
        return np.diff(self.ends, prepend=0)

    @property
    def languages(self) -> NDArray[np.uint32]:
        """The languages of each document's terms: bit c is set where a term begins with the control character c."""
        bits = np.array([language(term) for term in self.vocabulary], dtype=np.uint32)
        found = np.zeros(len(self), dtype=np.uint32)
        lengths = self.lengths
        for first in range(0, len(self) if bits.any() else 0, ROWS):
            own = first + np.flatnonzero(lengths[first : first + ROWS])
            starts = self.ends[own] - lengths[own]
            if len(own):
                stream = bits[self.terms[starts[0] : self.ends[own[-1]]]]
                found[own] = np.bitwise_or.reduceat(stream, starts - starts[0])
        return found

    def document(self, number: int) -> list[str]:
        """The terms of one document."""
        start = int(self.ends[number - 1]) if number else 0
        return [self.vocabulary[term] for term in self.terms[start : int(self.ends[number])].tolist()]


def language(term: str) -> int:
    """The bit of the control character that a term begins with; 0 for any other first character."""
    return 1 << ord(term[0]) if "\x01" <= term[:1] < " " else 0


def languages_of(terms: Iterable[str]) -> int:
    """The bits of `language` of several terms."""
    return reduce(or_, map(language, terms), 0)


def tags_of(languages: int) -> str:
    """The control characters of the set bits."""
    return "".join(chr(code) for code in range(1, 32) if languages >> code & 1)
