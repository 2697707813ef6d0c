"""Scores every matching chunk of a collection of segments, under statistics that are always those of its live chunks.

Document frequencies, lengths and counts are integers taken from the live chunks at each query, so adding and then
deleting a chunk leaves every score as it was, to the bit, and many segments score as one would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.filters import Filter, both
from voicevault_retrievers.lexical.formulas import Floats, Formula
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.rows import Mask, Rows, best
from voicevault_retrievers.types import Chunk


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows and their postings: ordinal i is the same chunk in both."""

    rows: Rows
    postings: Postings


@dataclass(frozen=True)
class TermScore:
    """One term's part in a chunk's score: `contribution = count * idf * tf`, 0 or more for most formulas.

    BM25L and BM25+ also give something to a chunk for a term that it lacks.
    `count` is how often the query has the term, `frequency` how often the chunk, `document_frequency` in how many
    chunks it is; `norm` is the chunk's length norm.
    """

    term: str
    count: int
    frequency: int
    document_frequency: int
    idf: float
    norm: float
    contribution: float


class Scored(NamedTuple):
    """A chunk that was found, its score, and those of the query's terms that it has."""

    chunk: Chunk
    score: float
    terms: tuple[str, ...]


@dataclass(frozen=True)
class _Statistics:
    """Over the population that counts: how many chunks, their mean length, and each query term's df and idf."""

    total: int
    mean_length: float
    counts: Counter[str]
    frequencies: dict[str, int]
    idf: dict[str, float]

    def absent(self, formula: Formula) -> float:
        """What a chunk without any query term would score."""
        return sum((self.counts[term] * idf * formula.absent() for term, idf in self.idf.items()), 0.0)


class LexicalIndex:
    """A snapshot: segments whose live chunks are searched as one collection."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = tuple(segments)

    @classmethod
    def build(cls, rows: Rows, documents: Iterable[Sequence[str]]) -> LexicalIndex:
        """One segment; `documents` are the rows' analysed texts, in their order."""
        return cls([Segment(rows, Postings.build(documents))])

    def __len__(self) -> int:
        return sum(segment.rows.count for segment in self.segments)

    def search(
        self,
        terms: Sequence[str],
        k: int,
        formula: Formula,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        filtered: bool = False,
        positive: bool = False,
    ) -> list[Scored]:
        """The best k chunks that have a term, by falling score, ties by ascending id.

        `where` narrows what is found and leaves the statistics those of the whole collection, unless `filtered`;
        `require` narrows both. `positive` drops what scores 0 or less.
        """
        statistics = self._statistics(terms, formula, _population(where, require, filtered))
        found: list[Scored] = []
        for segment in self.segments:
            scores, matched = _accumulate(segment.postings, formula, statistics)
            mask = segment.rows.mask(both(require, where))
            if mask is not None:
                matched &= mask
            if positive:
                matched &= scores > 0
            top = best(scores, np.flatnonzero(matched), k)
            has = {term: _has(segment.postings, term, top) for term in statistics.idf}
            found.extend(
                Scored(segment.rows.chunks[at], float(scores[at]), tuple(term for term in has if has[term][place]))
                for place, at in enumerate(top.tolist())
            )
        return sorted(found, key=lambda entry: (-entry.score, entry.chunk.id))[:k]

    def scores(
        self,
        terms: Sequence[str],
        ids: Iterable[str],
        formula: Formula,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        filtered: bool = False,
    ) -> dict[str, float]:
        """The score of each given chunk that a search could find: 0.0 where no term matches."""
        statistics = self._statistics(terms, formula, _population(where, require, filtered))
        wanted = list(ids)
        found: dict[str, float] = {}
        for segment in self.segments:
            places = segment.rows.places(wanted, both(require, where))
            if places:
                scores, matched = _accumulate(segment.postings, formula, statistics)
                found |= {chunk_id: float(scores[at]) if matched[at] else 0.0 for chunk_id, at in places.items()}
        return found

    def explain(
        self,
        terms: Sequence[str],
        chunk_id: str,
        formula: Formula,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        filtered: bool = False,
    ) -> list[TermScore]:
        """The parts of a chunk's score, in the order of the query's terms; empty where a search would not find it."""
        statistics = self._statistics(terms, formula, _population(where, require, filtered))
        for segment in self.segments:
            for at in segment.rows.places([chunk_id], both(require, where)).values():
                parts = [_explain(segment.postings, at, term, formula, statistics) for term in statistics.idf]
                matches = any(part.frequency for part in parts)
                return [part for part in parts if matches and (part.frequency or part.contribution)]
        return []

    def _statistics(self, terms: Sequence[str], formula: Formula, population: Filter | None) -> _Statistics:
        masks = [segment.rows.mask(population) for segment in self.segments]
        total = sum(_count(s, mask) for s, mask in zip(self.segments, masks, strict=True))
        length = sum(_total_length(s.postings, mask) for s, mask in zip(self.segments, masks, strict=True))
        frequencies: dict[str, int] = {}
        for term in dict.fromkeys(terms):
            n = sum(_document_frequency(s.postings, term, mask) for s, mask in zip(self.segments, masks, strict=True))
            if n:
                frequencies[term] = n
        return _Statistics(
            total,
            length / total if total else 0.0,
            Counter(terms),
            frequencies,
            self._idf(frequencies, formula, total, masks),
        )

    def _idf(
        self, frequencies: dict[str, int], formula: Formula, total: int, masks: Sequence[Mask | None]
    ) -> dict[str, float]:
        idf = {term: formula.idf(n, total) for term, n in frequencies.items()}
        if any(value < 0 for value in idf.values()):
            floor = formula.floor(self._histogram(masks), total)
            if floor is not None:
                return {term: floor if value < 0 else value for term, value in idf.items()}
        return idf

    def _histogram(self, masks: Sequence[Mask | None]) -> list[tuple[int, int]]:
        """Of each document frequency above 0, how many terms have it."""
        if len(self.segments) == 1:
            frequencies = self.segments[0].postings.document_frequencies(masks[0])
        else:
            counts: Counter[str] = Counter()
            for segment, mask in zip(self.segments, masks, strict=True):
                own = segment.postings.document_frequencies(mask).tolist()
                counts.update({segment.postings.term(number): n for number, n in enumerate(own)})
            frequencies = np.fromiter(counts.values(), dtype=np.int64, count=len(counts))
        values, numbers = np.unique(frequencies[frequencies > 0], return_counts=True)
        return list(zip(values.tolist(), numbers.tolist(), strict=True))


def _population(where: Filter | None, require: Filter | None, filtered: bool) -> Filter | None:
    """Which chunks count in the statistics."""
    return both(require, where) if filtered else require


def _accumulate(postings: Postings, formula: Formula, statistics: _Statistics) -> tuple[Floats, Mask]:
    """Every row's score, summed in the order of the query's terms, and which rows have any of them."""
    scores = np.full(len(postings), statistics.absent(formula))
    matched = np.zeros(len(postings), dtype=np.bool_)
    for term, idf in statistics.idf.items():
        ordinals, frequencies = postings.find(term)
        matched[ordinals] = True
        scores[ordinals] += _contribution(postings, ordinals, frequencies, term, idf, formula, statistics)
    return scores, matched


def _has(postings: Postings, term: str, rows: NDArray[np.intp]) -> Mask:
    """Which of these rows have a term."""
    ordinals, _ = postings.find(term)
    if not len(ordinals):
        return np.zeros(len(rows), dtype=np.bool_)
    has: Mask = ordinals[np.minimum(np.searchsorted(ordinals, rows), len(ordinals) - 1)] == rows
    return has


def _contribution(
    postings: Postings,
    ordinals: NDArray[np.uint32],
    frequencies: NDArray[np.unsignedinteger],
    term: str,
    idf: float,
    formula: Formula,
    statistics: _Statistics,
) -> Floats:
    norm = formula.norm(postings.lengths[ordinals], statistics.mean_length)
    tf: Floats = formula.tf(frequencies.astype(np.float64), norm)
    return statistics.counts[term] * (idf * (tf - formula.absent()))


def _explain(postings: Postings, at: int, term: str, formula: Formula, statistics: _Statistics) -> TermScore:
    ordinals, frequencies = postings.find(term)
    place = int(np.searchsorted(ordinals, at))
    f = int(frequencies[place]) if place < len(ordinals) and ordinals[place] == at else 0
    norm = float(formula.norm(postings.lengths[at : at + 1], statistics.mean_length)[0])
    idf, count = statistics.idf[term], statistics.counts[term]
    contribution = count * (idf * (float(formula.tf(float(f), norm)) if f else formula.absent()))
    return TermScore(term, count, f, statistics.frequencies[term], idf, norm, contribution)


def _count(segment: Segment, mask: Mask | None) -> int:
    return len(segment.rows) if mask is None else int(mask.sum())


def _total_length(postings: Postings, mask: Mask | None) -> int:
    return int(postings.lengths.sum(where=True if mask is None else mask, dtype=np.int64))


def _document_frequency(postings: Postings, term: str, mask: Mask | None) -> int:
    ordinals, _ = postings.find(term)
    return len(ordinals) if mask is None else int(mask[ordinals].sum())
