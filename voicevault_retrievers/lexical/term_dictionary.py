"""Looks up the terms of an index that are near to a term, or that a prefix stands for.

The terms of a segment are sorted, so those with one first letter, or one prefix, are a range. Nothing is built or kept:
each look-up reads its range. Only terms of counted chunks are found, with their document frequencies among these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from voicevault_retrievers.lexical.postings import Numbers, PostingsSource
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.lexical.weighted_query import Population
from voicevault_retrievers.text import untagged
from voicevault_retrievers.text.prefixes import Beginning
from voicevault_retrievers.text.spelling import WordList


class NearTerm(NamedTuple):
    """A term of the index, its number of edits, and the negated number of counted chunks that contain it."""

    edits: int
    rank: int
    term: str


class TermDictionary:
    """The terms that the counted chunks of some segments contain."""

    def __init__(self, segments: Sequence[IndexSegment], population: Population) -> None:
        self._parts = list(zip(segments, population.chosen, strict=True))

    def near(self, form: str, edits: int) -> list[NearTerm]:
        """The terms of a form's language with its first letter and at most so many edits.

        Ordered by fewest edits, then by falling document frequency, then alphabetically.
        """
        word = untagged(form)
        start = form[: len(form) - len(word) + 1]
        apart: dict[str, int] = {}

        def within(postings: PostingsSource) -> Numbers:
            numbers = postings.beginning(start)
            terms = postings.spelled(numbers)
            distances = WordList([term[len(start) - 1 :] for term in terms]).distances(word, edits)
            places = np.flatnonzero(distances <= edits)
            apart.update((terms[at], int(distances[at])) for at in places.tolist())
            return numbers[places]

        return sorted(NearTerm(apart[term], -count, term) for term, count in self._counted(within).items())

    def beginning(self, beginnings: Iterable[Beginning]) -> list[str]:
        """The terms that a prefix stands for, by falling document frequency, then alphabetically."""

        def numbers(postings: PostingsSource) -> Numbers:
            looked = postings.look([stem for one in beginnings for stem in sorted(one.stems)])
            known = [number for number, _ in looked if number >= 0]
            return np.unique(np.concatenate([known, *(postings.beginning(one.prefix) for one in beginnings)]))

        beginnings = list(beginnings)
        counted = self._counted(lambda postings: numbers(postings).astype(np.int64))
        return sorted(counted, key=lambda term: (-counted[term], term))

    def _counted(self, find: Callable[[PostingsSource], Numbers]) -> Counter[str]:
        """The number of counted chunks with each of the terms that `find` finds in a segment; none with 0."""
        found: Counter[str] = Counter()
        for segment, chosen in self._parts:
            numbers = find(segment.postings)
            counts = segment.counts_of(numbers, chosen) if len(numbers) else numbers
            numbers, counts = numbers[counts > 0], counts[counts > 0]
            found.update(dict(zip(segment.postings.spelled(numbers), counts.tolist(), strict=True)))
        return found
