"""The BM25 family of formulas. Each scores one term of one document: `idf * tf`, higher is better.

Symbols as in the papers: N documents, n of them contain the term, f its frequency in the document, L the document's
length and avgL the mean length, in terms. For comparisons see Trotman, Puurula, Burgess (2014), "Improvements to BM25
and language models examined", and Kamphuis et al. (2020), "Which BM25 do you mean?".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import number
from voicevault_retrievers.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]

LEAST = 1e-200
"""The least score of a match, before its weight, so that a sum of 0 means "no match"."""


class Curve(NamedTuple):
    """`tf = (alpha * f + beta * norm) / (f + gamma * norm) + add`, the common shape of the variants.

    It rises with f and falls with the norm, which pruning relies on.
    """

    alpha: float
    beta: float
    gamma: float
    add: float


@dataclass(frozen=True)
class Formula:
    """One variant: k1 sets the saturation of the frequency, b in [0, 1] the length normalisation."""

    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        for constant in fields(self):
            number(constant.name, getattr(self, constant.name))
        if self.b > 1:
            raise ConfigError(f"b is between 0 and 1, not {self.b!r}")

    def idf(self, n: int, total: int) -> float:
        """The weight of a term that n of `total` documents contain."""
        raise NotImplementedError

    def floor(self, histogram: Callable[[], Iterable[tuple[int, int]]], total: int) -> float | None:
        """The replacement for a negative idf, from pairs of n and the number of terms with that n; None keeps it."""
        return None

    def curve(self) -> Curve | None:
        """The constants of `tf`; None where it has another shape, and then every match is scored."""
        raise NotImplementedError

    @cached_property
    def most(self) -> float:
        """An upper bound of `tf`; infinite where it has no `curve`."""
        curve = self.curve()
        return math.inf if curve is None else curve.alpha + curve.add

    def tf(self, f: Any, norm: Any) -> Any:
        """The weight of frequency f, where `norm` is `1 - b + b * L / avgL`."""
        curve = self.curve()
        if curve is None:
            raise NotImplementedError
        return (curve.alpha * f + curve.beta * norm) / (f + curve.gamma * norm) + curve.add

    def norm(self, lengths: Any, mean_length: float) -> Any:
        """`1 - b + b * L / avgL`; 1 where every document is empty."""
        if mean_length == 0:
            return np.ones(np.shape(lengths))
        return 1 - self.b + self.b * np.asarray(lengths, dtype=np.float64) / mean_length

    def absent(self) -> float:
        """`tf` at f = 0: the weight of a missing term in a document that matches other terms."""
        return 0.0


@dataclass(frozen=True)
class Lucene(Formula):
    """Lucene's formula, the default: idf is never negative. Robertson, Zaragoza (2009), without the constant k1 + 1."""

    def idf(self, n: int, total: int) -> float:
        return math.log(1 + (total - n + 0.5) / (n + 0.5))

    def curve(self) -> Curve:
        return Curve(1.0, 0.0, self.k1, 0.0)


@dataclass(frozen=True)
class Robertson(Formula):
    """Robertson et al. (1994), Okapi at TREC-3: idf is 0 for a term in at least half of the documents."""

    def idf(self, n: int, total: int) -> float:
        return math.log(max(1.0, (total - n + 0.5) / (n + 0.5)))

    def curve(self) -> Curve:
        return Curve(1.0, 0.0, self.k1, 0.0)


@dataclass(frozen=True)
class ATIRE(Formula):
    """Trotman, Jia, Crane (2012), "Towards an efficient and effective search engine"."""

    def idf(self, n: int, total: int) -> float:
        return math.log(total / n)

    def curve(self) -> Curve:
        return Curve(self.k1 + 1, 0.0, self.k1, 0.0)


@dataclass(frozen=True)
class Okapi(Formula):
    """As rank-bm25's BM25Okapi: a negative idf becomes `epsilon` times the mean idf of the vocabulary."""

    epsilon: float = 0.25

    def idf(self, n: int, total: int) -> float:
        return math.log(total - n + 0.5) - math.log(n + 0.5)

    def floor(self, histogram: Callable[[], Iterable[tuple[int, int]]], total: int) -> float | None:
        counts = list(histogram())
        terms = sum(count for _, count in counts)
        return self.epsilon * math.fsum(count * self.idf(n, total) for n, count in counts) / terms if terms else 0.0

    def curve(self) -> Curve:
        return Curve(self.k1 + 1, 0.0, self.k1, 0.0)


@dataclass(frozen=True)
class BM25L(Formula):
    """Lv, Zhai (2011), "When documents are very long, BM25 fails!", as in bm25s.

    The paper's `(k1 + 1) * (c + delta) / (k1 + c + delta)` with `c = f / norm`, expanded by the norm.
    """

    delta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k1 + self.delta == 0:
            raise ConfigError("BM25L needs k1 or delta above 0")

    def idf(self, n: int, total: int) -> float:
        return math.log((total + 1) / (n + 0.5))

    def curve(self) -> Curve | None:
        return Curve(self.k1 + 1, (self.k1 + 1) * self.delta, self.k1 + self.delta, 0.0)

    def absent(self) -> float:
        return (self.k1 + 1) * self.delta / (self.k1 + self.delta)


@dataclass(frozen=True)
class RankBM25L(BM25L):
    """rank-bm25's BM25L, which multiplies by the frequency once more than the paper."""

    def curve(self) -> Curve | None:
        return None

    def tf(self, f: Any, norm: Any) -> Any:
        return f * BM25L(self.k1, self.b, self.delta).tf(f, norm)

    def absent(self) -> float:
        return 0.0


@dataclass(frozen=True)
class BM25Plus(Formula):
    """Lv, Zhai (2011), "Lower-bounding term frequency normalization", as in bm25s."""

    delta: float = 1.0

    def idf(self, n: int, total: int) -> float:
        return math.log((total + 1) / n)

    def curve(self) -> Curve:
        return Curve(self.k1 + 1, 0.0, self.k1, self.delta)

    def absent(self) -> float:
        return self.delta


FORMULAS: dict[str, type[Formula]] = {
    "atire": ATIRE,
    "bm25+": BM25Plus,
    "bm25l": BM25L,
    "lucene": Lucene,
    "okapi": Okapi,
    "robertson": Robertson,
}
