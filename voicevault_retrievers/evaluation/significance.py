"""Significance of a difference between two systems: bootstrap intervals, and a paired randomisation test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError

SAMPLES = 10_000
"""The number of bootstrap samples of an interval, and of sign flips where a test cannot try all."""
EXACT = 14
"""The most non-zero differences for which the test tries every sign flip."""
_AT_ONCE = 1 << 20

Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Sequence[float] | Floats


@dataclass(frozen=True)
class Comparison:
    """The mean gain of one system over another, its 95 % interval, and the two-sided p-value of no difference."""

    difference: float
    low: float
    high: float
    p: float


def paired(a: Scores, b: Scores, *, seed: int = 0) -> Comparison:
    """Compare `b` with `a`, two systems' scores of the same questions in the same order: the mean of b - a.

    The p-value is that of Fisher's randomisation test: the share of all ways to exchange the two scores of questions
    whose mean difference is at least as far from 0, in either direction (Smucker, Allan, Carterette 2007, "A comparison
    of statistical significance tests for information retrieval evaluation"), by SciPy's `permutation_test`. For more
    than `EXACT` differing questions it is estimated from `SAMPLES` draws, which include the observed one, so it is
    never 0. Equal arguments give equal results. Raises ConfigError where the lengths differ, where there is no
    question, or where a score is not finite, and MissingExtraError without SciPy (extra `eval`).
    """
    if len(a) != len(b):
        raise ConfigError(f"a comparison is of the same questions: {len(a)} scores are given, and {len(b)}")
    differences = _checked(b) - _checked(a)
    low, high = interval(differences, seed=seed)
    return Comparison(float(differences.mean()), low, high, _p(differences[differences != 0], seed))


def interval(values: Scores, *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean: the 2.5 and 97.5 percentiles of the means of `SAMPLES` bootstrap samples.

    Efron 1979, "Bootstrap methods: another look at the jackknife", by SciPy's `bootstrap`. For a single value both ends
    are that value, which says nothing of its error. Raises as `paired`.
    """
    given = _checked(values)
    if len(given) == 1:
        return float(given[0]), float(given[0])
    found = require("scipy.stats", extra="eval").bootstrap(
        (given,), np.mean, n_resamples=SAMPLES, batch=_batch(given), method="percentile", rng=seed
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _p(differences: Floats, seed: int) -> float:
    """The two-sided p-value of differences that are all non-zero."""
    if len(differences) < 2:  # both signs of one difference are equally far from 0
        return 1.0
    found = require("scipy.stats", extra="eval").permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=np.inf if len(differences) <= EXACT else SAMPLES,
        batch=_batch(differences),
        rng=seed,
    )
    return float(found.pvalue)


def _batch(values: Floats) -> int:
    """The number of resamples that are in memory at once."""
    return max(1, _AT_ONCE // len(values))


def _checked(values: Scores) -> Floats:
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or not len(given) or not np.isfinite(given).all():
        raise ConfigError("scores are one finite number per question, of at least one question")
    return given
