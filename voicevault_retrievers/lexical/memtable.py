"""The memtable: recently added documents as unsorted postings, which each search scans.

Scanning a list of some thousand documents is faster than inverting it. Adding a document copies no other document: a
memtable and its extension share arrays, which grow beyond what either reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.rows import best
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.postings import Numbers, Unsigned
from voicevault_retrievers.lexical.vectorised import FoundRows, Wanted
from voicevault_retrievers.text.analyzed_texts import languages_of

UTF8 = ("utf-8", "surrogatepass")


class _Shared:
    """The term frequencies of all documents that were ever added, and the document of each."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.numbers: dict[str, int] = {}
        self.lengths: list[int] = []
        self.languages: list[int] = []
        self.used = 0
        self.terms, self.frequencies, self.owners = (np.empty(1024, dtype=np.uint32) for _ in range(3))

    def append(self, counts: Mapping[str, int]) -> None:
        """Add a document, given the frequency of each of its terms."""
        stop = self.used + len(counts)
        if stop > len(self.terms):
            room = np.zeros(stop, dtype=np.uint32)  # doubles the arrays; readers keep the old ones
            self.terms, self.frequencies = np.append(self.terms, room), np.append(self.frequencies, room)
            self.owners = np.append(self.owners, room)
        written = slice(self.used, stop)
        self.terms[written] = [self.numbers.setdefault(term, len(self.numbers)) for term in counts]
        self.frequencies[written] = list(counts.values())
        self.owners[written] = len(self.lengths)
        self.lengths.append(sum(counts.values()))
        self.languages.append(languages_of(counts))
        self.used = stop


class Memtable:
    """The postings (a `PostingsSource`) of documents in the order of their arrival.

    `order` maps each ordinal to the arrival number of its document. Ordinals follow ascending id, so they change with
    each document that is added or removed.
    """

    def __init__(self, shared: _Shared | None = None, order: Sequence[int] = ()) -> None:
        self._shared = shared or _Shared()
        self.order = order
        self.came = len(self._shared.lengths)
        self._used = self._shared.used
        self._arrays = (self._shared.terms, self._shared.frequencies, self._shared.owners)
        self.lengths: Unsigned = np.array([self._shared.lengths[came] for came in order], dtype=np.uint32)
        self.languages: Unsigned = np.array([self._shared.languages[came] for came in order], dtype=np.uint32)
        self._places = np.full(self.came, -1, dtype=np.int64)
        self._places[list(order)] = np.arange(len(order))
        self._found: dict[int, tuple[NDArray[np.uint32], Unsigned]] = {}

    def extended(self, documents: Iterable[Iterable[str]], order: Sequence[int]) -> Memtable:
        """The memtable with documents added, whose arrival numbers start at `came`, in a new order."""
        with self._shared.lock:
            shared = self._shared if len(self._shared.lengths) == self.came else self._copied()
            for document in documents:
                shared.append(Counter(document))
            return Memtable(shared, order)

    def reordered(self, order: Sequence[int]) -> Memtable:
        """The same documents, or some of them, in a new order."""
        return self.extended((), order)

    def compacted(self) -> Memtable:
        """The same documents, without the arrays of removed documents."""
        numbers, ordinals, frequencies = (array.tolist() for array in self.triples())
        documents: list[dict[str, int]] = [{} for _ in self.order]
        for number, ordinal, frequency in zip(numbers, ordinals, frequencies, strict=True):
            documents[ordinal][self._terms[number]] = frequency
        shared = _Shared()
        for counts in documents:
            shared.append(counts)
        return Memtable(shared, range(len(documents)))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def count(self) -> int:
        """The number of postings, including those of removed documents."""
        return self._used

    @property
    def nbytes(self) -> int:
        """The bytes of the postings."""
        return self._used * 3 * np.uint32().nbytes

    @property
    def total_length(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def look(self, terms: Sequence[str]) -> list[tuple[int, int]]:
        numbers = [self._shared.numbers.get(term, -1) for term in terms]
        counts = [len(self.find(number)[0]) for number in numbers]
        return [(number if count else -1, count) for number, count in zip(numbers, counts, strict=True)]

    def find(self, number: int) -> tuple[NDArray[np.uint32], Unsigned]:
        found = self._found.get(number)
        if found is None:
            terms, frequencies, owners = self._arrays
            at = np.flatnonzero(terms[: self._used] == number) if number >= 0 else np.empty(0, np.intp)
            places = self._places[owners[at]]
            at, places = at[places >= 0], places[places >= 0]
            order = np.argsort(places)
            found = places[order].astype(np.uint32), frequencies[at[order]]
            self._found[number] = found
        return found

    def terms_of(self, ordinal: int) -> Numbers:
        terms, _, owners = self._arrays
        found: Numbers = terms[: self._used][owners[: self._used] == self.order[ordinal]].astype(np.int64)
        return found

    def triples(self) -> tuple[Numbers, Numbers, Unsigned]:
        terms, frequencies, owners = (array[: self._used] for array in self._arrays)
        places = self._places[owners]
        return terms[places >= 0].astype(np.int64), places[places >= 0], frequencies[places >= 0]

    def vocabulary(self) -> list[bytes]:
        return [term.encode(*UTF8) for term in self._terms]

    def beginning(self, prefix: str) -> Numbers:
        return np.array([at for at, term in enumerate(self._terms) if term.startswith(prefix)], dtype=np.int64)

    def spelled(self, numbers: Numbers) -> list[str]:
        return [self._terms[number] for number in numbers.tolist()]

    @cached_property
    def _terms(self) -> list[str]:
        return list(self._shared.numbers)

    def _copied(self) -> _Shared:
        copy = _Shared()
        copy.numbers = dict(self._shared.numbers)
        copy.lengths = self._shared.lengths[: self.came]
        copy.languages = self._shared.languages[: self.came]
        copy.used = self._used
        copy.terms, copy.frequencies, copy.owners = (array.copy() for array in self._arrays)
        return copy


def search(postings: Memtable, wanted: Wanted, selection: Selection | None) -> FoundRows:
    """Like `vectorised.search`, by brute-force scoring of the memtable."""
    frequencies = np.zeros((len(wanted.numbers), len(postings)))
    for row, number in zip(frequencies, wanted.numbers.tolist(), strict=True):
        ordinals, counts = postings.find(number)
        row[ordinals] = counts
    norm = wanted.formula.norm(postings.lengths, wanted.mean_length)
    with np.errstate(divide="ignore", invalid="ignore"):  # rows of documents without the term are set to 0 below
        parts = wanted.weights[:, None] * (wanted.formula.tf(frequencies, norm) - wanted.formula.absent())
    parts[frequencies == 0] = 0.0
    scores = np.full(len(postings), wanted.base)
    for part in parts:
        scores += part
    matched = frequencies.any(axis=0) & (scores >= wanted.threshold)
    if selection is not None:
        matched &= selection.mask
    top = best(scores, np.flatnonzero(matched), wanted.k)
    return FoundRows(top, scores[top], frequencies[:, top].T.astype(np.int64))
