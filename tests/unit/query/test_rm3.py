"""Pseudo-relevance feedback, and keyword channels that weigh the words of a wording."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FailingChannel, ListChannel
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25, BM25F
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import RM3, RuleExpansion, Together

FILLER = [Chunk(f"x{at:02}", f"filler{at} nothing", metadata={"team": 1 + at % 2}) for at in range(60)]
CHUNKS = [
    Chunk("a", "pump valve valve", metadata={"team": 1}),
    Chunk("b", "pump seal", metadata={"team": 2}),
    Chunk("c", "valve", metadata={"team": 1}),
    Chunk("d", "seal", metadata={"team": 2}),
    *FILLER,
]


def bm25(**options: Any) -> BM25:
    return BM25.from_chunks(CHUNKS, str.split, **options)


# Weighted terms


def test_terms_are_searched_in_place_of_the_text_and_count_as_often_as_said() -> None:
    channel = bm25()
    alone = channel.scores(Query("pump"), ["a"])["a"], channel.scores(Query("valve"), ["a"])["a"]
    query = Query(
        "nothing here", (Variant("in words", terms={"pump": 1.0, "valve": 0.25}, channels=frozenset({"bm25"})),)
    )
    hits = channel.search(query, 40)
    hit = next(hit for hit in hits if hit.id == "a")
    assert hit.score == pytest.approx(alone[0] + alone[1] / 4, rel=1e-12)
    assert (hit.votes[0].query, hit.votes[0].terms) == ("in words", ("pump", "valve"))
    assert channel.scores(query, ["a"])["a"] == hit.score


@given(st.dictionaries(st.sampled_from(["pump", "valve", "seal", "pump seal"]), st.floats(0.01, 5), min_size=1))
def test_a_words_counts_add_up_on_every_channel(terms: dict[str, float]) -> None:
    counts = {
        word: math.fsum(n for text, n in terms.items() if word in text.split()) for word in ("pump", "valve", "seal")
    }
    query = Query("zzz", (Variant("words", terms=terms),))
    for channel in (bm25(), bm25(operators=True), BM25F.from_chunks(CHUNKS, {"text": 1.0}, str.split)):
        single = {word: channel.scores(Query(word), ["a", "b"]) for word in counts}
        for chunk_id, score in channel.scores(query, ["a", "b"]).items():
            expected = math.fsum(count * single[word][chunk_id] for word, count in counts.items())
            assert score == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("terms", [{"a": 0.0}, {"a": -1.0}, {"a": math.inf}, {"a": math.nan}, {"a": "1"}])
def test_terms_count_more_than_nothing(terms: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Variant("a", terms=terms)


def test_a_variant_with_terms_is_a_value() -> None:
    given_terms = {"a": 1.0}
    variant = Variant("x", terms=given_terms)
    given_terms["b"] = 1.0
    assert variant == Variant("x", terms={"a": 1.0})
    assert hash(variant) == hash(Variant("x", terms={"a": 1.0}))
    assert variant != Variant("x")


# RM3


def test_the_words_of_what_is_found_are_weighed_and_the_question_keeps_its_share() -> None:
    channel = bm25()
    scores = {hit.id: hit.score or 0.0 for hit in channel.search("pump", 2)}
    total = sum(scores.values())
    # Of three terms, one is the question's own; a has three words, b two.
    weights = {
        "pump": scores["a"] / total / 3 + scores["b"] / total / 2,
        "valve": scores["a"] / total * 2 / 3,
        "seal": scores["b"] / total / 2,
    }
    (variant,) = RM3(channel, original=0.25).rewrite(Query("pump")).variants
    expected = {word: 3 * weight for word, weight in weights.items()}  # (1 - 0.25) / 0.25, and they add up to 1
    assert variant.terms == pytest.approx({**expected, "pump": 1 + expected["pump"]})
    assert variant.channels == frozenset({"keyword"})
    assert variant.text.split()[0] == "pump"


async def test_more_is_found_and_sync_equals_async() -> None:
    pipeline = Pipeline(RM3() >> fuse(bm25=bm25(), dense=ListChannel([("z", 0.5)])))
    found = pipeline.search("pump", 9)
    assert set(found.ranking.ids) == {"a", "b", "c", "d", "z"}
    assert not found.degraded
    assert (await pipeline.asearch("pump", 9)).ranking == found.ranking


def test_vectors_are_searched_for_the_question_alone() -> None:
    dense = ListChannel([("z", 0.5)])
    (RM3() >> fuse(bm25=bm25(), dense=dense)).search("pump", 3)
    assert [text for text, _ in dense.asked] == ["pump"]


@given(st.lists(st.sampled_from(["pump", "valve", "seal", "filler1", "none"]), max_size=4).map(" ".join),
       st.integers(1, 3), st.floats(0.1, 1))  # fmt: skip
def test_no_hit_scores_less_and_no_more_terms_come_than_asked(question: str, terms: int, original: float) -> None:
    channel = bm25()
    rm3 = RM3(channel, terms=terms, original=original)
    query = Query(question, where={"team": {"$exists": True}})
    expanded = rm3.rewrite(query)
    assert (expanded.text, expanded.where) == (query.text, query.where)
    for variant in expanded.variants:
        assert len((variant.terms or {}).keys() | {question}) <= terms + 1
    plain, found = ({hit.id: hit.score or 0.0 for hit in channel.search(q, 40)} for q in (query, expanded))
    assert all(found[chunk_id] >= score for chunk_id, score in plain.items())


def test_only_what_may_be_seen_is_read() -> None:
    (variant,) = RM3(bm25()).rewrite(Query("pump", require={"team": 2})).variants
    assert set(variant.terms or ()) == {"pump", "seal"}


def test_common_words_are_left_out() -> None:
    chunks = [Chunk(str(at), f"pump{at} common") for at in range(20)] + [Chunk("q", "pump common rare")]
    (variant,) = RM3(BM25.from_chunks(chunks, str.split)).rewrite(Query("pump")).variants
    assert set(variant.terms or ()) == {"pump", "rare"}


async def test_where_the_first_search_fails_the_question_is_searched() -> None:
    pipeline = Pipeline(RM3(FailingChannel(OSError("down"))) >> bm25())
    for result in (pipeline.search("pump"), await pipeline.asearch("pump")):
        assert set(result.ranking.ids) == {"a", "b"}
        assert [(failure.stage, failure.kind) for failure in result.errors] == [("rm3", "OSError")]
    with pytest.raises(ConfigError, match="give RM3 a channel"):
        Pipeline(RM3() >> ListChannel([("z", 1.0)])).search("pump")


async def test_together_with_others() -> None:
    together = Together([RuleExpansion(2), RM3(), RM3(FailingChannel(OSError("down")))])
    pipeline = Pipeline(together >> bm25())
    result = pipeline.search("what is a pump")
    assert set(result.ranking.ids) == {"a", "b", "c", "d"}
    assert [failure.kind for failure in result.errors] == ["OSError"]
    assert (await pipeline.asearch("what is a pump")).ranking.ids == result.ranking.ids


def test_channels_without_scores_count_alike_and_options_are_checked() -> None:
    channel = ListChannel([("alpha beta", None), ("alpha gamma", None)], kind="keyword")
    (variant,) = RM3(channel, analyzer=str.split).rewrite(Query("q")).variants
    assert variant.terms == pytest.approx({"q": 1.0, "alpha": 0.5, "beta": 0.25, "gamma": 0.25})
    assert RM3(channel, original=1).rewrite(Query("q")) == Query("q")
    for wrong in ({"documents": 0}, {"terms": 0}, {"original": 0}, {"original": 1.5}, {"channel": "bm25"}):
        with pytest.raises(ConfigError):
            RM3(**wrong)
