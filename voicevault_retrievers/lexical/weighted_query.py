"""A query's terms, weighted by the statistics of the counted chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, islice
from typing import NamedTuple, TypeAlias

from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.formulas import Formula
from voicevault_retrievers.lexical.segment import IndexSegment

Forms: TypeAlias = tuple[str, ...]
Term: TypeAlias = str | Forms
Terms: TypeAlias = Iterable[Term] | dict[Forms, float]
Histogram: TypeAlias = list[tuple[int, int]]


class Population(NamedTuple):
    """The counted chunks: their number, the sum of their lengths, and each segment's selection (None for all live)."""

    total: int
    length: int
    chosen: tuple[Selection | None, ...]


class Weighed(NamedTuple):
    """The forms of a query's terms in a segment: their numbers, weights, and positions in the query.

    A weight is `count * idf`. A position is that of the term in `WeightedQuery.terms`.
    """

    numbers: list[int]
    weights: list[float]
    places: Sequence[int]


class WeightedQuery(NamedTuple):
    """The distinct terms that some counted chunk contains, in query order, each with all its forms.

    `counts` are the terms' frequencies in the query, `frequencies` their document frequencies over all forms, `idf`
    their weights; `segments` has the forms in each segment. `length` is the number of terms of the query in all.
    """

    formula: Formula
    total: int
    mean_length: float
    terms: tuple[Forms, ...]
    counts: tuple[float, ...]
    frequencies: tuple[int, ...]
    idf: tuple[float, ...]
    segments: tuple[Weighed, ...]
    length: float

    @property
    def coverage(self) -> float | None:
        """The share of the query's term occurrences whose term is in some counted chunk; None for no terms."""
        return sum(self.counts) / self.length if self.length else None

    @property
    def highest(self) -> float:
        """An upper bound of any chunk's score, whatever its frequencies; 0 where the formula has no bound."""
        most = self.formula.most
        known = zip(self.counts, self.idf, strict=True) if most < math.inf else ()
        return sum((n * idf * most for n, idf in known if idf > 0), 0.0)

    @property
    def base(self) -> float:
        """The score of a chunk without any of the terms."""
        absent = self.formula.absent()
        return sum((n * idf * absent for n, idf in zip(self.counts, self.idf, strict=True)), 0.0) if absent else 0.0


def ask(
    terms: Terms,
    formula: Formula,
    segments: Sequence[IndexSegment],
    population: Population,
    histogram: Callable[[], Histogram],
) -> WeightedQuery:
    """Look up and weight the terms. `histogram` gives the number of terms of each document frequency."""
    counted = _counted(terms)
    length = sum(counted.values())
    flat = [form for forms in counted for form in forms]
    looked = [segment.postings.look(flat) for segment in segments]
    each = list(map(IndexSegment.frequencies, segments, looked, population.chosen))
    having = each[0] if len(each) == 1 else [sum(some) for some in zip([0] * len(flat), *each, strict=True)]
    spelled_once = len(flat) == len(counted)
    frequencies = having if spelled_once else _of_terms(counted, having)
    if 0 in frequencies:
        known = [bool(n) for forms, n in zip(counted, frequencies, strict=True) for _ in forms]
        looked = [list(compress(found, known)) for found in looked]
        counted = dict(compress(counted.items(), frequencies))
        frequencies = [n for n in frequencies if n]
    idf = _idf(formula, frequencies, population.total, histogram)
    weights = [count * weight for count, weight in zip(counted.values(), idf, strict=True)]
    places: Sequence[int] = range(len(counted))
    if not spelled_once:
        places = [place for place, forms in enumerate(counted) for _ in forms]
        weights = [weights[place] for place in places]
    return WeightedQuery(
        formula,
        population.total,
        population.length / population.total if population.total else 0.0,
        tuple(counted),
        tuple(counted.values()),
        tuple(frequencies),
        tuple(idf),
        tuple([_weighed(found, places, weights) for found in looked]),
        length,
    )


def _counted(terms: Terms) -> dict[Forms, float]:
    if isinstance(terms, dict):
        return terms
    counted: dict[Forms, float] = {}
    for term in terms:
        forms = (term,) if isinstance(term, str) else term
        counted[forms] = counted.get(forms, 0) + 1
    return counted


def _of_terms(counted: Iterable[Forms], having: Iterable[int]) -> list[int]:
    """The document frequency of each term: the sum of its forms'."""
    rest = iter(having)
    return [sum(islice(rest, len(forms))) for forms in counted]


def _weighed(looked: Sequence[tuple[int, int]], places: Sequence[int], weights: list[float]) -> Weighed:
    numbers = [number for number, _ in looked]
    if -1 in numbers:  # the term is in this segment by another form, or in another segment
        held = [number >= 0 for number in numbers]
        places = list(compress(places, held))
        numbers, weights = list(compress(numbers, held)), list(compress(weights, held))
    return Weighed(numbers, weights, places)


def _idf(formula: Formula, frequencies: Sequence[int], total: int, histogram: Callable[[], Histogram]) -> list[float]:
    of = formula.idf
    idf = [of(frequency, total) for frequency in frequencies]
    if idf and min(idf) < 0:
        floor = formula.floor(histogram, total)
        if floor is not None:
            return [floor if value < 0 else value for value in idf]
    return idf
