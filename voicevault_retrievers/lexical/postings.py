"""One segment's inverted index: for each term, the documents that have it and how often. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Unsigned: TypeAlias = NDArray[np.unsignedinteger]
ReadArray: TypeAlias = Callable[[Path], NDArray[Any]]

ARRAYS = ("terms", "term_ends", "ends", "ordinals", "frequencies", "lengths")


@dataclass(frozen=True, eq=False)
class Postings:
    """Arrays of one segment with t terms, d documents and p postings.

    `terms` holds the sorted terms as UTF-8, one after the other, `term_ends` (t) where each ends; `ends` (t) is where
    each term's postings end in `ordinals` (p, ascending within a term) and `frequencies` (p); `lengths` (d) counts
    each document's terms, repeats included.
    """

    terms: NDArray[np.uint8]
    term_ends: NDArray[np.int64]
    ends: NDArray[np.int64]
    ordinals: NDArray[np.uint32]
    frequencies: Unsigned
    lengths: NDArray[np.uint32]

    @classmethod
    def build(cls, documents: Iterable[Sequence[str]]) -> Postings:
        """Postings of analysed documents, given in the order of their ordinals."""
        numbers: dict[str, int] = {}
        lengths: list[int] = []
        flat: list[int] = []
        for terms in documents:
            lengths.append(len(terms))
            flat.extend([numbers.setdefault(term, len(numbers)) for term in terms])
        ordered = sorted(numbers, key=str.encode)
        rank = np.empty(len(ordered), dtype=np.int64)
        rank[[numbers[term] for term in ordered]] = np.arange(len(ordered))
        owner = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        pairs = rank[np.array(flat, dtype=np.int64)] * max(1, len(lengths)) + owner
        unique, counts = np.unique(pairs, return_counts=True)
        term_of, ordinals = np.divmod(unique, max(1, len(lengths)))
        encoded = [term.encode() for term in ordered]
        return cls(
            terms=np.frombuffer(b"".join(encoded), dtype=np.uint8),
            term_ends=np.cumsum([len(term) for term in encoded], dtype=np.int64),
            ends=np.searchsorted(term_of, np.arange(len(ordered)), side="right").astype(np.int64),
            ordinals=ordinals.astype(np.uint32),
            frequencies=counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
            lengths=np.array(lengths, dtype=np.uint32),
        )

    def save(self, folder: Path) -> None:
        """Write one .npy file per array."""
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path, read: ReadArray) -> Postings:
        """The arrays as `read` gives them, memory-mapped for instance."""
        return cls(**{name: read(folder / f"{name}.npy") for name in ARRAYS})

    def __len__(self) -> int:
        return len(self.lengths)

    def find(self, term: str) -> tuple[NDArray[np.uint32], Unsigned]:
        """The ordinals of a term's documents, and its frequency in each; empty where no document has it."""
        at = self._number(term.encode())
        if at is None:
            return self.ordinals[:0], self.frequencies[:0]
        span = slice(int(self.ends[at - 1]) if at else 0, int(self.ends[at]))
        return self.ordinals[span], self.frequencies[span]

    def document_frequencies(self, live: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Of each term, how many documents have it; of those that are live where a mask is given."""
        if live is None:
            return np.diff(self.ends, prepend=0)
        before = np.concatenate(([0], np.cumsum(live[self.ordinals], dtype=np.int64)))
        return np.diff(before[self.ends], prepend=0)

    def term(self, number: int) -> str:
        """The term of this number, in sorted order."""
        return self._bytes(number).decode()

    def _bytes(self, number: int) -> bytes:
        start = int(self.term_ends[number - 1]) if number else 0
        return self.terms[start : int(self.term_ends[number])].tobytes()

    def _number(self, term: bytes) -> int | None:
        low, high = 0, len(self.term_ends)
        while low < high:
            middle = (low + high) // 2
            if self._bytes(middle) < term:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self.term_ends) and self._bytes(low) == term else None
