"""The fusion methods by the numbers of their papers, and where these say nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.helpers import KnowingChannel, ListChannel
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import (
    ISR,
    RRF,
    Borda,
    CombMNZ,
    Convex,
    DistributionBased,
    Evidence,
    Method,
    WeightedSum,
    fuse,
    method_named,
    method_of,
)
from voicevault_retrievers.fusion.normalise import between, min_max, sum_to_one, zscore
from voicevault_retrievers.pipeline.presets import Preset

KEYWORD = ListChannel([("a", 9.0), ("b", 5.0), ("c", 1.0)], kind="keyword")
SEMANTIC = ListChannel([("c", 0.5), ("d", 0.25)], kind="semantic")
BY_SCORE = [WeightedSum(), WeightedSum("zscore"), Convex(), DistributionBased(), CombMNZ()]


def scores(method: Method, weights: Mapping[str, float] | None = None, **channels: Channel) -> dict[str, float | None]:
    given = channels or {"k": KEYWORD, "s": SEMANTIC}
    return {hit.id: hit.score for hit in fuse(given, method=method, weights=weights).search("q", 100)}


def notes(method: Method, **channels: Channel) -> list[str]:
    errors = fuse(channels, method=method).search("q").errors
    assert not any(failure.degrades for failure in errors)
    return [failure.message for failure in errors]


def test_weighted_sum() -> None:
    half = (5 - 1) / (9 - 1)
    assert scores(WeightedSum()) == {"a": 1, "c": 0 + 1, "b": half, "d": 0}
    assert scores(WeightedSum(), {"k": 3, "s": 0.5}) == {"a": 3, "b": 3 * half, "c": 0.5, "d": 0}
    assert scores(WeightedSum("none")) == {"a": 9, "b": 5, "c": 1 + 0.5, "d": 0.25}
    assert scores(WeightedSum("sum")) == pytest.approx({"c": 0 + 1, "a": 8 / 12, "b": 4 / 12, "d": 0})


def test_what_a_channel_lacks_is_not_above_what_it_found() -> None:
    sd = math.sqrt((4**2 + 0**2 + 4**2) / 3)
    expected = {"a": 4 / sd - 1, "b": 0 / sd - 1, "c": -4 / sd + 1, "d": -4 / sd - 1}
    assert scores(WeightedSum("zscore")) == pytest.approx(expected)
    distances = ListChannel([("a", -1.0), ("b", -3.0)])
    assert scores(WeightedSum("none"), x=distances, y=ListChannel([("c", 0.5)])) == {"a": -1, "b": -3, "c": 0.5 - 3}
    (lacking,) = (hit for hit in fuse(x=distances, y=SEMANTIC, method=WeightedSum("none")).search("q") if hit.id == "d")
    assert [(vote.stage, vote.rank, vote.contribution) for vote in lacking.votes] == [("y", 2, 0.25), ("x", None, -3)]
    assert lacking.found_by == "semantic"


def test_comb_mnz() -> None:
    assert scores(CombMNZ()) == {"c": 2 * (0 + 1), "a": 1, "b": 1 / 2, "d": 0}
    assert scores(CombMNZ(), {"k": 4}) == {"a": 4, "b": 4 / 2, "c": 2 * (4 * 0 + 1), "d": 0}


def test_inverse_square_rank() -> None:
    assert scores(ISR()) == {"c": 2 / 1 + 2 / 9, "a": 1, "b": 1 / 4, "d": 1 / 4}
    assert scores(ISR(), {"k": 0.5}) == pytest.approx({"c": 2 / 1 + 2 * 0.5 / 9, "a": 0.5, "d": 1 / 4, "b": 0.5 / 4})


def test_borda() -> None:
    shared_by_k, shared_by_s = 1 / 1, (2 + 1) / 2
    assert scores(Borda()) == {"c": 2 + 4, "a": 4 + shared_by_s, "b": 3 + shared_by_s, "d": shared_by_k + 3}
    assert scores(Borda(), k=KEYWORD, s=ListChannel([])) == {"a": 3, "b": 2, "c": 1}


def test_distribution_based() -> None:
    sd = math.sqrt((4**2 + 0**2 + 4**2) / 3)
    k = {chunk_id: (score - (5 - 3 * sd)) / (6 * sd) for chunk_id, score in (("a", 9), ("b", 5), ("c", 1))}
    s = {"c": (1 + 3) / 6, "d": (-1 + 3) / 6}
    expected = {"a": k["a"], "b": k["b"], "c": k["c"] + s["c"], "d": s["d"]}
    assert scores(DistributionBased()) == pytest.approx(expected)
    outlier = ListChannel([("z", 100.0), *((f"y{number:02}", 0.0) for number in range(19))])
    assert scores(DistributionBased(), x=outlier)["z"] == 1  # it is sqrt(19) deviations above the mean


def test_the_convex_combination() -> None:
    assert scores(Convex(0.25, exact=False)) == pytest.approx(
        {"a": 0.75 * 9 / 9, "b": 0.75 * 5 / 9, "c": 0.75 * 1 / 9 + 0.25, "d": 0.25 * (0.25 + 1) / (0.5 + 1)}
    )
    assert scores(Convex(0.25, exact=False)) == scores(Convex(None, exact=False), {"k": 0.75, "s": 0.25})
    assert scores(Convex(0.5, exact=False), {"s": 3})["c"] == pytest.approx(0.5 * 1 / 9 + 3 * 0.5)


def test_the_convex_combination_with_exact_scores() -> None:
    k = KnowingChannel([("a", 9.0), ("b", 5.0), ("c", 1.0)], {"d": 0.0}, kind="keyword")
    s = KnowingChannel([("c", 0.5), ("d", 0.25)], {"a": -0.25, "b": 0.2})
    cosine = {"a": (-0.25 + 1) / 1.5, "b": (0.2 + 1) / 1.5, "c": 1, "d": (0.25 + 1) / 1.5}
    expected = {"a": (9 / 9 + cosine["a"]) / 2, "b": (5 / 9 + cosine["b"]) / 2, "c": (1 / 9 + 1) / 2}
    assert scores(Convex(), k=k, s=s) == pytest.approx({**expected, "d": (0 + cosine["d"]) / 2})
    assert notes(Convex(), k=k, s=s) == []
    assert scores(Convex(exact=False), k=k, s=s) == scores(Convex())
    assert notes(Convex(exact=False), k=k, s=s) == []
    assert notes(Convex(), k=KEYWORD, s=s) == [
        "no exact scores of k: what only others found counts as the lowest there"
    ]
    unlisted = KnowingChannel([("c", 0.5), ("d", 0.25)], {"a": 0.4, "b": 0.4})
    assert scores(Convex(), k=k, s=unlisted)["a"] == pytest.approx((1 + cosine["d"]) / 2)


def test_the_shares_of_a_convex_combination() -> None:
    one = {kind: ListChannel([(kind, 1.0)], kind=kind) for kind in ("keyword", "semantic", "graph", "question")}
    shared = scores(Convex(0.4, exact=False), None, **one)
    assert shared == pytest.approx({"semantic": 0.4, "keyword": 0.6 / 3, "graph": 0.6 / 3, "question": 0.6 / 3})
    for alone in (KEYWORD, SEMANTIC):
        assert scores(Convex(0.5), x=alone, y=ListChannel([], kind="graph")) == scores(Convex(None), x=alone)


def test_scores_below_the_lowest_in_theory_are_ordered() -> None:
    below = ListChannel([("a", -1.0), ("b", -2.0), ("c", -3.0)], kind="keyword")
    assert scores(Convex(), x=below) == {"a": 1, "b": 1 / 2, "c": 0}
    unmatched = KnowingChannel([("a", -1.0), ("b", -3.0)], {"z": 0.0}, kind="keyword")
    assert scores(Convex(0.0), x=unmatched, y=ListChannel([("z", 1.0)])) == {"a": 1, "b": 0, "z": 0}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (WeightedSum(), 1),
        (WeightedSum("sum"), 1 / 2),
        (WeightedSum("zscore"), 0),
        (WeightedSum("none"), 3),
        (CombMNZ(), 1),
        (DistributionBased(), 1 / 2),
        (Convex(), 1),
    ],
    ids=repr,
)
def test_equal_scores_and_a_lone_hit(method: Method, expected: float) -> None:
    assert scores(method, x=ListChannel([("a", 3.0), ("b", 3.0)])) == {"a": expected, "b": expected}
    lone = 1 if method == WeightedSum("sum") else expected
    assert scores(method, x=ListChannel([("a", 3.0)]), y=ListChannel([])) == {"a": lone}


@pytest.mark.parametrize("method", BY_SCORE, ids=repr)
def test_hits_without_scores_are_fused_by_rank_and_it_is_said(method: Method) -> None:
    bare = ListChannel([("c", None), ("d", None)])
    assert scores(method, k=KEYWORD, b=bare) == scores(RRF(60), k=KEYWORD, b=bare)
    assert notes(method, k=KEYWORD, b=bare) == ["hits of b have no score, so all channels are fused by RRF(k=60)"]
    assert notes(RRF(), k=KEYWORD, b=bare) == []


@pytest.mark.parametrize("normalise", [min_max, sum_to_one, zscore], ids=lambda made: made.__name__)
def test_scores_of_any_size_are_normalised(normalise: Any) -> None:
    assert normalise(np.empty(0)).tolist() == []
    greatest, least = 1.7e308, 5e-324
    wide = normalise(np.array([greatest, 0.0, -greatest]))
    assert wide.tolist() == normalise(np.array([1.0, 0.0, -1.0])).tolist()
    assert np.isfinite(normalise(np.array([least, 0.0]))).all()
    assert between(np.array([1.0]), 1.0, 1.0).tolist() == [1.0]


def test_methods_by_name_with_their_options() -> None:
    named = [method_named(name, {}) for name in ("borda", "combmnz", "isr", "rrf")]
    assert named == [Borda(), CombMNZ(), ISR(), RRF(k=60)]
    assert method_named("convex", {"alpha": None, "exact": False}) == Convex(None, exact=False)
    assert method_of("distribution") == DistributionBased()
    section = {"method": "weighted_sum", "normalisation": "zscore", "depth": 7, "weights": {"bm25": 2}}
    preset = Preset.of({"version": 1, "fusion": section})
    assert (preset.method, preset.depths["bm25"], preset.weights) == (WeightedSum("zscore"), 7, {"bm25": 2.0})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"method": "convexx"}, "Did you mean 'convex'"),
        ({"method": ["convex"]}, "unknown fusion method"),
        ({"method": "convex", "alfa": 0.5}, "Did you mean 'alpha'"),
        ({"method": "convex", "dept": 7}, "Did you mean 'depth'"),
        ({"method": "borda", "k": 60}, "'k' is not of 'borda', but of rrf"),
        ({"method": "convex", "alpha": 1.5}, "alpha is between 0 and 1"),
        ({"method": "convex", "alpha": "half"}, "alpha is a number"),
        ({"method": "convex", "exact": "yes"}, "exact is true or false"),
        ({"method": "weighted_sum", "normalisation": "minmax"}, "Did you mean 'min_max'"),
        ({"method": "weighted_sum", "normalisation": []}, "unknown normalisation"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preset.of({"version": 1, "fusion": section})


def test_an_option_of_another_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown option of fusion method 'rrf' 'alpha'"):
        method_named("rrf", {"alpha": 0.5})


@pytest.mark.parametrize("given", [{}, {"k": np.ones(1)}, {"k": {"a": 1.0}}], ids=["nothing", "too few", "a mapping"])
def test_a_method_of_somebody_elses_that_does_not_give_a_number_for_each_chunk_is_told_so(given: Any) -> None:
    class Odd(Method):
        def contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float]) -> Any:
            return given

    with pytest.raises(ConfigError, match=r"a number for each chunk of the pool, 3, is expected"):
        fuse(k=ListChannel([("a", 3.0), ("b", 2.0), ("c", 1.0)]), method=Odd()).search("q")
