"""Channels specific to Qdrant: vector search options, fusion by the server, and BM25 through sparse vectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from voicevault_retrievers._support.checks import flag, whole
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter, Predicate, both, compile_filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Failure, Query, Vector
from voicevault_retrievers.engines.channels import (
    Asked,
    AskedWording,
    EngineBM25,
    EngineDense,
    SearchedEngine,
)
from voicevault_retrievers.engines.fused import FusedLeaf
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, Weighted, score, weigh
from voicevault_retrievers.engines.qdrant import points
from voicevault_retrievers.engines.qdrant.statistics import Sums
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.lexical.formulas import Formula

FUNNEL = ("prefix", "candidates", "on_loss")


@dataclass(frozen=True)
class Way:
    """How vectors are searched: exactly (`exact`), or through a funnel of `candidates` by `prefix` dimensions."""

    exact: bool = False
    prefix: int | None = None
    candidates: int = 1000
    on_loss: Literal["raise", "full"] = "raise"

    def __post_init__(self) -> None:
        flag("exact", self.exact)

    def funnelled(self, funnel: Mapping[str, Any] | None) -> Way:
        """The way with a funnel. Raises ConfigError for invalid options."""
        if funnel is None:
            return self
        for key in funnel:
            if key not in FUNNEL:
                raise unknown("key of a funnel", key, FUNNEL)
        on_loss = funnel.get("on_loss", "raise")
        if on_loss not in ("raise", "full"):
            raise unknown("on_loss", on_loss, ("raise", "full"))
        candidates = whole("candidates", funnel.get("candidates", 1000))
        return replace(self, prefix=whole("prefix", funnel.get("prefix")), candidates=candidates, on_loss=on_loss)

    def among(self, name: str, prefix: int | None) -> Way:
        """The way in a collection made with `prefix`; ConfigError for another funnel, unless `on_loss` is "full"."""
        if self.prefix in (None, prefix):
            return self
        if self.on_loss == "full":
            return replace(self, prefix=None)
        raise ConfigError(
            f"collection {name!r} was made with prefix={prefix}, so a funnel by {self.prefix} dimensions finds "
            "nothing: give that prefix, or copy the documents into a new collection"
        )


@dataclass(frozen=True)
class ByRanks:
    """RRF, `1 / (k + rank)`, over two rankings of this depth."""

    k: int
    depth: int


class QdrantSearch(SearchedEngine, Protocol):
    """The part of `QdrantEngine` that the channels need."""

    way: Way

    def tells(self, where: Filter | None) -> bool: ...

    @property
    def prefix(self) -> int | None:
        """The dimensions of the collection's short vectors, as far as known."""
        ...

    def near(self, vector: Vector, k: int, wanted: Filter | None, way: Way) -> Steps[list[Found]]: ...

    def fusing(
        self, asked: Asked, vector: Vector, fusion: ByRanks, k: int, query: Query
    ) -> Steps[list[KeywordHit]]: ...


class QdrantDense(EngineDense):
    """The vector channel of Qdrant, see `EngineDense`.

    `funnel={"prefix": 64, "candidates": 1000}` finds candidates by the first dimensions (in a collection made with that
    `prefix`) and rescores them by all, in one request. In another collection `on_loss` "raise" raises ConfigError, and
    "full" searches all dimensions, with a note. `exact` compares all vectors, without Qdrant's HNSW graph; None is the
    engine's own setting.
    """

    engine: QdrantSearch

    def __init__(
        self,
        engine: QdrantSearch,
        *,
        funnel: Mapping[str, Any] | None = None,
        exact: bool | None = None,
        **options: Any,
    ) -> None:
        way = engine.way if exact is None else replace(engine.way, exact=exact)
        self.way = way.funnelled(funnel)
        super().__init__(engine, **options)

    @property
    def has_options(self) -> bool:
        return super().has_options or self.way != self.engine.way

    def _near(self, vector: Vector, query: Query, k: int) -> Steps[Sequence[Found]]:
        if not (yield from self.engine.exists()):
            return ()
        return (yield from self.engine.near(vector, k, both(query.require, query.where), self.way))

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        missing = super().notes(found)
        if missing or self.way.prefix in (None, self.engine.prefix):
            return missing
        said = f"the collection has no vectors of {self.way.prefix} dimensions: all were compared"
        return (Failure(self.name, "funnel", said, degrades=False),)

    def __repr__(self) -> str:
        return f"QdrantDense({self.engine!r}, {self.way!r})"


class QdrantFused(FusedLeaf[QdrantSearch]):
    """Keyword and vector search, fused by Qdrant in one request; see `FusedLeaf`.

    A score is the sum of `1 / (k + rank)` over the two rankings of `depth`, ranks from 1. Qdrant ranks keywords by
    stored weights, not by exact BM25 scores, and reports neither ranking, so a hit has one vote, which says so. Its own
    idf counts, or under `require` that of the permitted chunks, counted before. Under `require` only filters that
    Qdrant evaluates exactly are accepted: equality with strings, whole numbers and booleans, `$in`, `$and`, `$or`,
    `$not`; others raise FilterNotSupportedError. A `where` of another kind is searched channel by channel, and fused
    here.
    """

    def __init__(self, engine: QdrantSearch, k: float, depth: int, *, name: str = "fused", **options: Any) -> None:
        super().__init__(engine, name, k, depth, EngineBM25(engine, **options), QdrantDense(engine))

    def _tells(self, query: Query) -> bool:
        return self.engine.tells(query.where)

    def _fusing(self, query: Query, asked: AskedWording, vector: Vector, k: int) -> Steps[list[Match]]:
        hits = yield from self.engine.fusing(asked, vector, ByRanks(self.k, max(self.depth, k)), k, query)
        said = (f"RRF in Qdrant, k {self.k}",)
        return [Match(hit.chunk, hit.score, asked.words(hit.forms), said) for hit in hits]

    def __repr__(self) -> str:
        return f"{self.engine!r}.fused(k={self.k}, depth={self.depth})"


ROUNDING = 1e-4
"""An upper bound of the relative rounding error of a float32 inner product."""


@dataclass(frozen=True)
class Scoring:
    """Exact scoring of chunks for a query, from their own term counts."""

    formula: Formula
    terms: Sequence[Weighted]
    mean: float
    passes: Predicate
    factor: float

    @classmethod
    def of(cls, asked: Keywords, sums: Sums, population: CollectionCounts) -> Scoring:
        """The scoring of a query with these statistics."""
        terms = weigh(asked, population)
        factor = bound(asked.formula, sums) if _rising(terms) else math.inf
        return cls(asked.formula, terms, population.mean, compile_filter(asked.passing), factor)

    def query(self) -> dict[int, float]:
        """The sparse vector that requests candidates: idf by term, or 1 each where `factor` is infinite.

        For terms that share an index it has the larger idf, so that an inner product is never too small for `unseen`.
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
        """An upper bound of the score of a chunk whose inner product with `query()` is at most `product`."""
        if not math.isfinite(self.factor):
            return math.inf
        lacking = self.formula.absent() * math.fsum(term.weight for term in self.terms)
        return lacking + self.factor * product * (1 + ROUNDING)

    def hit(self, payload: Mapping[str, Any], kb: str) -> KeywordHit | None:
        """The hit of a payload that has a term and passes. Compares terms, as different terms may share an index."""
        if not self.passes(points.metadata_of(payload)):
            return None
        scored = self.score(payload)
        return None if scored is None else KeywordHit(points.chunk_of(payload, kb), *scored)

    def score(self, payload: Mapping[str, Any]) -> tuple[float, tuple[str, ...]] | None:
        """The score of a chunk, and the forms that it has; None for no term of the query."""
        return score(self.formula, self.terms, self.mean, points.frequencies_of(payload), payload["length"])


def bound(formula: Formula, sums: Sums) -> float:
    """An upper bound of the ratio of a term's score (above `absent`) to its stored value.

    A formula's curve above its value at f = 0 is `a * f / (f + g * n1)`, with `n1 = 1 - b + b * L / m1` at the present
    mean m1. The stored value is `f / (f + k * n0)`, with `n0` at the mean m0 that it was made with. Their ratio,
    `a * (f + k * n0) / (f + g * n1)`, is monotone in f, and in L: it is largest at f = 1 or for f to infinity, and at
    L = 0 or the longest chunk. It falls with m0, so the smallest m0 of all chunks bounds it. For Lucene's formula that
    is at most `max(1, m1 / m0)`. Infinite where the formula has another shape.
    """
    curve, own = formula.curve(), points.FORMULA
    if curve is None or not sums.mean or not sums.least:
        return math.inf
    tail = curve.beta / curve.gamma if curve.gamma else 0.0
    if not math.isclose(curve.add + tail, formula.absent(), abs_tol=1e-12):
        return math.inf
    ends = [1.0]
    for length in (0, sums.longest):
        stored = own.k1 * (1 - own.b + own.b * length / sums.least)
        ends.append((1 + stored) / (1 + curve.gamma * float(formula.norm(length, sums.mean))))
    return (curve.alpha - tail) * max(ends)


def engine_query(asked: Keywords) -> dict[int, float]:
    """The sparse vector of a query for Qdrant's own idf: the terms' counts in the query."""
    terms = (({points.bucket(form) for form in forms}, count) for forms, count in asked.terms.items())
    return points.sparse((index, count) for indices, count in terms for index in indices)


def fused_hit(
    asked: Keywords, passes: Predicate, payload: Mapping[str, Any], given: float, kb: str
) -> KeywordHit | None:
    """The hit of a chunk that a server found by keywords, by its vector or by both, where it passes; else None."""
    held = points.frequencies_of(payload)
    found = tuple(form for form in asked.forms if form in held)
    return KeywordHit(points.chunk_of(payload, kb), given, found) if passes(points.metadata_of(payload)) else None


def _rising(terms: Iterable[Weighted]) -> bool:
    return all(term.weight > 0 for term in terms)
