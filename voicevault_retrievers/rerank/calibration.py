"""Scores as probabilities of relevance, how far these are right, and whether anything relevant was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers._support.checks import number, whole
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.types import Failure, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError, InvalidScoreError
from voicevault_retrievers.lexical.bm25 import KeywordScan

Confidence: TypeAlias = Literal["ok", "none"]
Doubles: TypeAlias = NDArray[np.float64]

FEWEST = 20
"""Judgements that a calibration is fitted on at least."""

# Of the Newton method: most steps, a mean gradient that is none, what keeps the Hessian regular, the shortest step.
_STEPS, _FLAT, _RIDGE, _SHORTEST = 100, 1e-9, 1e-12, 1e-10

_HIGHEST = math.nextafter(1.0, 0.0)
_LOWEST = math.nextafter(0.0, 1.0)


@dataclass(frozen=True)
class Calibration:
    """The probability of relevance of a score: 1 / (1 + exp(-(slope * score + intercept))).

    `asdict` makes plain data of it, and `Calibration(**data)` the same again. Raises ConfigError for numbers that are
    not finite, and for a slope that is not above 0: a higher score is never less relevant.
    """

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        number("slope", self.slope)
        number("intercept", self.intercept, least=-math.inf)
        if self.slope == 0 or self.intercept == -math.inf:
            raise ConfigError(f"a calibration has a slope above 0 and a finite intercept, not {self!r}")

    def probability(self, score: float) -> float:
        """Above 0 and below 1, higher for a higher score. Raises InvalidScoreError for one that is not finite."""
        if not math.isfinite(score):
            raise InvalidScoreError(f"the score {score} has no probability; scores are finite numbers")
        logit = self.slope * score + self.intercept
        small = math.exp(-abs(logit))
        return min(max((1.0 if logit >= 0 else small) / (1.0 + small), _LOWEST), _HIGHEST)


@dataclass(frozen=True)
class Threshold:
    """Takes what a reranker found as found from a probability on.

    `stage` is the name of the reranker that votes with scores of `calibration`; `least` is in [0, 1].
    """

    calibration: Calibration
    least: float
    stage: str = "rerank"

    def __post_init__(self) -> None:
        if number("least", self.least) > 1:
            raise ConfigError(f"least is a probability from 0 to 1, not {self.least!r}")

    def __call__(self, ranking: Ranking) -> Confidence:
        """Whether the most probable hit is at or above the threshold, or a graph found one as what the query names.

        Where the stage failed, if only in part, or scored none of the hits, it cannot tell: then as `any_hit`.
        """
        if any(hit.by_name for hit in ranking):  # a reference is found by what it is called, which no text need repeat
            return "ok"
        failed = any(failure.degrades and failure.stage == self.stage for failure in ranking.errors)
        votes = [vote for hit in ranking if (vote := hit.vote(self.stage)) is not None]
        scores = [vote.score for vote in votes if vote.score is not None]
        if failed or not scores:
            return any_hit(ranking)
        return "ok" if self.calibration.probability(max(scores)) >= self.least else "none"


CALIBRATIONS: Mapping[str, Calibration] = {"ms-marco-MiniLM-L-12-v2": Calibration(0.4293, -2.585)}
"""Of models by name, on English questions to scientific, medical, encyclopedic and business texts: see the benchmark
`rerank_abstention`. The model's scores say nothing in languages that it does not read."""

LEAST = 0.3
"""The probability under which "nothing relevant" was right most often there."""


def any_hit(ranking: Ranking) -> Confidence:
    """Whether there is a hit."""
    return "ok" if ranking.hits else "none"


def fit_calibration(scores: ArrayLike, relevant: ArrayLike) -> Calibration:
    """The calibration that makes judgements most likely: n scores, and for each whether its passage is relevant.

    Platt (1999), "Probabilistic outputs for support vector machines", whose targets are (r + 1) / (r + 2) of r
    relevant ones and 1 / (s + 2) of s others, so that scores which tell all of them apart give finite numbers; by the
    Newton method of Lin, Lin and Weng (2007), Machine Learning 68(3). Raises ConfigError for fewer than `FEWEST`
    judgements, for those of one kind only, and for scores that are not finite, all equal, or fall with relevance.
    """
    found, judged = _fittable(scores, relevant)
    mean, sd = float(found.mean()), float(found.std())
    r, s = int(judged.sum()), int((~judged).sum())
    targets = np.where(judged, (r + 1) / (r + 2), 1 / (s + 2))
    design = np.column_stack([(found - mean) / sd, np.ones(len(found))])
    slope, intercept = _newton(design, targets, np.array([0.0, math.log((r + 1) / (s + 1))]))
    if slope <= 0:
        raise ConfigError("the scores fall with relevance: higher ones are to be more relevant; are labels swapped?")
    return Calibration(slope / sd, intercept - slope * mean / sd)


def calibration_error(probabilities: ArrayLike, relevant: ArrayLike, *, bins: int = 10) -> float:
    """How far probabilities are from frequencies, in [0, 1]; 0 is best.

    The mean distance over bins of equal width, weighted by what is in them: Naeini, Cooper and Hauskrecht (2015), AAAI;
    Guo et al. (2017), ICML, eq. 3, here for the probability of relevance.
    """
    found, judged = _probabilities(probabilities, relevant)
    width = whole("bins", bins)
    numbers = np.minimum((found * width).astype(np.int64), width - 1)
    gaps = np.bincount(numbers, weights=judged - found, minlength=width)
    return float(np.abs(gaps).sum() / len(found))


def brier_score(probabilities: ArrayLike, relevant: ArrayLike) -> float:
    """The mean squared distance of probabilities from judgements, in [0, 1]; 0 is best. Brier (1950)."""
    found, judged = _probabilities(probabilities, relevant)
    return float(np.mean((found - judged) ** 2))


def _newton(design: Doubles, targets: Doubles, weights: Doubles) -> tuple[float, float]:
    """The weights of least loss: a row of `design` (n, 2) is a score and a 1."""
    loss = _loss(design, targets, weights)
    for _ in range(_STEPS):
        fitted = 0.5 * (1.0 + np.tanh(design @ weights / 2))
        gradient = design.T @ (fitted - targets)
        if np.abs(gradient).max() < _FLAT * len(targets):
            break
        hessian = (design.T * (fitted * (1.0 - fitted))) @ design + _RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > _SHORTEST and _loss(design, targets, weights - size * step) > loss - 1e-4 * size * gradient @ step:
            size /= 2
        weights = weights - size * step
        loss = _loss(design, targets, weights)
    return float(weights[0]), float(weights[1])


def _loss(design: Doubles, targets: Doubles, weights: Doubles) -> float:
    logits = design @ weights
    return float((np.logaddexp(0.0, logits) - targets * logits).sum())


def _fittable(scores: ArrayLike, relevant: ArrayLike) -> tuple[Doubles, NDArray[np.bool_]]:
    found, judged = _paired("scores", scores, relevant)
    if len(found) < FEWEST:
        raise ConfigError(f"a calibration is fitted on at least {FEWEST} judgements, not {len(found)}")
    if judged.all() or not judged.any():
        raise ConfigError("a calibration is fitted on relevant passages and others; these are all of one kind")
    if not np.isfinite(found).all() or found.min() == found.max():
        raise ConfigError("a calibration is fitted on finite scores that are not all equal")
    return found, judged


def _probabilities(probabilities: ArrayLike, relevant: ArrayLike) -> tuple[Doubles, NDArray[np.bool_]]:
    found, judged = _paired("probabilities", probabilities, relevant)
    if not len(found) or not ((found >= 0) & (found <= 1)).all():
        raise ConfigError("probabilities are numbers from 0 to 1, at least one")
    return found, judged


def _paired(name: str, values: ArrayLike, relevant: ArrayLike) -> tuple[Doubles, NDArray[np.bool_]]:
    found, judged = np.asarray(values, dtype=np.float64), np.asarray(relevant, dtype=bool)
    if found.ndim != 1 or found.shape != judged.shape:
        raise ConfigError(f"{name} and relevant are two lists of one length, not {found.shape} and {judged.shape}")
    return found, judged


MATCHED = Calibration(21.7582, -6.8034)
"""Of the share of a question that a chunk matches, on questions in six languages: see the benchmark
`abstention_languages`. Collections differ: fit your own with `fit_calibration`."""
LEAST_SHARE = 0.27
"""The probability under which "nothing relevant" was right most often there."""
SPOKEN = 0.4
"""Where some chunk has a lower share of a question's words, it is taken for one in another language."""


class MatchedShare(Stage):
    """Votes with the share of a question that each hit matches, in [0, 1]; the order stays as it was.

    The share is the hit's BM25 score by the highest that a chunk could have for the question: words that are rare in
    the collection weigh more. `words` is a `BM25` channel. Under `Pipeline(confidence=Threshold(MATCHED, LEAST,
    "matched"))` the best share says whether anything relevant was found. Where the collection has fewer than two
    fifths of the question's words, as of a question in another language, shares say nothing: there is no vote, and a
    note. Raises ConfigError for a channel that does not say how high a score can be.
    """

    refills = False

    def __init__(self, words: Channel, *, name: str = "matched") -> None:
        super().__init__()
        self.words = words
        self.name = name

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The same hits, each with a vote more."""
        scan = self.words.scan(query)
        if not isinstance(scan, KeywordScan):
            raise ConfigError(f"{self.name} goes by the scores of a BM25 channel, not by {self.words!r}")
        if scan.highest <= 0 or (scan.coverage or 0.0) < SPOKEN:
            said = "the collection has too few of the question's words: what hits match of it says nothing"
            return ranking.failing(Failure(self.name, "OtherWords", said, degrades=False))
        scores = scan.scores(ranking.ids)
        shares = {one: min(max(scores.get(one, 0.0) / scan.highest, 0.0), 1.0) for one in ranking.ids}
        ranks = {one: rank for rank, one in enumerate(sorted(shares, key=lambda one: (-shares[one], one)), 1)}
        hits = (hit.voted(Vote(self.name, ranks[hit.id], shares[hit.id])) for hit in ranking)
        return replace(ranking, hits=tuple(hits))

    def __repr__(self) -> str:
        return f"MatchedShare({self.words!r}, name={self.name!r})"
