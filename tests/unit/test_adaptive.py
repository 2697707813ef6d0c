"""When reranking has seen enough."""

from __future__ import annotations

import numpy as np
import pytest

from voicevault_retrievers.rerank.adaptive import LEAST, settled_at


def falling(count: int, slope: float, noise: float, seed: int = 0) -> list[float]:
    ranks = np.log(np.arange(1, count + 1))
    return [float(score) for score in 9.0 + slope * ranks + noise * np.random.default_rng(seed).normal(size=count)]


def test_scores_that_fall_steeply_are_settled_early_and_level_ones_are_not() -> None:
    assert settled_at(falling(20, -5.0, 0.5), 100, 5, 0.95)
    assert not settled_at(falling(20, 0.0, 0.5), 100, 5, 0.95)
    assert not settled_at(falling(20, 1.0, 0.5), 100, 5, 0.95)
    assert not settled_at([1.0] * 20, 50, 5, 0.95)


def test_more_certainty_takes_more_scores() -> None:
    scores = falling(100, -1.5, 2.0)
    needed = [
        next(seen for seen in range(1, 101) if settled_at(scores[:seen], 100, 5, confidence))
        for confidence in (0.5, 0.9, 0.999)
    ]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_it_is_not_judged_by_few_and_always_by_all() -> None:
    steep = falling(100, -50.0, 0.0)
    assert not settled_at(steep[: 5 + LEAST - 1], 100, 5, 0.5)
    assert settled_at(steep[: 5 + LEAST], 100, 5, 0.5)
    assert settled_at([], 0, 5, 0.99)
    assert settled_at([1.0, 2.0], 2, 5, 0.99)


def test_what_it_says_holds_about_as_often_as_it_says() -> None:
    """Of draws from the very model that it assumes, nothing better is left in about the share that it says."""
    right = []
    for seed in range(200):
        scores = falling(60, -2.5, 1.0, seed)
        stop = next(seen for seen in range(8, 61) if settled_at(scores[:seen], 60, 5, 0.9))
        if stop < 60:
            bar = sorted(scores[:stop])[-5]
            right.append(max(scores[stop:]) <= bar)
    assert len(right) > 100
    assert np.mean(right) == pytest.approx(0.9, abs=0.1)
