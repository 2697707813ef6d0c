"""Intervals and the randomisation test, beside arithmetic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.significance import EXACT, SAMPLES, Comparison, interval, paired

scores = st.lists(st.tuples(*[st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0])] * 2), min_size=1, max_size=8)


def test_a_gain_on_each_of_four_questions_is_two_flips_of_sixteen() -> None:
    found = paired([0.0, 0.1, 0.2, 0.3], [0.5, 0.3, 0.3, 0.7])
    assert found.difference == pytest.approx((0.5 + 0.2 + 0.1 + 0.4) / 4)
    assert found.p == 2 / 2**4
    assert 0.1 <= found.low <= found.difference <= found.high <= 0.5


@given(scores)
def test_every_flip_is_tried_where_they_are_few(pairs: list[tuple[float, float]]) -> None:
    differences = [b - a for a, b in pairs]
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True))
            for signs in itertools.product((-1, 1), repeat=len(differences))]  # fmt: skip
    as_far = [abs(total) >= abs(sum(differences)) - 1e-9 for total in sums]
    assert paired(*zip(*pairs, strict=True)).p == pytest.approx(sum(as_far) / len(as_far))


def test_an_interval_is_that_of_the_normal_law_where_there_are_many() -> None:
    values = np.random.default_rng(7).normal(0.4, 0.2, 4000)
    half = 1.96 * values.std() / len(values) ** 0.5
    assert interval(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_beyond_what_can_be_tried_draws_come_near_to_all_flips() -> None:
    rng = np.random.default_rng(7)
    differences = rng.normal(0.04, 0.2, EXACT + 4)
    flips = 1 - 2 * (np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences)) & 1)
    exact = (abs(flips @ differences) >= abs(differences.sum()) - 1e-12).mean()
    # The standard deviation of a share of SAMPLES draws is at most 0.5 / sqrt(SAMPLES); a two-sided p doubles one side.
    assert paired([0.0] * len(differences), differences).p == pytest.approx(exact, abs=8 * 0.5 / SAMPLES**0.5)


def test_the_two_directions_mirror_each_other() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random(200), rng.random(200)
    there, back = paired(a, b), paired(b, a)
    assert (there.difference, there.p) == (-back.difference, back.p)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=0.005)
    assert paired(a, b) == there
    assert paired(a, b, seed=1).low != there.low


def test_where_nothing_differs_nothing_is_found_and_where_all_do_it_is_no_chance() -> None:
    assert paired([0.5] * 30, [0.5] * 30) == Comparison(0.0, 0.0, 0.0, 1.0)
    assert interval([0.25]) == (0.25, 0.25)
    # Many questions that all gain are no chance.
    assert paired([0.0] * 100, [1.0] * 100) == Comparison(1.0, 1.0, 1.0, 2 / (1 + SAMPLES))


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([], []), ([0.1, float("nan")], [0.1, 0.2])])
def test_scores_that_cannot_be_compared_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ConfigError):
        paired(a, b)
