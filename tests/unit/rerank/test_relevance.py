"""Relevance comes only from calibrated scores, orders nothing, and is what a threshold compares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers.core.explanation import provenance
from voicevault_retrievers.core.types import Chunk, Failure, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation import Judged, fit_relevance
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.presets import Preset, preset_to_data
from voicevault_retrievers.rerank import (
    CalibratedRelevance,
    Calibration,
    CallableScorer,
    CrossEncoderRerank,
    RelevanceThreshold,
)
from voicevault_retrievers.rerank.relevance import is_irrelevant
from voicevault_retrievers.structure.graph import EmbeddedGraph, GraphChannel, build_graph

CHUNKS = [Chunk(f"c{at}", f"pump {'valve ' * at}") for at in range(5)]
HALF = Calibration(1.0, 0.0)


def lengths() -> CrossEncoderRerank:
    scorer = CallableScorer(lambda query, passages: [len(passage) / 10 - 2 for passage in passages], name="length")
    return CrossEncoderRerank(scorer, blend=1, calibration=HALF)


def test_a_calibrated_reranker_gives_relevance_and_an_uncalibrated_one_none() -> None:
    channel = BM25.from_chunks(CHUNKS)
    for hit in (channel >> lengths()).search("pump", 5):
        vote = hit.vote("rerank")
        assert vote is not None
        assert vote.score is not None
        assert hit.relevance == vote.probability == HALF.probability(vote.score)
        assert provenance(hit)["relevance"] == hit.relevance
    bare = channel.search("pump", 5).hits[0]
    assert bare.relevance is None
    assert "relevance" not in provenance(bare)


def test_the_last_calibrated_stage_counts_and_a_channel_in_a_fusion_does_not() -> None:
    fused = fuse({"a": BM25.from_chunks(CHUNKS) >> lengths(), "b": BM25.from_chunks(CHUNKS)})
    assert [hit.relevance for hit in fused.search("pump", 2)] == [None, None]
    (hit, *_) = (fused >> lengths() >> CalibratedRelevance(Calibration(2.0, -1.0))).search("pump", 1)
    assert hit.score is not None
    assert hit.relevance == Calibration(2.0, -1.0).probability(hit.score)


def test_a_threshold_drops_what_is_below_it_and_keeps_order_and_scores() -> None:
    ranked = BM25.from_chunks(CHUNKS) >> lengths()
    every = ranked.search("pump", 5)
    relevances = [hit.relevance or 0.0 for hit in every]
    kept = (ranked >> RelevanceThreshold(relevances[2])).search("pump", 5)
    assert [(hit.id, hit.score) for hit in kept] == [(hit.id, hit.score) for hit in every.hits[:3]]
    assert len((ranked >> RelevanceThreshold(1)).search("pump", 5)) == 0
    assert len((ranked >> RelevanceThreshold(0)).search("pump", 5)) == 5


def test_a_hit_without_relevance_beside_others_is_dropped() -> None:
    hits = (Hit(CHUNKS[0], 2.0, (Vote("rerank", 1, 2.0, probability=0.9),)), Hit(CHUNKS[1], None))
    assert RelevanceThreshold(0.0).refine(Query("pump"), Ranking(hits)).ids == ("c0",)


def test_a_threshold_without_anything_to_compare_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no hit has a relevance"):
        (BM25.from_chunks(CHUNKS) >> RelevanceThreshold(0.5)).search("pump", 3)
    assert len((BM25.from_chunks(CHUNKS) >> RelevanceThreshold(0.5)).search("zebra", 3)) == 0
    for least in (-0.1, 1.1, float("nan"), "high"):
        with pytest.raises(ConfigError, match="least"):
            RelevanceThreshold(least)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Calibration"):
        CalibratedRelevance(0.5)  # type: ignore[arg-type]


def test_where_the_reranker_failed_all_hits_stay_and_the_result_is_degraded() -> None:
    given = Ranking((Hit(CHUNKS[0], 1.0),), (Failure("rerank", "RerankerError", "is down"),))
    found = RelevanceThreshold(0.5).refine(Query("pump"), given)
    assert found.ids == ("c0",)
    assert found.errors[-1].degrades
    assert "were not dropped" in found.errors[-1].message


def breaking() -> CrossEncoderRerank:
    """A reranker whose second batch fails; the first four passages are irrelevant."""
    asked: list[int] = []

    def score(query: str, passages: Any) -> list[float]:
        asked.append(len(passages))
        if len(asked) > 1:
            raise ConnectionError("the server is gone")
        return [-10.0] * len(passages)

    return CrossEncoderRerank(CallableScorer(score, name="breaks"), batch_size=4, calibration=HALF)


def test_hits_that_a_failing_reranker_did_not_reach_stay_and_those_below_the_threshold_go() -> None:
    chunks = [Chunk(f"c{at:02}", f"pump number {at}") for at in range(10)]
    every = (BM25.from_chunks(chunks) >> breaking()).search("pump", 10)
    found = (BM25.from_chunks(chunks) >> breaking() >> RelevanceThreshold(0.3)).search("pump", 10)
    assert found.ids == tuple(hit.id for hit in every if hit.relevance is None)
    assert len(found) == 6
    assert [failure.kind for failure in found.errors] == ["ConnectionError", "NoRelevance"]
    other = every.failing(Failure("dense", "SearchNotAvailableError", "gone"))
    of_another = replace(other, errors=other.errors[1:])
    assert RelevanceThreshold(0.3).refine(Query("pump"), of_another).ids == ()


def test_where_the_reranker_was_sure_without_reading_all_hits_stay_undegraded() -> None:
    chunks = [Chunk("x", "Reset the pump with the green key, ERR_2043."), *CHUNKS[1:]]
    sure = CrossEncoderRerank(CallableScorer(lambda q, found: [-9.0] * len(found), name="s"), sure=1, calibration=HALF)
    found = (BM25.from_chunks(chunks) >> sure >> RelevanceThreshold(0.3)).search("pump green key ERR_2043", 3)
    assert found.ids[0] == "x"
    assert len(found) == 3
    assert found.skipped == ()


def test_what_a_graph_finds_by_name_stays_below_the_threshold() -> None:
    graph = EmbeddedGraph()
    build_graph([Chunk("c420", "Section 420. Cheating, see section 415.", metadata={"act": "IPC"})], graph)
    low = CrossEncoderRerank(CallableScorer(lambda q, found: [-9.0] * len(found), name="low"), calibration=HALF)
    found = (GraphChannel(graph) >> low >> RelevanceThreshold(0.3)).search("What is Section 420 IPC?")
    assert found.ids == ("c420",)
    assert found.errors == ()


def test_a_fusion_is_calibrated_on_judgements() -> None:
    found = [(f"c{at}", 10.0 - at) for at in range(10)]
    questions = [Judged(f"q{at}", "pump", {f"c{hit}": 1 for hit in range(3)}) for at in range(4)]
    calibration = fit_relevance(ListChannel(found), questions, place=lambda chunk: chunk.id)
    relevances = [calibration.probability(score) for _, score in found]
    assert relevances[0] > 0.8
    assert relevances[-1] < 0.2
    with pytest.raises(ConfigError, match="at least 20 judgements"):
        fit_relevance(ListChannel(found), questions[:1], place=lambda chunk: chunk.id)


def test_a_preset_has_both() -> None:
    stages = [{"relevance": {"slope": 2.0, "intercept": -1.0}}, {"relevance_threshold": {"least": 0.3}}]
    preset = Preset.of({"version": 1, "stages": stages})
    assert (
        repr(preset.stages) == "(CalibratedRelevance(Calibration(slope=2.0, intercept=-1.0)), RelevanceThreshold(0.3))"
    )
    assert preset_to_data(preset)["stages"] == stages


@pytest.mark.parametrize(
    ("probability", "confidence", "expected"),
    [(0.29, "ok", True), (0.31, "ok", False), (None, "ok", False), (None, "none", True), (0.9, "none", True)],
)
def test_a_hit_is_irrelevant_by_its_relevance_or_by_the_confidence_of_its_result(
    probability: float | None, confidence: Any, expected: bool
) -> None:
    hit = Hit(Chunk("a", "the pump"), 1.0, (Vote("rerank", 1, 1.0, probability=probability),))
    assert is_irrelevant(hit, confidence) is expected
