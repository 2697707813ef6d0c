"""Weighted reranking: the formula to the last term, and what is not known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers import FailingChannel, KnowingChannel, ListChannel
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.explanation import explain, provenance, votes_of
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.rerank import WeightedRerank

PLACES = {chunk_id: {"chunk_index": at, "chunks_in_file": 5} for at, chunk_id in enumerate("abcd")}


def hybrid() -> Channel:
    """`a` found by both, `b` by words alone, `c` by vectors alone."""
    words = ListChannel([("a", 8.0), ("b", 4.0)], name="words", kind="keyword", metadata=PLACES)
    vectors = ListChannel([("c", 0.9), ("a", 0.5)], name="vectors", metadata=PLACES)
    return fuse({"words": words, "vectors": vectors}, method="rrf")


def scores(ranking: Ranking) -> dict[str, float | None]:
    return {hit.id: hit.score for hit in ranking}


def test_the_formula() -> None:
    found = (hybrid() >> WeightedRerank()).search("q")
    assert scores(found) == {
        "a": pytest.approx(0.4 * (1 / 61 + 1 / 62) + 0.3 * 0.5 + 0.2 * 8 / 8 + 0.1 * (1 - 0 / 4), abs=1e-15),
        "b": pytest.approx(0.4 * 1 / 62 + 0.2 * 4 / 8 + 0.1 * (1 - 1 / 4), abs=1e-15),
        "c": pytest.approx(0.4 * 1 / 61 + 0.3 * 0.9 + 0.1 * (1 - 2 / 4), abs=1e-15),
    }
    assert found.ids == ("a", "c", "b")
    vote = found.hits[2].vote("weighted")
    assert vote is not None
    assert (vote.rank, vote.score, vote.contribution) == (3, found.hits[2].score, None)
    assert vote.parts == (
        Vote("fused", 3, 1 / 62, 0.4, 0.4 * (1 / 62)),
        Vote("keyword", 2, 4.0, 0.2, 0.2 * 0.5),
        Vote("position", 2, 0.75, 0.1, 0.1 * 0.75),
    )


def test_the_fused_score_can_be_scaled_by_its_highest() -> None:
    top = 1 / 61 + 1 / 62
    found = (hybrid() >> WeightedRerank(scale_fused=True)).search("q")
    for hit in found:
        plain = hit.fused
        vote = hit.vote("weighted")
        assert plain is not None
        assert vote is not None
        assert vote.parts[0].contribution == pytest.approx(0.4 * plain / top, abs=1e-15)
        assert vote.parts[0].score == plain


def test_a_cosine_that_no_channel_gave_is_asked_for() -> None:
    dense = KnowingChannel([], {"b": 0.7, "a": 0.1}, name="dense")
    stage = WeightedRerank({"fused": 0, "keyword": 0, "position": 0}, dense=dense, timeout=5)
    assert stage.blocking
    assert not WeightedRerank().blocking
    assert scores((hybrid() >> stage).search("q")) == {"c": 0.3 * 0.9, "b": 0.3 * 0.7, "a": 0.3 * 0.5}


def test_a_channel_that_cannot_tell_is_noted_and_one_that_fails_degrades() -> None:
    found = (hybrid() >> WeightedRerank(dense=KnowingChannel([], None, name="dense"))).search("q")
    (note,) = found.errors
    assert (note.stage, note.degrades) == ("weighted", False)
    assert "dense cannot tell" in note.message
    assert found.hits == (hybrid() >> WeightedRerank()).search("q").hits

    class Down(FailingChannel):
        def scan(self, query: Query, found: object = ()) -> None:
            raise self.error

    found = (hybrid() >> WeightedRerank(dense=Down(RuntimeError("down")))).search("q")
    assert found.hits == hybrid().search("q").hits
    assert [failure.degrades for failure in found.errors] == [True]


def test_where_no_hit_has_a_place_that_would_count_a_note_says_so() -> None:
    bare, placed = Hit(Chunk("a")), Hit(Chunk("b", metadata={"chunk_index": 0, "chunks_in_file": 2}))
    for hits, weights, kinds in (
        ((bare,), {}, ["NoPositions"]),
        ((bare, placed), {}, []),
        ((bare,), {"position": 0}, []),
        ((), {}, []),
    ):
        found = WeightedRerank(weights).refine(Query("q"), Ranking(hits))
        assert [(note.kind, note.degrades) for note in found.errors] == [(kind, False) for kind in kinds]


def refined(*hits: Hit, **options: Any) -> dict[str, float | None]:
    return scores(WeightedRerank(**options).refine(Query("q"), Ranking(hits)))


def hit(chunk_id: str, *votes: Vote, **metadata: Any) -> Hit:
    return Hit(Chunk(chunk_id, metadata=metadata), None, votes)


def words(score: float | None) -> Vote:
    return Vote("bm25", 1, score, kind="keyword")


def vectors(score: float | None) -> Vote:
    return Vote("dense", 1, score, kind="semantic")


def test_what_is_not_known_adds_nothing() -> None:
    assert refined(hit("a"), hit("b", words(None), vectors(None))) == {"a": 0.0, "b": 0.0}
    assert refined(hit("a", words(0.0)), hit("b", words(-1.0))) == {"a": 0.0, "b": 0.0}
    assert refined(hit("a", vectors(-0.5))) == {"a": 0.0}
    assert refined() == {}
    question = Vote("quim", 1, 0.9, kind="question")
    rerank = Vote("rerank", 1, 9.0)
    assert refined(hit("a", question, rerank)) == {"a": 0.0}


@pytest.mark.parametrize(
    ("metadata", "position"),
    [
        ({"chunk_index": 0, "chunks_in_file": 1}, 1.0),
        ({"chunk_index": 1.0, "chunks_in_file": 5.0}, 3 / 4),
        ({"chunk_index": 3, "chunks_in_file": 4}, 0.0),
        ({"chunk_index": 9, "chunks_in_file": 4}, 0.0),
        ({"chunk_index": 0, "chunks_in_file": 0}, 1.0),
        ({"chunk_index": 0}, None),
        ({"chunks_in_file": 4}, None),
        ({"chunk_index": "0", "chunks_in_file": 4}, None),
        ({"chunk_index": True, "chunks_in_file": 4}, None),
        ({"chunk_index": -1, "chunks_in_file": 10**400}, None),
    ],
)
def test_the_place_in_the_file(metadata: dict[str, Any], position: float | None) -> None:
    found = WeightedRerank().refine(Query("q"), Ranking((hit("a", **metadata),))).hits[0]
    vote = found.vote("weighted")
    assert vote is not None
    assert [part.score for part in vote.parts] == ([] if position is None else [position])
    assert found.score == (0.1 * position if position else 0.0)


def test_other_keys_name_the_place() -> None:
    options = {"chunk_index_key": "n", "chunks_in_file_key": "of"}
    assert refined(hit("a", n=1, of=3), **options) == {"a": 0.1 * (1 - 1 / 2)}


def test_channels_inside_a_fusion_inside_a_fusion_count() -> None:
    words = ListChannel([("a", 8.0), ("b", 4.0)], name="words", kind="keyword")
    inner = fuse({"title": words, "body": ListChannel([("b", 2.0)], name="body", kind="keyword")})
    nested = fuse({"inner": inner, "vectors": ListChannel([("a", 0.5)])}, method="rrf")
    found = (nested >> WeightedRerank({"fused": 0, "position": 0})).search("q")
    assert scores(found) == {"a": math.fsum([0.3 * 0.5, 0.2 * 1.0]), "b": 0.2 * 0.5}


def test_hits_beyond_the_depth_follow_unscored() -> None:
    stage = WeightedRerank({"fused": 1, "semantic": 0, "keyword": 0, "position": 0}, depth=2)
    found = (hybrid() >> stage).search("q")
    assert [hit.score is None for hit in found] == [False, False, True]
    assert (stage.needs(1), stage.needs(7)) == (2, 7)


numbers = st.none() | st.floats(-1e6, 1e6)
some_hits = st.lists(
    st.tuples(numbers, numbers, numbers, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=6
)


@example([(2.3e-308, None, None, None, None), (-4.0, None, None, None, None)], False, {})
@given(some_hits, st.booleans(), st.dictionaries(st.sampled_from(["fused", "keyword"]), st.floats(0.1, 9)))
def test_the_parts_add_up_to_the_score_exactly(
    found: list[tuple[Any, ...]], scale: bool, weights: dict[str, float]
) -> None:
    given_hits = [
        hit(
            str(at),
            Vote("bm25", 1, word, kind="keyword", contribution=fused),
            vectors(cosine),
            **({} if index is None else {"chunk_index": index}),
            **({} if count is None else {"chunks_in_file": count}),
        )
        for at, (word, cosine, fused, index, count) in enumerate(found)
    ]
    before = Ranking(tuple(given_hits))
    ranking = WeightedRerank(weights, scale_fused=scale).refine(Query("q"), before)
    assert sorted(ranking.ids) == sorted(before.ids)
    for refined_hit in ranking:
        vote = refined_hit.vote("weighted")
        assert vote is not None
        parts = [part.contribution or 0.0 for part in vote.parts]
        assert vote.score == refined_hit.score == math.fsum(parts)


def test_the_parts_are_told_and_read_again() -> None:
    for found in (hybrid() >> WeightedRerank()).search("q"):
        told = provenance(found)
        assert told["weighted"]["parts"]["fused"]["contribution"] == 0.4 * told["fused"]
        assert votes_of(told) == found.votes
        assert "fused: rank" in explain(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": {"fussed": 1}}, "Did you mean 'fused'"),
        ({"weights": {"fused": -1}}, "'fused' is a number"),
        ({"weights": dict.fromkeys(["fused", "semantic", "keyword", "position"], 0)}, "all signals are 0"),
        ({"depth": 0}, "depth"),
        ({"scale_fused": "no"}, "scale_fused"),
        ({"dense": "dense"}, "a channel"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WeightedRerank(**options)
