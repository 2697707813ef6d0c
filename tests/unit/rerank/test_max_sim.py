"""Reranking by late interaction: the score against a plain double loop, memory, faults, and real token states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import BERLIN, PASSAGES, ListChannel, ranking_of
from voicevault_retrievers.core.types import Query, Ranking, Variant
from voicevault_retrievers.errors import ConfigError, InvalidScoreError, RerankerError
from voicevault_retrievers.models.token_states import OnnxTokenEmbedder
from voicevault_retrievers.models.weights import find
from voicevault_retrievers.rerank.max_sim import PASSAGES_KEPT, MaxSimRerank, TokenEmbedder, Tokens, max_sim

TURNS = {"a": [1.0, 0.0], "b": [0.0, 2.0], "c": [3.0, 4.0], "d": [-5.0, 0.0]}


class Letters:
    """Each letter is a token, on a circle; notes what it was asked."""

    name = "letters"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed_tokens(self, texts: Sequence[str]) -> list[Tokens]:
        self.asked += texts
        return [np.array([TURNS[letter] for letter in text], dtype=np.float32).reshape(-1, 2) for text in texts]


class Given:
    """Gives the same whatever it is asked."""

    name = "given"

    def __init__(self, query: Sequence[Any], passages: Sequence[Any]) -> None:
        self.query, self.passages = query, passages

    def embed_query_tokens(self, texts: Sequence[str]) -> Sequence[Any]:
        return self.query

    def embed_tokens(self, texts: Sequence[str]) -> Sequence[Any]:
        return self.passages


def loop(query: Sequence[str], passage: Sequence[str]) -> float:
    """The score, one pair of letters at a time."""
    total = 0.0
    for one in query:
        cosines = [
            np.dot(TURNS[one], TURNS[other]) / (np.linalg.norm(TURNS[one]) * np.linalg.norm(TURNS[other]))
            for other in passage
        ]
        total += max(cosines, default=-1.0)
    return total / len(query)


@given(query=st.text("abcd", min_size=1, max_size=5), passages=st.lists(st.text("abcd", max_size=6), min_size=1))
def test_the_score_is_that_of_a_double_loop(query: str, passages: list[str]) -> None:
    found = MaxSimRerank(Letters(), depth=100).refine(Query(query), ranking_of(*passages))
    scores = {hit.id: hit.score for hit in found}
    expected = {str(at): loop(query, passage) for at, passage in enumerate(passages)}
    assert scores == pytest.approx(expected, abs=1e-6)  # vectors are float32
    assert all(-1 <= score <= 1 for score in scores.values() if score is not None)


def test_the_first_hits_are_rescored_and_none_is_lost() -> None:
    stage = MaxSimRerank(Letters(), depth=2)
    given = ranking_of("d", "a", "a")
    found = stage.refine(Query("a", variants=(Variant("d"),)), given)
    assert [(hit.id, hit.score) for hit in found] == [("1", 1.0), ("0", -1.0), ("2", None)]
    vote = found.hits[0].vote("max_sim")
    assert vote is not None
    assert (vote.rank, vote.score) == (1, 1.0)
    assert given == ranking_of("d", "a", "a")
    assert (stage.needs(1), stage.needs(5), stage.blocking) == (2, 5, True)


def test_passages_are_kept_between_asks_and_equal_ones_read_once() -> None:
    embedder = Letters()
    stage = MaxSimRerank(embedder, max_chars=1)
    stage.refine(Query("a"), ranking_of("ab", "ac", "b"))
    assert embedder.asked == ["a", "a", "b"]
    assert stage.refine(Query("b"), ranking_of("ab", "b", "cc")).ids == ("1", "2", "0")
    assert embedder.asked == ["a", "a", "b", "b", "c"]
    many = ["a" * length for length in range(1, PASSAGES_KEPT + 10)]
    wide = MaxSimRerank(Letters(), depth=1000)
    assert [hit.score for hit in wide.refine(Query("a"), ranking_of(*many))] == [1.0] * len(many)
    assert len(wide._kept) == PASSAGES_KEPT


def test_a_query_without_tokens_keeps_the_order_with_a_note() -> None:
    found = MaxSimRerank(Letters()).refine(Query(""), ranking_of("b", "a"))
    assert found.hits == ranking_of("b", "a").hits
    assert [(failure.kind, failure.degrades) for failure in found.errors] == [("NoTokens", False)]
    empty = Ranking()
    assert MaxSimRerank("no-such-model").refine(Query("q"), empty) is empty


ROW = [1.0, 0.0]


@pytest.mark.parametrize(
    ("query", "passages", "error", "message"),
    [
        ([[ROW]], [[ROW]], RerankerError, "'given' gave 1 arrays for 2 texts"),
        ([[ROW]], [[ROW], ROW], RerankerError, r"'given' gave for text 1 shape \(2,\); expected \(tokens, dimension\)"),
        ([[ROW]], [[ROW], [[1.0]]], RerankerError, "dimension 2 for the query and 1 for a passage"),
        ([[ROW]], [[ROW], [[np.nan, 1.0]]], InvalidScoreError, "for text 1 a row that is zero or not finite"),
        ([[ROW]], [[[0.0, 0.0]], [ROW]], InvalidScoreError, "for text 0 a row that is zero or not finite"),
        ([[[np.inf, 1.0]]], [[ROW], [ROW]], InvalidScoreError, "for text 0 a row that is zero or not finite"),
    ],
)
def test_wrong_arrays_are_named_and_lose_no_hit(
    query: Sequence[Any], passages: Sequence[Any], error: type[Exception], message: str
) -> None:
    stage = MaxSimRerank(Given(query, passages))
    with pytest.raises(error, match=message):
        stage.refine(Query("q"), ranking_of("a", "b"))
    found = (ListChannel([("a", 2.0), ("b", 1.0)]) >> stage).search("q")
    assert found.ids == ("a", "b")
    assert [(failure.stage, failure.kind) for failure in found.errors] == [("max_sim", error.__name__)]


def test_options_and_recipe() -> None:
    stage = MaxSimRerank()
    assert repr(stage) == (
        "MaxSimRerank(OnnxTokenEmbedder('all-MiniLM-L6-v2', max_tokens=256, batch_size=32), depth=None, "
        "max_chars=2000, timeout=None, name='max_sim')"
    )
    assert isinstance(stage.embedder, TokenEmbedder)
    wrong: Any = 3
    with pytest.raises(ConfigError, match="a model's name, or has a name and embed_tokens"):
        MaxSimRerank(wrong)
    with pytest.raises(ConfigError, match="depth is a whole number of at least 1, not 0"):
        MaxSimRerank(Letters(), depth=0)


@pytest.mark.weights
@pytest.mark.skipif(find("all-MiniLM-L6-v2", "onnx") is None, reason="the package with the weights is not installed")
def test_real_token_states() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    embedder = OnnxTokenEmbedder("sentence-transformers/all-MiniLM-L6-v2", max_tokens=8)
    short, long, none = embedder.embed_tokens(["Berlin", "one two three four five six seven eight", ""])
    assert [found.shape for found in (short, long, none)] == [(1, 384), (6, 384), (0, 384)]
    (alone,) = embedder.embed_tokens(["Berlin"])
    assert np.allclose(short, alone, atol=1e-4)
    stage = MaxSimRerank()
    found = stage.refine(Query(BERLIN), ranking_of(PASSAGES[2], PASSAGES[0], ""))
    assert found.ids == ("1", "0", "2")
    assert found.hits[2].score == -1.0


def test_max_sim_of_rows() -> None:
    rows = np.array([[1.0, 0.0], [0.6, 0.8]], dtype=np.float32)
    assert max_sim(rows, rows[:1]) == pytest.approx((1 + 0.6) / 2)
    assert max_sim(rows, rows[:0]) == -1.0
