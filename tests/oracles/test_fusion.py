"""Fusion and metrics beside ranx and ir-measures."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import ListChannel
from voicevault_retrievers.evaluation import ndcg, recall
from voicevault_retrievers.fusion import RRF, fuse

runs = st.lists(
    st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True).map(
        lambda ids: [(f"d{number:02}", 1.0 - rank / 10) for rank, number in enumerate(ids)]
    ),
    min_size=2,
    max_size=4,
)
names = st.sampled_from([f"d{number}" for number in range(8)])


@settings(deadline=None, max_examples=30)
@given(lists=runs)
def test_rrf_is_that_of_ranx(lists: list[list[tuple[str, float]]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranx = pytest.importorskip("ranx")
        theirs = ranx.fuse([ranx.Run({"q": dict(entries)}) for entries in lists], method="rrf", params={"k": 60})
    channels = {f"c{number}": ListChannel(entries) for number, entries in enumerate(lists)}
    ours = fuse(channels, method=RRF(k=60)).search("q", 100)
    assert {hit.id: hit.score for hit in ours} == pytest.approx(dict(theirs.run["q"]), rel=1e-12)


@settings(deadline=None)
@given(
    ranking=st.lists(names, max_size=8, unique=True),
    grades=st.dictionaries(names, st.integers(0, 3), min_size=1),
    k=st.sampled_from([1, 3, 5, 10]),
)
def test_metrics_are_those_of_trec_eval(ranking: list[str], grades: dict[str, int], k: int) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    if not any(grades.values()):
        return
    run = {"q": {name: float(-rank) for rank, name in enumerate(ranking)}}
    measures = [ir_measures.nDCG @ k, ir_measures.R @ k]
    theirs = ir_measures.calc_aggregate(measures, {"q": grades}, run)
    assert ndcg(ranking, grades, k) == pytest.approx(theirs[measures[0]] if ranking else 0.0)
    assert recall(ranking, grades, k) == pytest.approx(theirs[measures[1]] if ranking else 0.0)
