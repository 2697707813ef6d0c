"""Calibration: probabilities, the fit, how right they are, and when nothing relevant was found."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk, Failure, Hit, Ranking, Vote
from voicevault_retrievers.errors import ConfigError, InvalidScoreError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank
from voicevault_retrievers.rerank.calibration import (
    FEWEST,
    Calibration,
    Threshold,
    any_hit,
    brier_score,
    calibration_error,
    fit_calibration,
)
from voicevault_retrievers.store import KnowledgeBase

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-1e6, 1e6)


@given(score=FINITE, slope=st.floats(0, exclude_min=True, allow_infinity=False), intercept=FINITE)
def test_a_probability_is_above_0_and_below_1_for_every_finite_score(
    score: float, slope: float, intercept: float
) -> None:
    assert 0 < Calibration(slope, intercept).probability(score) < 1


@given(one=FINITE, other=FINITE, slope=st.floats(1e-6, 1e6), intercept=MODERATE)
def test_a_higher_score_is_never_less_probable(one: float, other: float, slope: float, intercept: float) -> None:
    calibration = Calibration(slope, intercept)
    low, high = sorted((one, other))
    assert calibration.probability(low) <= calibration.probability(high)


def test_probabilities_by_hand() -> None:
    assert Calibration(2.0, -1.0).probability(0.5) == 0.5
    assert Calibration(2.0, -1.0).probability(2.0) == pytest.approx(1 / (1 + math.exp(-3)))
    assert Calibration(2.0, -1.0).probability(-1.0) == pytest.approx(1 / (1 + math.exp(3)))


def test_a_fit_recovers_a_known_calibration() -> None:
    draw = np.random.default_rng(0)
    true = Calibration(0.7, -1.5)
    scores = draw.normal(0, 5, 40_000)
    relevant = draw.random(len(scores)) < [true.probability(score) for score in scores]
    fitted = fit_calibration(scores, relevant)
    assert asdict(fitted) == pytest.approx(asdict(true), rel=0.05)
    probabilities = [fitted.probability(score) for score in scores]
    assert calibration_error(probabilities, relevant) < 0.01
    # Moving or stretching the scores moves and stretches the calibration with them.
    moved = fit_calibration(100 + 1000 * scores, relevant)
    assert [moved.probability(100 + 1000 * score) for score in scores[:100]] == pytest.approx(probabilities[:100])


def test_a_fit_is_the_best_of_its_kind() -> None:
    scores = np.array([-3.0, -2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0] * 3)
    relevant = np.array([0, 0, 0, 1, 0, 0, 1, 0, 1, 1] * 3)
    targets = np.where(relevant, 13 / 14, 1 / 20)

    def loss(calibration: Calibration) -> float:
        found = np.array([calibration.probability(score) for score in scores])
        return float(-(targets * np.log(found) + (1 - targets) * np.log(1 - found)).sum())

    fitted = fit_calibration(scores, relevant)
    for slope, intercept in ((1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3)):
        assert loss(fitted) < loss(Calibration(fitted.slope + slope, fitted.intercept + intercept))


def test_scores_that_tell_all_apart_give_finite_numbers() -> None:
    fitted = fit_calibration([-1.0] * 30 + [1.0] * 10, [False] * 30 + [True] * 10)
    assert fitted.probability(1.0) == pytest.approx(11 / 12)
    assert fitted.probability(-1.0) == pytest.approx(1 / 32)
    assert fit_calibration([-1.0] * 30 + [1.0] * 10, [False] * 30 + [True] * 10) == fitted


@pytest.mark.parametrize(
    ("scores", "relevant", "message"),
    [
        (range(FEWEST - 1), [True] * 10 + [False] * (FEWEST - 11), "at least 20 judgements, not 19"),
        (range(FEWEST), [True] * FEWEST, "all of one kind"),
        (range(FEWEST), [False] * FEWEST, "all of one kind"),
        ([1.0] * FEWEST, [True, False] * 10, "not all equal"),
        ([math.nan, *range(FEWEST - 1)], [True, False] * 10, "finite scores"),
        (range(FEWEST), [True] * 10 + [False] * 10, "fall with relevance"),
        (range(FEWEST), [True, False], r"two lists of one length, not \(20,\) and \(2,\)"),
    ],
)
def test_what_cannot_be_fitted_is_said(scores: list[float], relevant: list[bool], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_calibration(list(scores), relevant)


def test_errors_by_hand() -> None:
    probabilities, relevant = [0.1, 0.15, 0.8, 1.0], [0, 1, 1, 1]
    assert calibration_error(probabilities, relevant) == pytest.approx((abs(1 - 0.25) + 0.2 + 0.0) / 4)
    assert calibration_error(probabilities, relevant, bins=1) == pytest.approx((3 - 2.05) / 4)
    assert brier_score(probabilities, relevant) == pytest.approx((0.1**2 + 0.85**2 + 0.2**2) / 4)
    for wrong in ([], [1.5], [math.nan]):
        with pytest.raises(ConfigError, match="numbers from 0 to 1"):
            brier_score(wrong, [True] * len(wrong))


def test_a_calibration_is_checked_and_is_plain_data() -> None:
    assert Calibration(**asdict(Calibration(0.5, -2.0))) == Calibration(0.5, -2.0)
    for slope, intercept in ((0.0, 1.0), (-1.0, 0.0), (math.nan, 0.0), (1.0, math.nan), (1.0, -math.inf)):
        with pytest.raises(ConfigError):
            Calibration(slope, intercept)
    with pytest.raises(InvalidScoreError):
        Calibration(1.0, 0.0).probability(math.inf)


def ranking(*scores: float | None) -> Ranking:
    """Hits in the order of another stage; these are what `rerank` said of them."""
    return Ranking(
        tuple(
            Hit(Chunk(str(at)), None, () if score is None else (Vote("rerank", at + 1, score),))
            for at, score in enumerate(scores)
        )
    )


def test_a_threshold_goes_by_the_most_probable_hit() -> None:
    threshold = Threshold(Calibration(1.0, 0.0), 0.5)
    assert threshold(ranking(-2.0, 0.0, -1.0)) == "ok"
    assert threshold(ranking(-2.0, -0.1, None)) == "none"
    assert threshold(ranking()) == any_hit(ranking()) == "none"
    assert threshold(ranking(None, None)) == any_hit(ranking(-9.0)) == "ok"
    assert Threshold(Calibration(1.0, 0.0), 0.5, "other")(ranking(-9.0)) == "ok"
    with pytest.raises(ConfigError, match="least is a probability from 0 to 1, not 2"):
        Threshold(Calibration(1.0, 0.0), 2)


def test_a_reranker_that_failed_cannot_tell_that_nothing_is_relevant() -> None:
    threshold = Threshold(Calibration(1.0, 0.0), 0.5)
    late, note = Failure("rerank", "SearchTimeoutError", "late"), Failure("rerank", "Note", "n", degrades=False)
    assert threshold(ranking(-9.0, None).failing(late)) == "ok"
    assert threshold(ranking(-9.0, None).failing(note)) == "none"
    assert threshold(ranking().failing(late)) == "none"


def test_what_the_graph_found_by_name_is_found(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("law", root=tmp_path)
    kb.add(
        [
            Chunk("s1", "Section 1. This Act may be cited as the Harbour Act or as HA.", metadata={"act": "HA"}),
            Chunk("s2", "Section 2. Ships wait for a pilot. See section 3.", metadata={"act": "HA"}),
            Chunk("s3", "Section 3. A pilot is paid by the hour.", metadata={"act": "HA"}),
        ]
    )
    pipeline = Preset.of(
        {
            "version": 1,
            "channels": {"bm25": {}, "graph": {"hops": 2}},
            "stages": [{"rerank": {"model": "accurate"}}],
            "confidence": {"least": 0.3},
        }
    )
    unsure = CallableScorer(lambda query, passages: [-9.0] * len(passages), name="m")
    rerank = CrossEncoderRerank(unsure, calibration=Calibration(1.0, 0.0))
    built = pipeline.with_stages([rerank]).build({"bm25": kb.bm25(), "graph": kb.graph()}, base=kb)
    found = built.search("What does section 2 HA require?")
    assert found.confidence == "ok"
    assert "s2" in found.ranking.ids
    for other in ("pilot", "section 9 HA pilot"):
        assert built.search(other).hits
        assert built.search(other).confidence == "none"


@pytest.mark.parametrize(
    ("vote", "said"),
    [
        (Vote("graph", 1, 1.0, kind="graph", via=("section 2 ha", "is", "s2")), "ok"),
        (Vote("graph", 1, 1.0, kind="graph", via=("term pilot", "defined by", "s2")), "ok"),
        (Vote("sum", 1, 1.0, parts=(Vote("graph", 1, kind="graph", via=("section 2", "is", "s2")),)), "ok"),
        (Vote("graph", 1, 1.0, kind="graph", via=("section 2 ha", "cited by", "s3")), "none"),
        (Vote("graph", 1, 1.0, kind="graph", via=("section 2", "is", "s2", "cites", "section 3", "is", "s3")), "none"),
        (Vote("questions", 1, 1.0, kind="question", via=("what", "is", "it")), "none"),
    ],
)  # fmt: skip
def test_only_a_path_that_says_what_a_chunk_is_is_a_name(vote: Vote, said: str) -> None:
    hit = Hit(Chunk("s2"), None, (vote, Vote("rerank", 1, -9.0)))
    assert Threshold(Calibration(1.0, 0.0), 0.5)(Ranking((hit,))) == said


async def test_a_pipeline_says_that_nothing_relevant_was_found() -> None:
    scorer = CallableScorer(lambda query, passages: [4.0 if "pump" in text else -4.0 for text in passages], name="m")
    channel = BM25.from_chunks([Chunk("a", "the pump"), Chunk("b", "the lamp")]) >> CrossEncoderRerank(scorer)
    pipeline = Pipeline(channel, confidence=Threshold(Calibration(1.0, 0.0), 0.5))
    assert (pipeline.search("pump").confidence, pipeline.search("nothing").confidence) == ("ok", "none")
    unsure = pipeline.search("lamp")
    assert (unsure.ranking.ids, unsure.confidence) == (("b",), "none")
    assert (await pipeline.asearch("lamp")).confidence == "none"
    assert Pipeline(channel).search("lamp").confidence == "ok"
