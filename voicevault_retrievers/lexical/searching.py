"""Searches one segment, with numba or with numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from voicevault_retrievers.lexical import native, vectorised, waiting
from voicevault_retrievers.lexical.asked import Asked, Weighed
from voicevault_retrievers.lexical.forward import Forward
from voicevault_retrievers.lexical.postings import Postings, Source
from voicevault_retrievers.lexical.segment import Segment
from voicevault_retrievers.lexical.vectorised import Found, Wanted
from voicevault_retrievers.selection import Selection

T = TypeVar("T")
A = TypeVar("A")


class Searcher:
    """Runs queries on segments; `compiled` says on what."""

    def __init__(self, *, compiled: bool) -> None:
        self.compiled = compiled

    def search(
        self,
        segment: Segment,
        asked: Asked,
        weighed: Weighed,
        selection: Selection | None,
        k: int,
        threshold: float,
    ) -> Iterable[tuple[int, float, Sequence[int]]]:
        """Ordinal, score and each asked term's frequency of the best k of the selected chunks (None for all)."""
        found = self._search(segment.postings, _wanted(asked, weighed, k, threshold), selection)
        ordinals, scores, frequencies = (array.tolist() for array in found)
        if len(weighed.places) < len(asked.terms) or weighed.places != list(range(len(asked.terms))):
            frequencies = [spread(row, weighed.places, len(asked.terms)) for row in frequencies]
        return zip(ordinals, scores, frequencies, strict=True)

    def scores(self, segment: Segment, asked: Asked, weighed: Weighed, ordinals: Sequence[int]) -> list[float]:
        """The scores of these chunks; 0 where none of the terms is."""
        chosen = Selection(len(segment.rows), np.unique(np.array(ordinals, dtype=np.uint32)))
        found = self.search(segment, asked, weighed, chosen, len(ordinals), -math.inf) if weighed.numbers else ()
        known = {at: score for at, score, _ in found}
        return [known.get(at, 0.0) for at in ordinals]

    def frequencies(self, segment: Segment, asked: Asked, weighed: Weighed, ordinal: int) -> dict[int, int]:
        """How often a chunk has each term, by the term's place."""
        numbers = np.array(weighed.numbers, dtype=np.int64)
        row = vectorised.frequencies_of(segment.postings, numbers, np.array([ordinal]))[0].tolist()
        return {place: f for place, f in zip(weighed.places, row, strict=True) if f}

    def _search(self, postings: Source, wanted: Wanted, selection: Selection | None) -> Found:
        if isinstance(postings, Forward):
            return waiting.search(postings, wanted, selection)
        if self.compiled and isinstance(postings, Postings) and native.able(wanted):
            return native.search(postings, wanted, selection)
        return vectorised.search(postings, wanted, selection)

    def each(self, task: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """The task for each item; on two threads where the loops run without the interpreter's lock."""
        if not self.compiled or len(items) < 2:
            return [task(item) for item in items]
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(task, items))


def _wanted(asked: Asked, weighed: Weighed, k: int, threshold: float) -> Wanted:
    numbers, weights = np.array(weighed.numbers, dtype=np.int64), np.array(weighed.weights)
    return Wanted(numbers, weights, asked.formula, asked.mean_length, asked.base, threshold, k)


def spread(row: Sequence[int], places: Sequence[int], size: int) -> list[int]:
    """Frequencies of forms as those of the terms that they belong to."""
    found = [0] * size
    for f, place in zip(row, places, strict=True):
        found[place] += f
    return found
