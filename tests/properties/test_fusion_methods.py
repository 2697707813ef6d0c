"""The invariants of `test_invariants`, for every fusion method by name and for every variant of one."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterable, Mapping
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ListChannel, examples
from tests.properties.strategies import found
from voicevault_retrievers.core.types import ChannelKind, KnownScores, Query, Ranking
from voicevault_retrievers.fusion import (
    METHODS,
    CombMNZ,
    Convex,
    DistributionBased,
    Fused,
    Method,
    Pool,
    WeightedSum,
    fuse,
    method_named,
)

Entries = list[tuple[str, float]]
KINDS: tuple[ChannelKind, ...] = ("keyword", "semantic", "question", "hybrid")
NORMALISED: list[Method] = [
    WeightedSum(), WeightedSum("sum"), WeightedSum("zscore"), CombMNZ(), DistributionBased(),
]  # fmt: skip
VARIANTS: list[Method] = [
    WeightedSum("none"), *NORMALISED[1:3], Convex(None), Convex(0.0), Convex(exact=False),
]  # fmt: skip
SOME = examples(0.5)
EACH = pytest.mark.parametrize(
    "method", [*(method_named(name, {}) for name in METHODS if name != "engine"), *VARIANTS], ids=repr
)

lists = st.lists(found, min_size=1, max_size=4)
weights = st.lists(st.sampled_from([0.1, 1.0, 3.0]), min_size=4, max_size=4)
ks = st.integers(0, 40)


class Knowing(ListChannel):
    """A list that has a score for every chunk: what it did not find is below what it found."""

    def scan(self, query: Query, found: object = ()) -> KnownScores:
        return KnownScores(self._scores)

    def _scores(self, ids: Iterable[str]) -> Mapping[str, float]:
        own = {chunk_id: score for chunk_id, score in self.found if score is not None}
        below = min(own.values(), default=0.0)
        return {chunk_id: own.get(chunk_id, below - int(chunk_id[1:]) / 64) for chunk_id in ids}


def fused(entries: list[Entries], method: Method, given: list[float], order: list[int] | None = None) -> Fused:
    """Channels of every kind, every other one with exact scores."""
    channels = {
        f"c{at}": (Knowing if at % 2 else ListChannel)(entries[at], kind=KINDS[at])
        for at in order or range(len(entries))
    }
    return fuse(channels, method=method, weights={name: given[int(name[1:])] for name in channels})


def told(ranking: Ranking) -> list[tuple[str, float | None]]:
    return [(hit.id, hit.score) for hit in ranking]


@EACH
@SOME
@given(entries=lists, given_weights=weights, k=ks)
def test_1_a_ranking_is_valid_and_holds_at_most_k(
    method: Method, entries: list[Entries], given_weights: list[float], k: int
) -> None:
    ranking = fused(entries, method, given_weights).search("q", k)
    union = {chunk_id for one in entries for chunk_id, _ in one}
    assert len(ranking) == min(k, len(union))
    assert set(ranking.ids) <= union
    assert not any(failure.degrades for failure in ranking.errors)
    Ranking(ranking.hits)  # its constructor checks ids, scores and order


@EACH
@SOME
@given(entries=lists, given_weights=weights, seed=st.randoms(use_true_random=False))
def test_2_the_order_of_the_channels_does_not_matter(
    method: Method, entries: list[Entries], given_weights: list[float], seed: Random
) -> None:
    order = list(range(len(entries)))
    seed.shuffle(order)
    one = fused(entries, method, given_weights).search("q", 100)
    other = fused(entries, method, given_weights, order).search("q", 100)
    assert told(one) == told(other)
    assert one.errors == other.errors


@EACH
@SOME
@given(entries=lists, given_weights=weights)
def test_3_votes_reproduce_the_fused_score(method: Method, entries: list[Entries], given_weights: list[float]) -> None:
    for hit in fused(entries, method, given_weights).search("q", 100):
        assert hit.score == hit.fused == math.fsum(vote.contribution or 0.0 for vote in hit.votes)
        ranked = {vote.stage: vote.rank for vote in hit.votes if vote.rank is not None}
        assert ranked == {
            f"c{at}": [chunk_id for chunk_id, _ in one].index(hit.id) + 1
            for at, one in enumerate(entries)
            if hit.id in dict(one)
        }


@EACH
@SOME
@given(entries=lists, given_weights=weights, k=ks)
def test_4_fewer_results_are_the_first_of_more(
    method: Method, entries: list[Entries], given_weights: list[float], k: int
) -> None:
    channel = fused(entries, method, given_weights)
    assert channel.search("q", k).hits == channel.search("q", k + 1).hits[:k]


@EACH
@SOME
@given(entries=lists, given_weights=weights)
def test_5_inputs_are_not_changed(method: Method, entries: list[Entries], given_weights: list[float]) -> None:
    channel = fused(entries, method, given_weights)
    pool = Pool({name: one.search("q", 100) for name, one in channel.channels.items()})
    evidence = {
        name: pool.evidence(name, one.kind, one.scores(Query("q"), pool.missing(name)))
        for name, one in channel.channels.items()
    }
    before = copy.deepcopy(({name: vars(one) for name, one in evidence.items()}, channel.weights, method))
    with np.errstate(over="ignore"):
        parts = method.contributions(evidence, channel.weights)
    for name, one in evidence.items():
        np.testing.assert_equal({key: vars(one)[key] for key in before[0][name]}, before[0][name])
        assert parts[name].shape == (len(pool.ids),)
    assert (channel.weights, method) == before[1:]


@EACH
@SOME
@given(entries=found)
def test_6_a_lone_channel_keeps_its_order(method: Method, entries: Entries) -> None:
    for kind in KINDS[:3]:
        channel = ListChannel(entries, kind=kind)
        assert fuse(a=channel, b=ListChannel([]), method=method).search("q", 100).ids == channel.search("q", 100).ids


@EACH
@SOME
@given(entries=found, bare=found)
def test_6_hits_without_scores_are_ranked_and_fused(method: Method, entries: Entries, bare: Entries) -> None:
    unscored: list[tuple[str, float | None]] = [(chunk_id, None) for chunk_id, _ in bare]
    assert ListChannel(unscored).search("q", 100).ids == tuple(chunk_id for chunk_id, _ in bare)
    together = fuse(a=ListChannel(entries), b=ListChannel(unscored), method=method).search("q", 100)
    assert set(together.ids) == {chunk_id for chunk_id, _ in [*entries, *bare]}
    assert fuse(a=ListChannel(unscored), method=method).search("q", 100).ids == tuple(i for i, _ in unscored)


@pytest.mark.parametrize("method", [*NORMALISED, Convex()], ids=repr)
@given(scores=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_6_scores_of_any_size_are_fused(method: Method, scores: list[float]) -> None:
    entries = sorted(((f"d{at}", score) for at, score in enumerate(scores)), key=lambda entry: (-entry[1], entry[0]))
    ranking = fuse(a=ListChannel(entries), b=ListChannel([("d0", 1.0)]), method=method).search("q", 100)
    assert set(ranking.ids) == {"d0", *(chunk_id for chunk_id, _ in entries)}


@EACH
@examples(0.25)
@given(entries=lists, given_weights=weights, k=ks)
def test_8_sync_equals_async(method: Method, entries: list[Entries], given_weights: list[float], k: int) -> None:
    channel = fused(entries, method, given_weights)
    assert channel.search("q", k) == asyncio.run(channel.asearch("q", k))


@pytest.mark.parametrize("method", NORMALISED, ids=repr)
@given(entries=lists, powers=st.lists(st.integers(-8, 8), min_size=4), shifts=st.lists(st.integers(-9, 9), min_size=4))
def test_the_scale_and_the_zero_of_a_channel_do_not_matter(
    method: Method, entries: list[Entries], powers: list[int], shifts: list[int]
) -> None:
    """To the bit, for a power of two and a sum that is exact."""
    moved = [
        [(chunk_id, (score + shift) * 2.0**power) for chunk_id, score in one]
        for one, power, shift in zip(entries, powers, shifts, strict=False)
    ]
    ones = [1.0] * 4
    assert told(fused(moved, method, ones).search("q", 100)) == told(fused(entries, method, ones).search("q", 100))


@given(entries=lists, power=st.integers(-8, 8))
def test_a_scale_that_all_channels_share_does_not_matter_where_scores_are_summed_as_they_are(
    entries: list[Entries], power: int
) -> None:
    moved = [[(chunk_id, score * 2.0**power) for chunk_id, score in one] for one in entries]
    ones, method = [1.0] * 4, WeightedSum("none")
    assert fused(moved, method, ones).search("q", 100).ids == fused(entries, method, ones).search("q", 100).ids


@given(entries=lists, power=st.integers(-8, 8), alpha=st.sampled_from([None, 0.5]))
def test_the_scale_of_a_keyword_channel_does_not_matter_to_the_convex_combination(
    entries: list[Entries], power: int, alpha: float | None
) -> None:
    moved = [[(chunk_id, score * 2.0**power) for chunk_id, score in one] for one in entries[:1]] + entries[1:]
    ones, method = [1.0] * 4, Convex(alpha, exact=False)
    assert told(fused(moved, method, ones).search("q", 100)) == told(fused(entries, method, ones).search("q", 100))
