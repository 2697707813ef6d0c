"""A query's terms, weighted by the statistics of the counted chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.lexical.formulas import Formula
from voicevault_retrievers.lexical.segment import IndexSegment

Forms: TypeAlias = tuple[str, ...]
Term: TypeAlias = str | Sequence[str]
Terms: TypeAlias = Iterable[Term] | Mapping[Forms, float]
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
    places: list[int]


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
        curve = self.formula.curve()
        most = 0.0 if curve is None else curve.alpha + curve.add
        return sum((n * idf * most for n, idf in zip(self.counts, self.idf, strict=True) if idf > 0), 0.0)

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
    flat = [form for forms in counted for form in forms]
    looked = [segment.postings.look(flat) for segment in segments]
    having = [0] * len(flat)
    for segment, chosen, found in zip(segments, population.chosen, looked, strict=True):
        for at, (number, documents) in enumerate(found):
            if documents:
                having[at] += segment.count(number, documents, chosen)
    distinct: list[Forms] = []
    frequencies: list[int] = []
    places: list[int] = []
    start = 0
    for forms in counted:
        frequency = sum(having[start : start + len(forms)])
        start += len(forms)
        places += [len(distinct) if frequency else -1] * len(forms)
        if frequency:
            distinct.append(forms)
            frequencies.append(frequency)
    counts = [counted[forms] for forms in distinct]
    idf = _idf(formula, frequencies, population.total, histogram)
    weights = [count * weight for count, weight in zip(counts, idf, strict=True)]
    return WeightedQuery(
        formula,
        population.total,
        population.length / population.total if population.total else 0.0,
        tuple(distinct),
        tuple(counts),
        tuple(frequencies),
        tuple(idf),
        tuple(_weighed(found, places, weights) for found in looked),
        sum(counted.values()),
    )


def _counted(terms: Terms) -> Mapping[Forms, float]:
    if isinstance(terms, Mapping):
        return terms
    counted: dict[Forms, float] = {}
    for term in terms:
        forms = (term,) if isinstance(term, str) else tuple(term)
        counted[forms] = counted.get(forms, 0) + 1
    return counted


def _weighed(looked: Sequence[tuple[int, int]], places: Sequence[int], weights: Sequence[float]) -> Weighed:
    known = [(number, place) for (number, _), place in zip(looked, places, strict=True) if number >= 0 <= place]
    return Weighed([number for number, _ in known], [weights[place] for _, place in known], [p for _, p in known])


def _idf(formula: Formula, frequencies: Sequence[int], total: int, histogram: Callable[[], Histogram]) -> list[float]:
    idf = [formula.idf(frequency, total) for frequency in frequencies]
    if idf and min(idf) < 0:
        floor = formula.floor(histogram, total)
        if floor is not None:
            return [floor if value < 0 else value for value in idf]
    return idf
