"""Cached counts of a Milvus collection, and exact scoring of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from voicevault_retrievers.core.filters import Predicate, compile_filter
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, Weighted, best, score
from voicevault_retrievers.engines.milvus import schema
from voicevault_retrievers.engines.milvus.facets import tag, term_number
from voicevault_retrievers.engines.milvus.schema import Row
from voicevault_retrievers.text.languages import TAGS

SCORED = ("pieces", "terms", "counts", "length")
"""The fields that scoring a row needs."""


@dataclass(frozen=True)
class Totals:
    """The number of counted chunks, the sum of their lengths, and an upper bound of their lengths."""

    total: int
    length: int
    longest: int
    tags: str = ""


@dataclass
class Counted:
    """The counts at one version of the collection, by the clause or the filter of the counted chunks."""

    version: str
    totals: dict[str, Totals] = field(default_factory=dict)
    frequencies: dict[str, dict[str, int]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    crowded: int | None = None


class RowBM25:
    """Exact BM25 scoring of rows."""

    def __init__(self, asked: Keywords, population: CollectionCounts, terms: Sequence[Weighted], name: str) -> None:
        self._asked = asked
        self._mean = population.mean
        self._terms = terms
        self._name = name
        self._numbers = {term_number(form): form for form in asked.forms}
        self._passes = compile_filter(asked.passing)
        self.offset = sum(term.weight * asked.formula.absent() for term in terms)

    def hits(self, held: Iterable[Row]) -> Iterable[KeywordHit]:
        """The rows that pass and have a term, as hits."""
        found = (self.hit(one) for one in held if self.passes(one))
        return [hit for hit in found if hit is not None]

    def best(self, held: Iterable[Row], k: int) -> list[KeywordHit]:
        """The k best hits among the rows."""
        return best(self.hits(held), k, positive=self._asked.positive)

    def scores(self, held: Mapping[str, Row]) -> dict[str, float]:
        """The scores of the rows that pass, 0.0 where no term matches."""
        found = {one: self.hit(row) for one, row in held.items() if self.passes(row)}
        return {one: hit.score if hit else 0.0 for one, hit in found.items()}

    def hit(self, held: Row) -> KeywordHit | None:
        """The hit of a row; None where the row has no term of the query."""
        frequencies = schema.counts_of(held, self._numbers)
        scored = score(self._asked.formula, self._terms, self._mean, frequencies, held["length"])
        return None if scored is None else KeywordHit(schema.chunk_of(held, self._name), *scored)

    def passes(self, held: Row) -> bool:
        """Whether a row passes the filter on the hits."""
        return not self._asked.passing or self._passes(schema.chunk_of(held, self._name).metadata)


def scored_hits(
    asked: Keywords, rows: Sequence[Row], scores: Sequence[float], scale: float, name: str
) -> list[KeywordHit]:
    """The rows that pass and have a term, with Milvus' scores divided by `scale`; Milvus Lite's are negative."""
    numbers, passes = {term_number(form): form for form in asked.forms}, compile_filter(asked.passing)
    found = []
    for row, scored in zip(rows, scores, strict=True):
        counts, chunk = schema.counts_of(row, numbers), schema.chunk_of(row, name)
        if counts and passes(chunk.metadata):
            forms = tuple(form for form in asked.forms if form in counts)
            found.append(KeywordHit(chunk, abs(scored) / scale, forms))
    return best(found, len(found), positive=asked.positive)


class Sum:
    """Sums over the rows that pass; over all rows where `passes` is None."""

    def __init__(self, passes: Predicate | None, name: str) -> None:
        self._passes = passes
        self._name = name
        self.totals = Totals(0, 0, 0)

    def take(self, page: Sequence[Row]) -> None:
        """Add the rows of a page that pass."""
        passes = self._passes
        kept = [one for one in page if passes is None or passes(schema.chunk_of(one, self._name).metadata)]
        lengths = [int(one["length"]) for one in kept]
        facets = {facet for one in kept for facet in one["facets"]}
        held = self.totals
        self.totals = Totals(
            held.total + len(kept),
            held.length + sum(lengths),
            max([held.longest, *lengths]),
            "".join(sorted(one for one in TAGS.values() if one in held.tags or tag(one) in facets)),
        )


def counting(held: Sequence[Row], asked: Keywords, name: str) -> tuple[list[Row], Mapping[str, int]]:
    """The rows that count in the statistics, and the number of them with each form."""
    if asked.counting:
        passes = compile_filter(asked.counting)
        held = [one for one in held if passes(schema.chunk_of(one, name).metadata)]
    numbers = {term_number(form): form for form in asked.forms}
    return list(held), Counter(form for one in held for form in schema.counts_of(one, numbers))


def having(forms: Iterable[str]) -> str:
    """The clause for rows that have one of these terms."""
    return f"array_contains_any(terms, [{', '.join(str(term_number(form)) for form in forms)}])"


def all_of(*clauses: str) -> str:
    """The conjunction of clauses; empty ones pass everything."""
    return " and ".join(f"({clause})" for clause in clauses if clause)
