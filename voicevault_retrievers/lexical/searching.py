"""Searches one segment, with numba or numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.compiled import BESIDE
from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical import memtable, native, vectorised
from voicevault_retrievers.lexical.memtable import Memtable
from voicevault_retrievers.lexical.postings import Postings, PostingsSource
from voicevault_retrievers.lexical.search_result import Scored
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.lexical.vectorised import FoundRows, Wanted
from voicevault_retrievers.lexical.weighted_query import Weighed, WeightedQuery

T = TypeVar("T")
A = TypeVar("A")


class Searcher:
    """Runs queries on segments, with compiled loops after `compiled` searches (None: never)."""

    def __init__(self, compiled: int | None) -> None:
        self.compiled = compiled

    def search(
        self,
        segment: IndexSegment,
        asked: WeightedQuery,
        weighed: Weighed,
        selection: Selection | None,
        k: int,
        threshold: float,
    ) -> FoundRows:
        """The best k of the selected chunks (None for all), with the frequencies of the segment's forms."""
        return self._search(segment.postings, _wanted(asked, weighed, k, threshold), selection)

    def scores(
        self, segment: IndexSegment, asked: WeightedQuery, weighed: Weighed, ordinals: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The scores of distinct chunks; 0 where a chunk contains none of the terms."""
        scores = np.zeros(len(ordinals))
        if not weighed.numbers:
            return scores
        wanted, postings = _wanted(asked, weighed, len(ordinals), -math.inf), segment.postings
        order = ordinals.argsort()
        ascending = ordinals[order]
        chosen = Selection(len(segment.rows), ascending.astype(np.uint32))
        if not isinstance(postings, Postings):
            found = self._search(postings, wanted, chosen)
        elif self._native(postings, wanted, chosen, each=True):
            found = native.search(postings, wanted, chosen, each=True)
        else:
            found = vectorised.each(postings, wanted, ascending)
        scores[order[ascending.searchsorted(found.ordinals)]] = found.scores
        return scores

    def frequencies(
        self, segment: IndexSegment, asked: WeightedQuery, weighed: Weighed, ordinal: int
    ) -> dict[int, int]:
        """The frequency of each term in a chunk, by the term's position in the query."""
        numbers = np.array(weighed.numbers, dtype=np.int64)
        row = vectorised.frequencies_of(segment.postings, numbers, np.array([ordinal]))[0].tolist()
        return {place: f for place, f in zip(weighed.places, row, strict=True) if f}

    def _search(self, postings: PostingsSource, wanted: Wanted, selection: Selection | None) -> FoundRows:
        if isinstance(postings, Memtable):
            return memtable.search(postings, wanted, selection)
        if isinstance(postings, Postings) and self._native(postings, wanted, selection):
            with BATON.aside(len(postings)):
                return native.search(postings, wanted, selection)
        return vectorised.search(postings, wanted, selection)

    def _native(self, postings: Postings, wanted: Wanted, selection: Selection | None, *, each: bool = False) -> bool:
        if self.compiled is None or not native.able(wanted):
            return False
        return self.compiled == 0 or native.ready(postings, wanted, selection, self.compiled, each=each)

    def batches(self, postings: PostingsSource, search: Callable[[], object]) -> bool:
        """Whether compiled loops can run a batch of queries; `search` calls these loops."""
        if self.compiled is None or not isinstance(postings, Postings):
            return False
        return self.compiled == 0 or BESIDE.ready(("batch", postings.kind, postings.count > native.ROOM), [search], 0)

    def each(self, task: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """Run a task for each item; on two threads where the loops release the interpreter lock."""
        if self.compiled is None or len(items) < 2:
            return [task(item) for item in items]
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(task, items))


def _wanted(asked: WeightedQuery, weighed: Weighed, k: int, threshold: float) -> Wanted:
    numbers, weights = np.array(weighed.numbers, dtype=np.int64), np.array(weighed.weights)
    return Wanted(numbers, weights, asked.formula, asked.mean_length, asked.base, threshold, k)


def spread(row: Sequence[int], places: Sequence[int], size: int) -> list[int]:
    """The frequencies of terms from those of their forms."""
    found = [0] * size
    for f, place in zip(row, places, strict=True):
        found[place] += f
    return found


def listed(
    segment: IndexSegment, found: FoundRows, places: Sequence[int], asked: Sequence[Sequence[str]]
) -> Listing[Scored]:
    """Rows found in a segment, as a listing by chunk id; `places` are the terms, in `asked`, that the forms are of."""
    ordinals, rows = found.ordinals.tolist(), segment.rows

    def scored(at: int) -> Scored:
        frequencies = spread(found.frequencies[at].tolist(), places, len(asked))
        return Scored(rows.chunks[ordinals[at]], float(found.scores[at]), frequencies, asked)

    return Listing(rows.ids_at(ordinals), found.scores, scored)
