"""Many queries at once over one segment: shared work is done once, and the loops run on two threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import overload

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.lexical.formulas import Floats, Formula
from voicevault_retrievers.lexical.native import ALL, LIGHTEST, kernels, parts_of, table
from voicevault_retrievers.lexical.postings import Numbers, Postings
from voicevault_retrievers.lexical.search_result import Scored
from voicevault_retrievers.lexical.searching import listed
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.lexical.vectorised import FoundRows
from voicevault_retrievers.lexical.weighted_query import Population, Term, WeightedQuery, ask

THREADS = 2


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """The terms of all queries in one flat array; each query has its distinct terms in order.

    `places` are the positions of the terms in `asked`, `counts` the terms' frequencies in their query, `ends` where
    each query's terms end.
    """

    asked: WeightedQuery
    places: Numbers
    counts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, asked: WeightedQuery, queries: Sequence[Sequence[Term]], distinct: Iterable[Term]) -> QueryBatch:
        known = {forms: place for place, forms in enumerate(asked.terms)}
        place_of = {term: known.get((term,) if isinstance(term, str) else term, -1) for term in distinct}
        flat = np.fromiter(map(place_of.__getitem__, chain.from_iterable(queries)), np.int64)
        owners = np.repeat(np.arange(len(queries)), [len(terms) for terms in queries])
        size = max(1, len(known))
        keys, firsts, counts = np.unique((owners * size + flat)[flat >= 0], return_index=True, return_counts=True)
        order = np.argsort(firsts)
        queried, places = np.divmod(keys[order], size)
        return cls(asked, places, counts[order], np.cumsum(np.bincount(queried, minlength=len(queries))))

    @cached_property
    def forms_of(self) -> Numbers:
        """The number of forms that the segment has of each term."""
        return np.bincount(self.asked.segments[0].places, minlength=len(self.asked.terms))

    def forms(self) -> tuple[Numbers, Floats, Numbers]:
        """The segment's number and the weight of every form of every term, and where each query's forms end."""
        weighed = self.asked.segments[0]
        numbers = np.array(weighed.numbers, dtype=np.int64)
        each = self.forms_of
        starts = np.cumsum(each) - each
        repeated = each[self.places]
        ends = np.cumsum(repeated)
        at = np.repeat(starts[self.places] - (ends - repeated), repeated) + np.arange(int(repeated.sum()))
        weights = np.repeat(self.counts * np.array(self.asked.idf)[self.places], repeated)
        return numbers[at], weights, np.append(0, ends)[self.ends]

    def terms(self, query: int) -> Sequence[int]:
        """The positions of a query's terms in `asked`."""
        places: Sequence[int] = self.places[self.ends[query - 1] if query else 0 : self.ends[query]].tolist()
        return places


@dataclass(frozen=True, eq=False)
class BatchResult(Sequence[Listing[Scored]]):
    """The hits of each query, best first, kept as arrays; a query's listing is made when it is read."""

    segment: IndexSegment
    batch: QueryBatch
    ordinals: NDArray[np.int64]
    scores: Floats
    counts: Numbers
    frequencies: NDArray[np.int64]
    ends: Numbers

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, at: int) -> Listing[Scored]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Listing[Scored]]: ...
    def __getitem__(self, at: int | slice) -> Listing[Scored] | Sequence[Listing[Scored]]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        query, count, k = range(len(self))[at], int(self.counts[at]), self.ordinals.shape[1]
        start = int(self.ends[query - 1]) if query else 0
        size = int(self.ends[query]) - start
        rows = self.frequencies[k * start :][: count * size].reshape(count, size)
        terms, asked = self.batch.terms(query), self.batch.asked
        owners = [owner for owner, place in enumerate(terms) for _ in range(self.batch.forms_of[place])]
        found = FoundRows(self.ordinals[query, :count], self.scores[query, :count], rows)
        return listed(self.segment, found, owners, tuple(asked.terms[place] for place in terms))


def search(
    segment: IndexSegment, everything: Population, queries: Sequence[Sequence[Term]], k: int, formula: Formula
) -> BatchResult | None:
    """The best k chunks of each query; None where the compiled loops do not support the formula or a weight."""
    postings = segment.postings
    if not isinstance(postings, Postings) or formula.curve() is None or formula.absent():
        return None
    distinct = list(dict.fromkeys(chain.from_iterable(queries)))
    asked = ask(distinct, formula, [segment], everything, list)
    if min(asked.idf, default=1.0) <= LIGHTEST:
        return None
    batch = QueryBatch.of(asked, queries, distinct)
    numbers, weights, ends = batch.forms()
    k = min(k, len(segment.rows))
    ordinals, scores = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k))
    counts, found = np.zeros(len(queries), dtype=np.int64), np.empty(k * len(numbers), dtype=np.int64)
    rows = segment.rows
    live = (ALL, 1.0) if rows.live is None else (rows.live, rows.count / len(rows))
    parts = parts_of(postings, formula, asked.mean_length, weights, at_once=True)
    query = (postings.arrays, parts, *table(formula, asked.mean_length), numbers, weights, ends, *live)
    step = max(1, -(-len(queries) // (4 * THREADS)))
    run, rest = kernels().top_many, iter(range(0, len(queries), step))

    def share() -> None:
        for at in rest:
            run(*query, at, min(at + step, len(queries)), ordinals, scores, found, counts)

    with ThreadPoolExecutor(1) as other:
        done = other.submit(share)
        share()
        done.result()
    return BatchResult(segment, batch, ordinals, scores, counts, found, ends)
