"""Fusion beside ranx, LlamaIndex and qdrant-client, metrics beside ir-measures.

Where ours differs by definition, what is drawn leaves the case out. Of equal scores, or a lone hit, ranx's min-max and
sum give 0, ours 1 and equal shares. To a chunk that a list lacks its ZMUV gives 0, the mean, ours the list's lowest. To
each chunk its Borda gives the same points for a list that is empty, ours none. Its weighted CombMNZ multiplies by the
sum of the weights, ours by the number of channels. LlamaIndex and qdrant-client do not cut what is beyond 3 deviations
(no list of fewer than 11 has any), and the latter's deviation is over n - 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ListChannel, examples
from voicevault_retrievers.fusion import ISR, RRF, Borda, CombMNZ, DistributionBased, Method, WeightedSum, fuse

Entries = list[tuple[str, float]]
some_ids = st.lists(st.integers(0, 15), min_size=2, max_size=8, unique=True)
some_scores = st.lists(st.integers(-40, 400), min_size=8, max_size=8, unique=True)
lists = st.builds(
    lambda ids, scores: [
        (f"d{number:02}", score / 16) for number, score in zip(ids, sorted(scores, reverse=True), strict=False)
    ],
    some_ids,
    some_scores,
)
runs = st.lists(lists, min_size=2, max_size=4)
cases = examples(0.5)


def ours(entries: Sequence[Entries], method: Method, weights: Sequence[float] = ()) -> dict[str, float | None]:
    channels = {f"c{number}": ListChannel(one) for number, one in enumerate(entries)}
    fused = fuse(channels, method=method, weights=dict(zip(channels, weights, strict=False)))
    return {hit.id: hit.score for hit in fused.search("q", 100)}


@contextmanager
def oracle() -> Iterator[Any]:
    """ranx, whose functions and typed dicts are Python's here: to compile them takes a minute, to run them nothing."""
    numba = pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(numba.config, "DISABLE_JIT", 1)
        warnings.simplefilter("ignore")
        yield pytest.importorskip("ranx")


def theirs(entries: Sequence[Entries], method: str, norm: str | None = None, **params: Any) -> Mapping[str, float]:
    with oracle() as ranx:
        made = [ranx.Run({"q": dict(one)}) for one in entries]
        return dict(ranx.fuse(made, method=method, norm=norm, params=params or None).run["q"])


def same(one: Mapping[str, float | None], other: Mapping[str, float]) -> bool:
    return one == pytest.approx(other, rel=1e-12, abs=1e-12)


@cases
@given(entries=runs)
def test_methods_are_those_of_ranx(entries: list[Entries]) -> None:
    assert same(ours(entries, RRF(k=60)), theirs(entries, "rrf", k=60))
    assert same(ours(entries, ISR()), theirs(entries, "isr"))
    assert same(ours(entries, Borda()), theirs(entries, "bordafuse"))
    assert same(ours(entries, CombMNZ()), theirs(entries, "mnz", "min-max"))


@cases
@given(entries=runs, weights=st.lists(st.sampled_from([0.25, 0.3, 1.0, 7.0]), min_size=4, max_size=4))
def test_weighted_sums_are_those_of_ranx(entries: list[Entries], weights: list[float]) -> None:
    weights = weights[: len(entries)]
    assert same(ours(entries, WeightedSum(), weights), theirs(entries, "wsum", "min-max", weights=tuple(weights)))
    assert same(ours(entries, WeightedSum("sum")), theirs(entries, "sum", "sum"))
    positive = [[(chunk_id, score + 3) for chunk_id, score in one] for one in entries]
    assert same(ours(positive, WeightedSum("none")), theirs(positive, "sum"))


@cases
@given(entry=lists)
def test_the_zscore_is_the_zmuv_of_ranx(entry: Entries) -> None:
    turned = [(chunk_id, score) for (chunk_id, _), (_, score) in zip(reversed(entry), entry, strict=True)]
    for other in (entry, turned):
        assert same(ours([entry, other], WeightedSum("zscore")), theirs([entry, other], "sum", "zmuv"))


@cases
@given(entries=runs)
def test_weighted_borda_is_that_of_ranx(entries: list[Entries]) -> None:
    weights = [1.0, 0.5, 3.0, 0.3][: len(entries)]
    assert same(ours(entries, Borda(), weights), theirs(entries, "w_bordafuse", weights=tuple(weights)))


@cases
@given(entries=runs)
def test_the_distribution_based_is_that_of_llama_index(entries: list[Entries]) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    retrievers = pytest.importorskip("llama_index.core.retrievers")
    peer = retrievers.QueryFusionRetriever.__new__(retrievers.QueryFusionRetriever)
    peer._retriever_weights, peer.num_queries = [1.0] * len(entries), 1
    found = {
        ("q", number): [
            schema.NodeWithScore(node=schema.TextNode(id_=chunk_id, text=chunk_id), score=score)
            for chunk_id, score in one
        ]
        for number, one in enumerate(entries)
    }
    fused = {node.node_id: node.score for node in peer._relative_score_fusion(found, dist_based=True)}
    assert same(ours(entries, DistributionBased()), fused)


@cases
@given(entry=lists)
def test_the_distribution_based_is_that_of_qdrant_but_for_the_deviation(entry: Entries) -> None:
    models = pytest.importorskip("qdrant_client.http.models")
    fusion = pytest.importorskip("qdrant_client.hybrid.fusion")
    points = [models.ScoredPoint(id=int(chunk_id[1:]), version=0, score=score) for chunk_id, score in entry]
    fused = fusion.distribution_based_score_fusion([points], 100)
    wider = math.sqrt((len(entry) - 1) / len(entry))
    expected = {f"d{point.id:02}": 0.5 + (point.score - 0.5) / wider for point in fused}
    assert same(ours([entry], DistributionBased()), expected)
