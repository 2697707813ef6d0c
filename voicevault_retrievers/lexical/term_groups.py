"""An index in which groups of terms count as one term each.

A group's frequency in a chunk is the sum of its terms' frequencies, and its document frequency the number of chunks
that contain any of them, so that it scores as if one word had stood for all of them (Lucene's SynonymQuery, which takes
the highest document frequency of its terms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.lexical.index import LexicalIndex, TermScore
from voicevault_retrievers.lexical.postings import Numbers, PostingsSource, Unsigned
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.lexical.vectorised import frequencies_of
from voicevault_retrievers.lexical.weighted_query import Histogram, Population, WeightedQuery

_FIRST = 1 << 40
"""The number of the first group, above those of all terms."""


class GroupedPostings:
    """The postings of a segment, with groups of its terms as further terms."""

    def __init__(self, postings: PostingsSource, groups: Mapping[str, Numbers]) -> None:
        self._postings = postings
        self._numbers = {name: _FIRST + at for at, name in enumerate(groups)}
        self._found = [_together(postings, numbers) for numbers in groups.values()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._postings, name)

    def __len__(self) -> int:
        return len(self._postings)

    def look(self, terms: Sequence[str]) -> list[tuple[int, int]]:
        """As of `PostingsSource`."""
        own = iter(self._postings.look([term for term in terms if term not in self._numbers]))
        return [
            (number, len(self.find(number)[0])) if (number := self._numbers.get(term)) is not None else next(own)
            for term in terms
        ]

    def find(self, number: int) -> tuple[NDArray[np.uint32], Unsigned]:
        """As of `PostingsSource`."""
        return self._postings.find(number) if number < _FIRST else self._found[number - _FIRST]


class GroupedIndex(LexicalIndex):
    """An index with groups of terms, by name. The statistics of everything else are those of the index."""

    def __init__(self, index: LexicalIndex, groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__((_grouped(segment, groups) for segment in index.segments), backend=index.backend)
        self._ungrouped = index
        self.groups = groups

    def explained(self, asked: WeightedQuery, chunk_id: str, passing: Filter | None) -> list[TermScore]:
        """As of `LexicalIndex`; each of a group's terms gets its share of the contribution, by its frequency."""
        found = super().explained(asked, chunk_id, passing)
        return [each for part in found for each in self._shares(part, chunk_id)]

    def _shares(self, part: TermScore, chunk_id: str) -> list[TermScore]:
        terms = self.groups.get(part.term)
        if terms is None or not part.frequency:
            return [part]
        own = zip(terms, self._frequencies(terms, chunk_id), strict=True)
        return [
            replace(part, term=term, frequency=f, contribution=part.contribution * (f / part.frequency))
            for term, f in own
            if f
        ]

    def _frequencies(self, terms: Sequence[str], chunk_id: str) -> list[int]:
        """The frequency of each term in a chunk."""
        for segment in self._ungrouped.segments:
            if (at := segment.rows.ordinal(chunk_id)) is not None:
                numbers = np.array([number for number, _ in segment.postings.look(terms)], dtype=np.int64)
                found: list[int] = frequencies_of(segment.postings, numbers, np.array([at]))[0].tolist()
                return found
        return [0] * len(terms)

    @cached_property
    def _everything(self) -> Population:
        return self._ungrouped._everything

    def _histogram(self, population: Population) -> Histogram:
        return self._ungrouped._histogram(population)


def _grouped(segment: IndexSegment, groups: Mapping[str, Sequence[str]]) -> IndexSegment:
    """The segment with the groups that it has terms of."""
    looked = {name: segment.postings.look(terms) for name, terms in groups.items()}
    known = {name: np.array([n for n, count in found if count], dtype=np.int64) for name, found in looked.items()}
    known = {name: numbers for name, numbers in known.items() if len(numbers)}
    if not known:
        return segment
    return replace(segment, postings=GroupedPostings(segment.postings, known), removed=None, _counted={})


def _together(postings: PostingsSource, numbers: Numbers) -> tuple[NDArray[np.uint32], Unsigned]:
    """The ordinals of the documents that contain any of some terms, and the sum of their frequencies in each."""
    parts = [postings.find(number) for number in numbers.tolist()]
    ordinals, places = np.unique(np.concatenate([ordinals for ordinals, _ in parts]), return_inverse=True)
    frequencies = np.concatenate([frequencies for _, frequencies in parts])
    return ordinals, np.bincount(places, frequencies, len(ordinals)).astype(np.uint32)
