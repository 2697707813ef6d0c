"""Calibration of scores as probabilities of relevance, its errors, and the test whether anything relevant was found."""

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
"""The fewest judgements for fitting a calibration."""

# Newton's method: the most steps, the mean gradient that counts as 0, the Hessian's regularisation, the least step
# size.
_STEPS, _FLAT, _RIDGE, _SHORTEST = 100, 1e-9, 1e-12, 1e-10

_HIGHEST = math.nextafter(1.0, 0.0)
_LOWEST = math.nextafter(0.0, 1.0)


@dataclass(frozen=True)
class Calibration:
    """Maps a score to a probability of relevance: 1 / (1 + exp(-(slope * score + intercept))).

    `asdict` returns plain data, from which `Calibration(**data)` is made again. Raises ConfigError for numbers that are
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
        """The probability in (0, 1), rising with the score. Raises InvalidScoreError unless the score is finite."""
        if not math.isfinite(score):
            raise InvalidScoreError(f"the score {score} has no probability; scores are finite numbers")
        logit = self.slope * score + self.intercept
        small = math.exp(-abs(logit))
        return min(max((1.0 if logit >= 0 else small) / (1.0 + small), _LOWEST), _HIGHEST)


@dataclass(frozen=True)
class Threshold:
    """Decides by probability whether a reranker found anything relevant.

    `stage` is the name of the reranker whose votes have scores for `calibration`; `least` is in [0, 1].
    """

    calibration: Calibration
    least: float
    stage: str = "rerank"

    def __post_init__(self) -> None:
        if number("least", self.least) > 1:
            raise ConfigError(f"least is a probability from 0 to 1, not {self.least!r}")

    def __call__(self, ranking: Ranking) -> Confidence:
        """Return "ok" where a hit reaches the threshold, or a graph found what the query names; else "none".

        Where the stage failed, even in part, or scored no hit, the result is that of `any_hit`.
        """
        if any(hit.by_name for hit in ranking):  # a named reference need not repeat its name in its text
            return "ok"
        failed = any(failure.degrades and failure.stage == self.stage for failure in ranking.errors)
        votes = [vote for hit in ranking if (vote := hit.vote(self.stage)) is not None]
        scores = [vote.score for vote in votes if vote.score is not None]
        if failed or not scores:
            return any_hit(ranking)
        return "ok" if self.calibration.probability(max(scores)) >= self.least else "none"


CALIBRATIONS: Mapping[str, Calibration] = {"ms-marco-MiniLM-L-12-v2": Calibration(0.4293, -2.585)}
"""Calibrations by model, fitted on English questions to scientific, medical, encyclopedic and business texts: see the
benchmark `rerank_abstention`. In languages that a model does not read, its scores tell nothing.
"""

LEAST = 0.3
"""The probability below which "nothing relevant" was right most often in that benchmark."""


def any_hit(ranking: Ranking) -> Confidence:
    """Return "ok" where there is a hit, else "none"."""
    return "ok" if ranking.hits else "none"


def fit_calibration(scores: ArrayLike, relevant: ArrayLike) -> Calibration:
    """The maximum-likelihood calibration for n scores, with a judgement for each whether its passage is relevant.

    Platt (1999), "Probabilistic outputs for support vector machines", with its targets (r + 1) / (r + 2) for r relevant
    passages and 1 / (s + 2) for s others, so that perfectly separating scores give finite numbers; fitted by the Newton
    method of Lin, Lin and Weng (2007), Machine Learning 68(3). Raises ConfigError for fewer than `FEWEST` judgements,
    for judgements of one kind only, and for scores that are not finite, all equal, or fall with relevance.
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
    """The expected calibration error of probabilities, in [0, 1]; 0 is best.

    The mean distance of probability and frequency over bins of equal width, weighted by their counts: Naeini, Cooper
    and Hauskrecht (2015), AAAI; Guo et al. (2017), ICML, eq. 3, here for the probability of relevance.
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
    """The weights of least loss. A row of `design` (n, 2) is a score and a 1."""
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
"""The calibration of a chunk's matched share, fitted on questions in six languages: see the benchmark
`abstention_languages`. Collections differ: fit your own with `fit_calibration`.
"""
LEAST_SHARE = 0.27
"""The probability below which "nothing relevant" was right most often in that benchmark."""
SPOKEN = 0.4
"""A collection with a lower share of a question's words counts as being in another language."""


class MatchedShare(Stage):
    """Adds a vote with the share of the question that each hit matches, in [0, 1]; the order does not change.

    The share is the hit's BM25 score divided by the highest possible score for the question, so words that are rare in
    the collection weigh more. `words` is a `BM25` channel. In a pipeline with `confidence=Threshold(MATCHED, LEAST,
    "matched")` the best share decides whether anything relevant was found. Where the collection has fewer than two
    fifths of the question's words, as for a question in another language, shares tell nothing: a note replaces the
    votes. Raises ConfigError for a channel that gives no highest possible score.
    """

    refills = False

    def __init__(self, words: Channel, *, name: str = "matched") -> None:
        super().__init__()
        self.words = words
        self.name = name

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The same hits, each with a vote added."""
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
