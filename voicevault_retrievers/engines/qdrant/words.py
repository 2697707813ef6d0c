"""BM25 by sparse vectors: what is asked, and how much a chunk that was not seen can still score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voicevault_retrievers.core.filters import Predicate, compile_filter
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, Weighted, score, weigh
from voicevault_retrievers.engines.qdrant import points
from voicevault_retrievers.engines.qdrant.statistics import Counts
from voicevault_retrievers.lexical.formulas import Formula

ROUNDING = 1e-4
"""More than what 32-bit floats lose of an inner product, relative to it."""


@dataclass(frozen=True)
class Scoring:
    """How chunks are scored for what is asked: exactly, from their own counts."""

    formula: Formula
    terms: Sequence[Weighted]
    mean: float
    passes: Predicate
    factor: float

    @classmethod
    def of(cls, asked: Keywords, counts: Counts) -> Scoring:
        """With the statistics of the chunks that count."""
        population = counts.population(asked.forms)
        terms = weigh(asked, population)
        factor = bound(asked.formula, counts, population) if _rising(terms) else math.inf
        return cls(asked.formula, terms, population.mean, compile_filter(asked.passing), factor)

    def query(self) -> dict[int, float]:
        """The sparse vector that asks for candidates: idf by term; 1 each where some weigh nothing or less.

        Of terms that share an index the larger idf, so that an inner product is never too small for `unseen`.
        """
        weights: dict[str, float] = {}
        for term in self.terms:
            for form in term.forms:
                weights[form] = weights.get(form, 0.0) + term.weight
        values: dict[int, float] = {}
        for form, weight in weights.items():
            index = points.bucket(form)
            values[index] = max(values.get(index, 0.0), weight if math.isfinite(self.factor) else 1.0)
        return values

    def unseen(self, product: float) -> float:
        """The most that a chunk can score whose inner product with `query()` is at most `product`."""
        if not math.isfinite(self.factor):
            return math.inf
        lacking = self.formula.absent() * math.fsum(term.weight for term in self.terms)
        return lacking + self.factor * product * (1 + ROUNDING)

    def hit(self, payload: Mapping[str, Any], kb: str) -> KeywordHit | None:
        """The chunk of a payload where it has a term and passes. Terms are compared: a shared index is no match."""
        if not self.passes(points.metadata_of(payload)):
            return None
        scored = self.score(payload)
        return None if scored is None else KeywordHit(points.chunk_of(payload, kb), *scored)

    def score(self, payload: Mapping[str, Any]) -> tuple[float, tuple[str, ...]] | None:
        """The score of a chunk, and the forms that it has; None where it has none."""
        return score(self.formula, self.terms, self.mean, points.frequencies_of(payload), payload["length"])


def bound(formula: Formula, counts: Counts, population: CollectionCounts) -> float:
    """The most that a term can add now (above what it adds where it is absent), by the value stored for it.

    A formula's curve above its value at f = 0 is `a * f / (f + g * n1)`, with `n1 = 1 - b + b * L / m1` at the present
    mean m1; stored is `f / (f + k * n0)`, with `n0` at the mean m0 known when the chunk was written. Their ratio,
    `a * (f + k * n0) / (f + g * n1)`, is monotone in f, and in L: it is largest at f = 1 or without end, and at L = 0
    or the longest chunk. It falls with m0, so the smallest m0 of all chunks bounds it. For Lucene's formula that is at
    most `max(1, m1 / m0)`. Infinite where the formula has another shape.
    """
    curve = formula.curve()
    if curve is None or not population.mean or not counts.least:
        return math.inf
    tail = curve.beta / curve.gamma if curve.gamma else 0.0
    if not math.isclose(curve.add + tail, formula.absent(), abs_tol=1e-12):
        return math.inf
    ends = [1.0]
    for length in (0, counts.longest):
        stored = points.K1 * (1 - points.B + points.B * length / counts.least)
        ends.append((1 + stored) / (1 + curve.gamma * float(formula.norm(length, population.mean))))
    return (curve.alpha - tail) * max(ends)


def server_query(asked: Keywords) -> dict[int, float]:
    """The sparse vector that a server weighs by its own idf: how often the query has each term."""
    return points.sparse((points.bucket(form), count) for forms, count in asked.terms.items() for form in forms)


def server_hit(
    asked: Keywords, passes: Predicate, payload: Mapping[str, Any], given: float, kb: str
) -> KeywordHit | None:
    """A chunk that a server found, where it has a term and passes."""
    hit = fused_hit(asked, passes, payload, given, kb)
    return hit if hit is not None and hit.forms else None


def fused_hit(
    asked: Keywords, passes: Predicate, payload: Mapping[str, Any], given: float, kb: str
) -> KeywordHit | None:
    """A chunk that a server found by words, by its vector or by both, where it passes."""
    held = points.frequencies_of(payload)
    found = tuple(form for form in asked.forms if form in held)
    return KeywordHit(points.chunk_of(payload, kb), given, found) if passes(points.metadata_of(payload)) else None


def _rising(terms: Iterable[Weighted]) -> bool:
    return all(term.weight > 0 for term in terms)
