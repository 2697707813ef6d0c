"""Whether a difference between two systems may be chance: intervals by bootstrap, and a paired randomisation test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import ConfigError

SAMPLES = 10_000
"""Resamples of an interval, and sign flips of a test that cannot try all."""
EXACT = 14
"""Up to so many differences that are not 0, the test tries every way to flip their signs."""
_AT_ONCE = 1 << 20

Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Sequence[float] | Floats


@dataclass(frozen=True)
class Comparison:
    """The mean gain of one system over another, its 95 % interval, and the two-sided p of no difference."""

    difference: float
    low: float
    high: float
    p: float


def paired(a: Scores, b: Scores, *, seed: int = 0) -> Comparison:
    """How `b` compares with `a`, two systems' scores of the same questions in one order: the mean of b - a.

    p is that of Fisher's randomisation test: the share of all ways to exchange the two scores of questions whose mean
    difference is as far from 0, in either direction (Smucker, Allan, Carterette 2007, "A comparison of statistical
    significance tests for information retrieval evaluation"). Beyond `EXACT` questions that differ it is estimated
    from `SAMPLES` draws, the observed one among them, so it is never 0. Equal arguments give equal results. Raises
    ConfigError where the lengths differ, or there is no question, or a score is not finite.
    """
    if len(a) != len(b):
        raise ConfigError(f"a comparison is of the same questions: {len(a)} scores are given, and {len(b)}")
    differences = _checked(b) - _checked(a)
    low, high = interval(differences, seed=seed)
    return Comparison(float(differences.mean()), low, high, _p(differences[differences != 0], seed))


def interval(values: Scores, *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean: the percentiles 2.5 and 97.5 of the means of `SAMPLES` bootstrap samples.

    Efron 1979, "Bootstrap methods: another look at the jackknife". With one value it is that value alone, which says
    nothing of how far it may be off. Raises ConfigError as `paired`.
    """
    given = _checked(values)
    rng = np.random.default_rng(seed)
    means = _drawn(len(given), lambda count: given[rng.integers(len(given), size=(count, len(given)))].mean(axis=1))
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def _p(differences: Floats, seed: int) -> float:
    """The two-sided p of differences none of which is 0."""
    if not len(differences):
        return 1.0
    # A flip of all signs is as far from 0 whatever the order of summation; what is equal may differ by a rounding.
    reached = abs(differences.sum()) - 1e-12 * abs(differences).sum()
    if len(differences) <= EXACT:
        flips = np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences)) & 1
        return float((abs(_signed(flips, differences)) >= reached).mean())
    rng = np.random.default_rng(seed)
    sums = _drawn(len(differences), lambda count: _signed(rng.integers(2, size=(count, len(differences))), differences))
    return float((1 + (abs(sums) >= reached).sum()) / (1 + SAMPLES))


def _signed(flips: NDArray[np.int64], differences: Floats) -> Floats:
    """The sum of the differences under each row of flips: 1 keeps a sign, 0 turns it."""
    signed: Floats = 2.0 * (flips @ differences) - differences.sum()
    return signed


def _drawn(width: int, draw: Callable[[int], Floats]) -> Floats:
    """`SAMPLES` draws of rows of this width, some at once."""
    most = max(1, _AT_ONCE // width)
    return np.concatenate([draw(min(most, SAMPLES - done)) for done in range(0, SAMPLES, most)])


def _checked(values: Scores) -> Floats:
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or not len(given) or not np.isfinite(given).all():
        raise ConfigError("scores are one finite number per question, of at least one question")
    return given
