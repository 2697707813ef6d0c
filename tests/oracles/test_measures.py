"""Measures of whole runs, beside the package's own metrics and arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.evaluation import Judged, measured, ndcg, recall

names = st.sampled_from([f"d{number}" for number in range(8)])
cases = st.lists(
    st.tuples(st.lists(names, max_size=8, unique=True), st.dictionaries(names, st.integers(-1, 3))),
    min_size=1, max_size=4,
)  # fmt: skip


@given(cases=cases, k=st.sampled_from([1, 3, 10]))
def test_ir_measures_and_the_own_metrics_agree(cases: list[tuple[list[str], dict[str, int]]], k: int) -> None:
    questions = [Judged(f"q{at}", "", grades) for at, (_, grades) in enumerate(cases)]
    found = measured([ids for ids, _ in cases], questions, [f"nDCG@{k}", f"R@{k}", f"MRR@{k}", f"Success@{k}"])
    ranks = [[at for at, name in enumerate(ids[:k], 1) if grades.get(name, 0) > 0] for ids, grades in cases]
    assert found == {
        f"nDCG@{k}": pytest.approx([ndcg(ids, grades, k) for ids, grades in cases]),
        f"R@{k}": pytest.approx([recall(ids, grades, k) for ids, grades in cases]),
        f"RR@{k}": pytest.approx([1 / own[0] if own else 0.0 for own in ranks]),
        f"Success@{k}": tuple(float(bool(own)) for own in ranks),
    }
