"""Searches a collection of segments with the statistics of its live chunks.

Document frequencies, lengths and counts are integers. So adding and then deleting a chunk restores every score to the
bit, and many segments score like one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import Any, TypeVar

import numpy as np

from voicevault_retrievers._support.compiled import FEW, MANY, installed
from voicevault_retrievers._support.extras import require as require_extra
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.listing import Listing, kth_highest, merged
from voicevault_retrievers.core.rows import Rows, located, spaced
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.lexical import batch, builder, merge_policy
from voicevault_retrievers.lexical.formulas import Formula, Lucene
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.lexical.search_result import Scored
from voicevault_retrievers.lexical.searching import Searcher, listed
from voicevault_retrievers.lexical.segment import Analyse, IndexSegment
from voicevault_retrievers.lexical.statistics import counting_of
from voicevault_retrievers.lexical.weighted_query import (
    Forms,
    Histogram,
    Population,
    Term,
    Terms,
    WeightedQuery,
    ask,
)
from voicevault_retrievers.text.analyzed_texts import Analyzed, tags_of

T = TypeVar("T")
A = TypeVar("A")

BACKENDS = ("auto", "numpy", "numba")
COMPILED_FROM = 200_000
"""The number of postings from which an index is large: numba, where installed, builds it and soon searches it."""


@dataclass(frozen=True)
class TermScore:
    """One term's contribution to a chunk's score: `contribution = count * idf * tf`, 0 or more for most formulas.

    BM25L and BM25+ also add a contribution for a term that the chunk lacks.

    `count` is the term's frequency in the query, `frequency` that in the chunk, `document_frequency` the number of
    chunks with the term; `norm` is the chunk's length norm. Where several terms count as one (see `BM25`), `idf` and
    `document_frequency` are those of all together, and each term has its share of their contribution, by frequency.
    """

    term: str
    count: float
    frequency: int
    document_frequency: int
    idf: float
    norm: float
    contribution: float


class LexicalIndex:
    """A snapshot of segments whose live chunks are one collection. `added` and `removed` return new snapshots.

    `backend` selects the loops: "numba" (extra `fast`), "numpy", or "auto", which uses numba where it is installed and
    the index is large or often searched. Both give the same results, bit for bit. A query's term is a string, or the
    forms of a term in several languages, which count as one term; a chunk contains one of them. A mapping gives each
    term's count, which need not be a whole number.
    """

    def __init__(self, segments: Iterable[IndexSegment], *, backend: str = "auto") -> None:
        if backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
        if backend == "numba":
            require_extra("numba", extra="fast")
        self.segments = tuple(segments)
        self.backend = backend
        soon = FEW if self.postings >= COMPILED_FROM else MANY
        self._searcher = Searcher(0 if backend == "numba" else soon if backend == "auto" and installed() else None)

    @classmethod
    def build(cls, rows: Rows, documents: Analyzed | Iterable[Sequence[str]], *, backend: str = "auto") -> LexicalIndex:
        """An index of one segment; `documents` are the rows' analysed texts, in order."""
        analyzed = documents if isinstance(documents, Analyzed) else Analyzed.of(documents)
        if len(analyzed) != len(rows):
            raise ConfigError(f"{len(rows)} chunks, and the terms of {len(analyzed)}")
        return cls([IndexSegment(rows, _postings(analyzed, backend))] if len(rows) else [], backend=backend)

    def __len__(self) -> int:
        return sum(segment.rows.count for segment in self.segments)

    def __contains__(self, chunk_id: str) -> bool:
        return self.get(chunk_id) is not None

    def get(self, chunk_id: str) -> Chunk | None:
        """The live chunk with this id, or None."""
        found = ((segment.rows, segment.rows.ordinal(chunk_id)) for segment in self.segments)
        return next((rows.chunks[at] for rows, at in found if at is not None), None)

    @property
    def postings(self) -> int:
        """The number of postings, including those of deleted chunks."""
        return sum(segment.postings.count for segment in self.segments)

    @property
    def nbytes(self) -> int:
        """The bytes of the postings, lengths and terms, in memory or on disk."""
        return sum(segment.postings.nbytes for segment in self.segments)

    def tags(self, counting: Filter | None = None) -> str:
        """The language tags (control characters that begin terms) of the chunks that pass `counting`, or of all."""
        found = 0
        for segment in self.segments:
            found |= segment.languages(segment.rows.selection(counting) if counting else None)
        return tags_of(found)

    def added(self, chunks: Iterable[Chunk], documents: Analyzed | Iterable[Sequence[str]]) -> LexicalIndex:
        """The index with chunks added; `documents` are their analysed texts. ConfigError for an id in the index.

        Small additions go to the memtable, where they can be found at once, and become postings later.
        """
        analyzed = documents if isinstance(documents, Analyzed) else Analyzed.of(documents)
        new = list(chunks)
        if len(analyzed) != len(new):
            raise ConfigError(f"{len(new)} chunks, and the terms of {len(analyzed)}")
        if not new:
            return self
        here = next((chunk.id for chunk in new if chunk.id in self), None)
        if here is not None:
            raise ConfigError(f"a chunk with the id {here!r} is in the index: remove it first")
        if len({chunk.id for chunk in new}) < len(new):
            raise ConfigError(f"of {len(new)} chunks some have the same id: give each once")
        if len(new) < merge_policy.SEAL_AT:
            return LexicalIndex(merge_policy.added(self.segments, new, analyzed), backend=self.backend)
        order = sorted(range(len(new)), key=lambda at: new[at].id)
        segment = IndexSegment(Rows.of(new), _postings(_arranged(analyzed, order), self.backend))
        return LexicalIndex(merge_policy.tidied((*self.segments, segment)), backend=self.backend)

    def removed(self, ids: Iterable[str], analyse: Analyse | None = None) -> LexicalIndex:
        """The index without these chunks; ids that are not in the index are ignored.

        `analyse` returns the terms of texts as the index was built with them, which saves reading all postings.
        """
        gone = list(dict.fromkeys(ids))
        without = (merge_policy.without(segment, gone, analyse) for segment in self.segments)
        return LexicalIndex([segment for segment in without if segment.rows.count], backend=self.backend)

    def search(
        self,
        terms: Terms,
        k: int,
        formula: Formula,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        filtered: bool = False,
        positive: bool = False,
        narrow: Callable[[IndexSegment, Selection | None], Selection] | None = None,
    ) -> Listing[Scored]:
        """The best k chunks that contain a term, by falling score, ties by ascending id.

        `where` narrows the result and leaves the statistics those of the whole collection, unless `filtered`; `require`
        narrows both. `positive` drops scores of 0 or less. `narrow` selects, from a segment's passing rows (None for
        all), the rows that may be found.
        """
        asked = self._ask(terms, formula, counting_of(where, require, filtered))
        return self.best(asked, k, both(require, where), positive=positive, narrow=narrow)

    def best(
        self,
        asked: WeightedQuery,
        k: int,
        passing: Filter | None,
        *,
        positive: bool = False,
        narrow: Callable[[IndexSegment, Selection | None], Selection] | None = None,
    ) -> Listing[Scored]:
        """`search` with terms that are already looked up and weighted."""
        found: list[Listing[Scored]] = []
        for segment, weighed in zip(self.segments, asked.segments, strict=True):
            if weighed.numbers and k > 0:
                chosen = segment.rows.selection(passing)
                chosen = narrow(segment, chosen) if narrow else chosen
                threshold = kth_highest([one.scores for one in found if one.scores is not None], k) if found else -inf
                rows = self._searcher.search(segment, asked, weighed, chosen, k, threshold)
                found.append(listed(segment, rows, weighed.places, asked.terms))
        best = merged(found, k)
        return best.above_zero() if positive else best

    def search_many(
        self, queries: Iterable[Sequence[Term]], k: int, formula: Formula, **options: Any
    ) -> Sequence[Listing[Scored]]:
        """`search` for each query, on several cores; `options` are those of `search`."""
        asked = list(queries)
        if k > 0 and not options and len(self.segments) == 1:
            together = partial(batch.search, self.segments[0], self._everything, asked, k, formula)
            found = together() if self._searcher.batches(self.segments[0].postings, together) else None
            if found is not None:
                return found
        return self._searcher.each(lambda terms: self.search(terms, k, formula, **options), asked)

    def each(self, task: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """Run a task that searches this index for each item; on two threads where the index is large."""
        return self._searcher.each(task, items) if self.postings >= COMPILED_FROM else [task(item) for item in items]

    def warm(self) -> None:
        """Compile the machine code that searches of this index need, and cache it. MissingExtraError without numba."""
        compiled = LexicalIndex(self.segments, backend="numba")
        for segment in self.segments:
            if isinstance(segment.postings, Postings) and segment.postings.count and segment.rows.count:
                term = segment.postings.vocabulary()[0].decode("utf-8", "surrogatepass")
                for _ in ("pruned", "all added"):
                    compiled.search([term], 1, Lucene())
                compiled.scores([term], [segment.rows.ids[segment.rows.living[0]]], Lucene())

    def scores(
        self,
        terms: Terms,
        ids: Iterable[str],
        formula: Formula,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        filtered: bool = False,
    ) -> dict[str, float]:
        """The score of each given chunk that a search could find: 0.0 where no term matches."""
        asked = self._ask(terms, formula, counting_of(where, require, filtered))
        return self.scored(asked, ids, both(require, where))

    def scored(self, asked: WeightedQuery, ids: Iterable[str], passing: Filter | None) -> dict[str, float]:
        """`scores` with terms that are already looked up and weighted."""
        found: dict[str, float] = {}
        placed = located([segment.rows for segment in self.segments], ids, passing)
        for segment, weighed, places in zip(self.segments, asked.segments, placed, strict=True):
            if places:
                ordinals = np.fromiter(places.values(), np.int64, len(places))
                scores = self._searcher.scores(segment, asked, weighed, ordinals)
                found |= zip(places, scores.tolist(), strict=True)
        return found

    def explain(
        self,
        terms: Terms,
        chunk_id: str,
        formula: Formula,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        filtered: bool = False,
    ) -> list[TermScore]:
        """The terms' contributions to a chunk's score, in query order; empty where a search would not find it."""
        asked = self._ask(terms, formula, counting_of(where, require, filtered))
        return self.explained(asked, chunk_id, both(require, where))

    def explained(self, asked: WeightedQuery, chunk_id: str, passing: Filter | None) -> list[TermScore]:
        """`explain` with terms that are already looked up and weighted."""
        for segment, weighed in zip(self.segments, asked.segments, strict=True):
            for at in segment.rows.places([chunk_id], passing).values():
                parts = list(_explained(segment, asked, self._searcher.frequencies(segment, asked, weighed, at), at))
                matches = any(part.frequency for part in parts)
                return [part for part in parts if matches and (part.frequency or part.contribution)]
        return []

    def shares(
        self, terms: Terms, *, where: Filter | None = None, require: Filter | None = None, filtered: bool = False
    ) -> dict[Forms, float]:
        """For each term that some counted chunk contains, the share of the counted chunks that contain it."""
        asked = self._ask(terms, Lucene(), counting_of(where, require, filtered))
        return {forms: n / asked.total for forms, n in zip(asked.terms, asked.frequencies, strict=True)}

    def coverage(
        self, terms: Terms, *, where: Filter | None = None, require: Filter | None = None, filtered: bool = False
    ) -> float | None:
        """The share of the term occurrences whose term is in some counted chunk; None for no terms."""
        return self._ask(terms, Lucene(), counting_of(where, require, filtered)).coverage

    def sample(self, size: int) -> list[Chunk]:
        """At most `size` live chunks, evenly spaced by id."""
        tables = [segment.rows for segment in self.segments]
        drawn = zip(tables, spaced(tables, size), strict=True)
        return [rows.chunks[at] for rows, ordinals in drawn for at in ordinals]

    def _ask(self, terms: Terms, formula: Formula, counting: Filter | None) -> WeightedQuery:
        """Look up the terms, and weight them by the statistics of the counted chunks (None for all)."""
        population = self.population(counting)
        return ask(terms, formula, self.segments, population, lambda: self._histogram(population))

    @cached_property
    def _everything(self) -> Population:
        total = sum(segment.rows.count for segment in self.segments)
        return Population(total, sum(segment.length for segment in self.segments), (None,) * len(self.segments))

    def population(self, counting: Filter | None) -> Population:
        """The chunks that pass `counting`; all live chunks where it is None or empty."""
        if not counting:
            return self._everything
        chosen = tuple(segment.rows.selection(counting) for segment in self.segments)
        total = sum(len(s.rows) if some is None else some.count for s, some in zip(self.segments, chosen, strict=True))
        length = sum(
            s.postings.total_length if some is None else int(s.postings.lengths[some.ordinals].sum(dtype=np.int64))
            for s, some in zip(self.segments, chosen, strict=True)
        )
        return Population(total, length, chosen)

    def _histogram(self, population: Population) -> Histogram:
        """For each document frequency above 0, the number of terms that have it."""
        if population is not self._everything:
            return self._count_histogram(population)
        return self._whole_histogram

    @cached_property
    def _whole_histogram(self) -> Histogram:
        return self._count_histogram(self._everything)

    def _count_histogram(self, population: Population) -> Histogram:
        counts = [s.counts(some) for s, some in zip(self.segments, population.chosen, strict=True)]
        if len(counts) > 1:
            total: Counter[bytes] = Counter()
            for segment, own in zip(self.segments, counts, strict=True):
                total.update(dict(zip(segment.postings.vocabulary(), own.tolist(), strict=True)))
            counts = [np.fromiter(total.values(), dtype=np.int64, count=len(total))]
        frequencies = np.concatenate([np.empty(0, dtype=np.int64), *counts])
        values, numbers = np.unique(frequencies[frequencies > 0], return_counts=True)
        return list(zip(values.tolist(), numbers.tolist(), strict=True))


def _postings(analyzed: Analyzed, backend: str) -> Postings:
    enough = backend == "auto" and len(analyzed.terms) >= COMPILED_FROM and installed()
    return builder.build(analyzed, compiled=backend == "numba" or enough)


def _arranged(analyzed: Analyzed, order: Sequence[int]) -> Analyzed:
    """The documents in another order."""
    if list(order) == sorted(order):
        return analyzed
    lengths = analyzed.lengths[order]
    starts = analyzed.ends[order] - lengths
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
    return Analyzed(analyzed.vocabulary, analyzed.terms[places], ends)


def _explained(
    segment: IndexSegment, asked: WeightedQuery, frequencies: Mapping[int, int], at: int
) -> Iterable[TermScore]:
    formula = asked.formula
    norm = float(formula.norm(segment.postings.lengths[at : at + 1], asked.mean_length)[0])
    for place, (forms, count, idf) in enumerate(zip(asked.terms, asked.counts, asked.idf, strict=True)):
        f = frequencies.get(place, 0)
        contribution = count * idf * (float(formula.tf(float(f), norm)) if f else formula.absent())
        yield TermScore(forms[0], count, f, asked.frequencies[place], idf, norm, contribution)
