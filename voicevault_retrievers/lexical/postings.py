"""One segment's inverted index: for each term, the documents that contain it, and its frequencies. Immutable.

Ordinals are split into blocks of 65,536, so that a posting takes two bytes for the ordinal and, nearly always, one for
the frequency. A run is the postings of one term in one block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.compiled import kind

Unsigned: TypeAlias = NDArray[np.unsignedinteger]
Numbers: TypeAlias = NDArray[np.int64]
Places: TypeAlias = NDArray[np.integer]
Mask: TypeAlias = NDArray[np.bool_]
ReadArray: TypeAlias = Callable[[str], NDArray[Any]]
Guard: TypeAlias = Callable[[int, int], None]
WriteArray: TypeAlias = Callable[[str, NDArray[Any]], None]

ARRAYS = (
    "terms", "term_ends", "term_keys", "term_runs", "run_blocks", "run_starts", "low", "frequencies", "lengths",
    "languages", "bounded", "bounds",
)  # fmt: skip
BLOCK_BITS = 16
KEY_BYTES = 8
BOUNDED = 64
KNOWN = 1 << 16
CLASSES = (1, 2, 4)
"""The upper ends of the frequency classes of postings: 1, 2, 3 to 4, and more."""


class PostingsSource(Protocol):
    """A searchable source of postings of documents numbered from 0."""

    @property
    def lengths(self) -> Unsigned:
        """The number of terms of each document, repeats included."""

    @property
    def count(self) -> int:
        """The number of postings."""

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""

    def __len__(self) -> int: ...

    @property
    def total_length(self) -> int:
        """The number of terms of all documents, repeats included."""

    @property
    def languages(self) -> Unsigned:
        """The languages of each document's terms: bit c is set where a term begins with the control character c."""

    def look(self, terms: Sequence[str]) -> list[tuple[int, int]]:
        """The number and the document frequency of each term; (-1, 0) for a term that no document contains."""

    def find(self, number: int) -> tuple[NDArray[np.uint32], Unsigned]:
        """The ordinals of a term's documents, ascending, and its frequency in each; empty for -1."""

    def terms_of(self, ordinal: int) -> Numbers:
        """The numbers of a document's terms."""

    def triples(self) -> tuple[Numbers, Numbers, Unsigned]:
        """Term number, ordinal and frequency of every posting."""

    def vocabulary(self) -> list[bytes]:
        """The terms in the order of their numbers, as UTF-8."""

    def beginning(self, prefix: str) -> Numbers:
        """The numbers of the terms that begin with a prefix."""

    def spelled(self, numbers: Numbers) -> list[str]:
        """The terms with these numbers."""


class Arrays(NamedTuple):
    """The arrays of `Postings` that searches read."""

    term_runs: NDArray[np.uint32]
    run_blocks: NDArray[np.uint16]
    run_starts: Places
    low: NDArray[np.uint16]
    frequencies: Unsigned
    lengths: Unsigned
    bounded: NDArray[np.uint32]
    bounds: Unsigned


@dataclass(frozen=True, eq=False)
class Postings:
    """Arrays of one segment with t terms, r runs, p postings and d documents.

    `terms` holds the sorted terms as UTF-8, one after the other, `term_ends` (t) the end of each, `term_keys` (t) the
    first eight bytes of each as a number. `term_runs` (t + 1) has the start of each term's runs, `run_blocks` (r) the
    block of each run, `run_starts` (r + 1) the start of its postings in `low` (p; ascending ordinals, relative to the
    block) and `frequencies` (p). `lengths` (d) counts each document's terms, repeats included.

    `bounded` lists the terms of at least `BOUNDED` documents. `bounds` (bounded, classes, 2) has for each class of
    frequencies the highest frequency and the smallest length among its documents, 0 where there are none: pairs instead
    of scores, because formulas and mean lengths change.

    `guard`, where there is one, is called with the half-open range of postings before they are read; it raises where
    they are damaged.
    """

    terms: NDArray[np.uint8]
    term_ends: Places
    term_keys: NDArray[np.uint64]
    term_runs: NDArray[np.uint32]
    run_blocks: NDArray[np.uint16]
    run_starts: Places
    low: NDArray[np.uint16]
    frequencies: Unsigned
    lengths: Unsigned
    languages: Unsigned
    bounded: NDArray[np.uint32]
    bounds: Unsigned
    guard: Guard | None = None

    def save(self, write: WriteArray) -> None:
        """Write every array as a .npy file under its name."""
        for name in ARRAYS:
            write(f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, read: ReadArray, guard: Guard | None = None) -> Postings:
        """Postings from arrays that `read` returns by file name, for instance memory-mapped."""
        return cls(**{name: read(f"{name}.npy") for name in ARRAYS}, guard=guard)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def count(self) -> int:
        """The number of postings."""
        return len(self.low)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    def check(self) -> None:
        """Check all postings before they are read. Raises where one is damaged."""
        if self.guard:
            self.guard(0, self.count)

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The `Arrays` that the compiled loops read, in a plain tuple, which numba reads in half the time."""
        return tuple(getattr(self, name) for name in Arrays._fields)

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What searches keep for later ones."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in (*ARRAYS, "guard")}

    @cached_property
    def kind(self) -> Hashable:
        """The types of the arrays, by which the compiled loops are specialised."""
        return kind(self.arrays)

    @cached_property
    def total_length(self) -> int:
        """The number of terms of all documents, repeats included."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def longest(self) -> int:
        """The number of terms of the longest document, repeats included."""
        return int(self.lengths.max(initial=0))

    def numbers(self, terms: Sequence[str]) -> Numbers:
        """The position of each term in sorted order; -1 for a term that no document contains."""
        encoded = [term.encode("utf-8", "surrogatepass") for term in terms]
        keys = np.array([int.from_bytes(term[:8].ljust(8, b"\0"), "big") for term in encoded], dtype=np.uint64)
        starts = np.searchsorted(self.term_keys, keys)
        found = [self._place(term, key, at) for term, key, at in zip(encoded, keys, starts.tolist(), strict=True)]
        return np.array(found, dtype=np.int64)

    def look(self, terms: Sequence[str]) -> list[tuple[int, int]]:
        """The number and the document frequency of each term; (-1, 0) for a term that no document contains."""
        found = [self._known.get(term) for term in terms]
        if None not in found:
            return found  # type: ignore[return-value]  # no item is None
        numbers = self.numbers(terms)
        if self.guard:
            for number in numbers[numbers >= 0].tolist():
                self.guard(*self.run_starts[self.term_runs[number : number + 2]].tolist())
        new = list(zip(numbers.tolist(), self.counts(numbers).tolist(), strict=True))
        if len(self._known) > KNOWN:
            self._known.clear()
        self._known.update(zip(terms, new, strict=True))
        return new

    @cached_property
    def _known(self) -> dict[str, tuple[int, int]]:
        """A cache of term lookups: finding a term among millions takes longer than scoring it."""
        return {}

    def _place(self, term: bytes, key: np.uint64, start: int) -> int:
        if start < len(self.term_ends) and self._bytes(start) == term:
            return start
        stop = int(np.searchsorted(self.term_keys, key, side="right"))
        at = bisect_left(range(stop), term, lo=start, key=self._bytes)
        return at if at < stop and self._bytes(at) == term else -1

    def _bytes(self, number: int) -> bytes:
        start = int(self.term_ends[number - 1]) if number else 0
        return self.terms[start : int(self.term_ends[number])].tobytes()

    def vocabulary(self) -> list[bytes]:
        """All terms, sorted, as UTF-8."""
        text = self.terms.tobytes()
        ends = self.term_ends.tolist()
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def beginning(self, prefix: str) -> Numbers:
        """The numbers of the terms that begin with a prefix; they are adjacent."""
        start, everything = prefix.encode("utf-8", "surrogatepass"), range(len(self.term_ends))
        first = bisect_left(everything, start, key=self._bytes)
        stop = bisect_right(everything, start, lo=first, key=lambda number: self._bytes(number)[: len(start)])
        return np.arange(first, stop, dtype=np.int64)

    def spelled(self, numbers: Numbers) -> list[str]:
        """The terms with these numbers."""
        if not len(numbers):
            return []
        ends = self.term_ends[numbers].astype(np.int64)
        starts = np.where(numbers > 0, self.term_ends[numbers - 1], 0).astype(np.int64)
        origin = int(starts.min())
        text = self.terms[origin : int(ends.max())].tobytes()
        places = zip((starts - origin).tolist(), (ends - origin).tolist(), strict=True)
        return [text[start:end].decode("utf-8", "surrogatepass") for start, end in places]

    def documents(self, numbers: Numbers) -> tuple[NDArray[np.uint32], Numbers]:
        """The ordinals of the documents of each of these terms, term after term, and where each term's end."""
        firsts, lasts = self.run_starts[self.term_runs[numbers]], self.run_starts[self.term_runs[numbers + 1]]
        if self.guard:
            for span in zip(firsts.tolist(), lasts.tolist(), strict=True):
                self.guard(*span)
        found = [self.find(number)[0] for number in numbers.tolist()]
        return np.concatenate([np.empty(0, np.uint32), *found]), np.cumsum((lasts - firsts).astype(np.int64))

    def counts(self, numbers: Numbers) -> Numbers:
        """The document frequency of each of these terms; 0 for -1."""
        if not self.count:
            return np.zeros(len(numbers), dtype=np.int64)
        places = np.maximum(numbers, 0)
        counts = self.run_starts[self.term_runs[places + 1]] - self.run_starts[self.term_runs[places]]
        return np.where(numbers < 0, 0, counts.astype(np.int64))

    def find(self, number: int) -> tuple[NDArray[np.uint32], Unsigned]:
        """The ordinals of a term's documents, ascending, and its frequency in each; empty for -1."""
        if number < 0:
            return np.empty(0, np.uint32), self.frequencies[:0]
        runs = slice(int(self.term_runs[number]), int(self.term_runs[number + 1]))
        starts = self.run_starts[runs.start : runs.stop + 1]
        span = slice(int(starts[0]), int(starts[-1]))
        bases = self.run_blocks[runs].astype(np.uint32) << np.uint32(BLOCK_BITS)
        ordinals: Any = np.repeat(bases, np.diff(starts)) + self.low[span]
        return ordinals, self.frequencies[span]

    def triples(self) -> tuple[Numbers, Numbers, Unsigned]:
        """Term number, ordinal and frequency of every posting."""
        self.check()
        per_run = np.diff(self.run_starts)
        terms = np.repeat(np.arange(len(self.term_ends)), np.diff(self.run_starts[self.term_runs]))
        ordinals: Any = np.repeat(self.run_blocks.astype(np.int64) << BLOCK_BITS, per_run) + self.low
        return terms.astype(np.int64, copy=False), ordinals, self.frequencies

    def terms_of(self, ordinal: int) -> Numbers:
        """The numbers of a document's terms; reads every posting."""
        self.check()
        per_run = np.diff(self.run_starts)
        block, low = divmod(ordinal, 1 << BLOCK_BITS)
        at = np.flatnonzero((self.low == low) & np.repeat(self.run_blocks == block, per_run))
        runs = np.searchsorted(self.run_starts, at, side="right") - 1
        return np.searchsorted(self.term_runs, runs, side="right") - 1
