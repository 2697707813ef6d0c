"""BM25 from an engine's own statistics: the query, the statistics, and the score of a chunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.formulas import Floats, Formula, Lucene
from voicevault_retrievers.lexical.index import LexicalIndex, TermScore
from voicevault_retrievers.lexical.statistics import Statistics, counting_of
from voicevault_retrievers.lexical.weighted_query import Forms

MOST_REPEATS = 100
"""The most repeats of a word in a query: its weight is their number, so that other weights are rounded to this."""

LONGEST_QUERY = 4000
"""The number of words of a query that is not repeated further for finer weights."""

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Keywords:
    """A keyword query: the forms of each term, and how often the query has the term.

    A chunk has a term in at most one form. `where` and `require` restrict the hits; `statistics` says what counts.
    `positive` drops hits with scores of 0 or less.
    """

    terms: Mapping[Forms, float]
    formula: Formula = field(default_factory=Lucene)
    where: Filter | None = None
    require: Filter | None = None
    statistics: Statistics | None = None
    positive: bool = False

    @cached_property
    def forms(self) -> list[str]:
        """All forms, each once."""
        return list(dict.fromkeys(form for forms in self.terms for form in forms))

    @property
    def passing(self) -> Filter | None:
        """The filter on the hits."""
        return both(self.require, self.where)

    @property
    def filters(self) -> dict[str, Any]:
        """The filters and what is counted, as options of `LexicalIndex`."""
        return {"where": self.where, "require": self.require, "filtered": self.filtered}

    @property
    def counting(self) -> Filter | None:
        """The filter on the chunks counted in the statistics; None for all chunks."""
        return None if self.statistics == "engine" else counting_of(self.where, self.require, self.filtered)

    def best_in(self, index: LexicalIndex, k: int) -> list[KeywordHit]:
        """The best k hits of an index."""
        hits = index.search(self.terms, k, self.formula, positive=self.positive, **self.filters)
        return [KeywordHit(hit.chunk, hit.score, hit.terms) for hit in hits]

    @property
    def filtered(self) -> bool:
        """Whether the statistics count only what passes `where` too."""
        return self.statistics == "filtered"

    @property
    def by_engine(self) -> bool:
        """Whether the engine's own statistics serve: asked for by name, or by default without access rights."""
        return self.statistics == "engine" or (self.statistics is None and self.require is None)


@dataclass(frozen=True)
class CollectionCounts:
    """The statistics: the number of chunks, the sum of their lengths in terms, and the chunks per form.

    `histogram` returns pairs (n, number of terms that n chunks have); only formulas that replace negative weights need
    it.
    """

    total: int
    length: int
    frequencies: Mapping[str, int]
    histogram: Callable[[], Iterable[tuple[int, int]]] | None = field(default=None, compare=False)

    @property
    def mean(self) -> float:
        """The mean length in terms."""
        return self.length / self.total if self.total else 0.0


class Weighted(NamedTuple):
    """A term that some chunk has: its forms, and its weight, `count * idf`."""

    forms: Forms
    weight: float


class KeywordHit(NamedTuple):
    """A chunk that has a term of the query: its score, higher is better, and the forms that it has."""

    chunk: Chunk
    score: float
    forms: tuple[str, ...]


class KeywordHits(Listing[KeywordHit]):
    """Hits by falling score, equal scores by ascending id; each is made when it is read. `forms` are those of each."""

    def __init__(
        self,
        ids: Sequence[str],
        scores: Sequence[float],
        forms: Sequence[tuple[str, ...]],
        chunk: Callable[[int], Chunk],
    ) -> None:
        super().__init__(ids, np.array(scores), lambda at: KeywordHit(chunk(at), scores[at], forms[at]))
        self.forms = forms


class Words(NamedTuple):
    """A query as a text: its words, as many of each as its weight times `repeats`."""

    text: str
    repeats: float


def query_words(asked: Keywords, word: Callable[[str], str], relative: Mapping[str, float]) -> Words:
    """The words of a query, whose forms weigh `relative` (1 where absent); forms of a term may share a `word`."""
    weight: dict[str, float] = {}
    for forms, count in asked.terms.items():
        for one, share in {word(form): relative.get(form, 1.0) for form in forms}.items():
            weight[one] = weight.get(one, 0.0) + count * share
    whole = all(value == int(value) and value <= MOST_REPEATS for value in weight.values())
    most = max(min(MOST_REPEATS, LONGEST_QUERY // len(weight)), 1)
    repeats = 1.0 if whole else most / max(weight.values())
    text = " ".join(one for one, value in weight.items() for _ in range(max(round(value * repeats), 1)))
    return Words(text, repeats)


def weigh(asked: Keywords, population: CollectionCounts) -> list[Weighted]:
    """The weighted terms that some chunk has, in query order.

    Raises ConfigError where the formula needs a histogram and the population has none.
    """
    return [Weighted(forms, count * idf) for forms, count, _, idf in _counted(asked, population)]


def explained(
    asked: Keywords, population: CollectionCounts, frequencies: Mapping[str, int], length: int
) -> list[TermScore]:
    """The parts of the score of a chunk with these term frequencies, as of `LexicalIndex.explain`; see `score`."""
    formula, norm = asked.formula, float(asked.formula.norm(length, population.mean))
    parts = []
    for forms, count, n, idf in _counted(asked, population):
        f = next((frequencies[one] for one in forms if frequencies.get(one)), 0)
        contribution = count * idf * (float(formula.tf(f, norm)) if f else formula.absent())
        parts.append(TermScore(forms[0], count, f, n, idf, norm, contribution))
    matches = any(part.frequency for part in parts)
    return [part for part in parts if matches and (part.frequency or part.contribution)]


def coverage(asked: Keywords, population: CollectionCounts) -> float | None:
    """The share of the query's terms that some chunk has, weighted by their counts in the query; None for no terms."""
    total = sum(asked.terms.values())
    had = [n for forms, n in asked.terms.items() if any(population.frequencies.get(form) for form in forms)]
    return sum(had) / total if total else None


def _counted(asked: Keywords, population: CollectionCounts) -> list[tuple[Forms, float, int, float]]:
    """For each term that some chunk has: its forms, its count in the query, its document frequency, and its idf."""
    known = [
        (forms, count, sum(population.frequencies.get(form, 0) for form in forms))
        for forms, count in asked.terms.items()
    ]
    held = [(forms, count, n) for forms, count, n in known if n]
    idf = [asked.formula.idf(n, population.total) for _, _, n in held]
    if idf and min(idf) < 0:
        idf = _floored(asked.formula, population, idf)
    return [(*one, weight) for one, weight in zip(held, idf, strict=True)]


def _floored(formula: Formula, population: CollectionCounts, idf: list[float]) -> list[float]:
    def histogram() -> Iterable[tuple[int, int]]:
        if population.histogram is None:
            raise ConfigError(
                f"{formula!r} replaces negative weights by a mean over all terms, which this engine cannot tell: use "
                "Lucene(), the default, or search the documents in a knowledge base"
            )
        return population.histogram()

    floor = formula.floor(histogram, population.total)
    return idf if floor is None else [floor if value < 0 else value for value in idf]


def score(
    formula: Formula, terms: Sequence[Weighted], mean: float, frequencies: Mapping[str, int], length: int
) -> tuple[float, tuple[str, ...]] | None:
    """The score of a chunk with these term frequencies, and the forms that it has; None for no term of the query.

    The exact BM25 of `formula`, equal to a knowledge base's but for rounding.
    """
    norm = float(formula.norm(length, mean))
    absent = formula.absent()
    parts, found = [], []
    for forms, weight in terms:
        form = next((one for one in forms if frequencies.get(one)), None)
        if form is not None:
            parts.append(weight * float(formula.tf(frequencies[form], norm)))
            found.append(form)
        elif absent:
            parts.append(weight * absent)
    return (math.fsum(parts), tuple(found)) if found else None


def scores_of(
    formula: Formula, terms: Sequence[Weighted], mean: float, counts: Mapping[str, Integers], lengths: Integers
) -> Floats:
    """`score` of many chunks: `counts` are the frequencies of each form in each; 0 where a chunk has no term."""
    norm, total = formula.norm(lengths, mean), np.zeros(len(lengths))
    there = np.zeros(len(lengths), dtype=bool)
    for forms, weight in terms:
        f = reduce(lambda held, form: np.where(held, held, counts[form]), forms, np.zeros(len(lengths), dtype=np.int64))
        total += weight * np.where(f, formula.tf(np.maximum(f, 1), norm), formula.absent())
        there |= f > 0
    return np.where(there, total, 0.0)


def best(hits: Iterable[KeywordHit], k: int, *, positive: bool = False) -> list[KeywordHit]:
    """The k hits of the highest score, ties by ascending id; `positive` drops scores of 0 or less."""
    kept = (hit for hit in hits if not positive or hit.score > 0)
    return sorted(kept, key=lambda hit: (-hit.score, hit.chunk.id))[:k]
