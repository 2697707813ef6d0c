"""BM25F: its scores by hand, beside plain Python, and beside BM25."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25, BM25F, Lucene
from voicevault_retrievers.text import Analyzer

BODIES = st.lists(st.sampled_from("abcde"), max_size=8).map(" ".join)
TITLES = st.none() | BODIES | st.lists(BODIES, max_size=2)
CHUNKS = st.lists(st.tuples(BODIES, TITLES, st.booleans()), min_size=1, max_size=12)
QUESTIONS = st.lists(st.sampled_from("abcdez"), max_size=5).map(" ".join)
WEIGHTS = st.fixed_dictionaries({"title": st.floats(0.1, 9), "text": st.floats(0.1, 9)})
BS = st.fixed_dictionaries({"title": st.floats(0, 1), "text": st.floats(0, 1)})
Corpus = list[tuple[str, Any, bool]]


def _chunks(corpus: Corpus) -> list[Chunk]:
    return [
        Chunk(f"c{number:02}", text, metadata={"even": even} | ({} if title is None else {"title": title}))
        for number, (text, title, even) in enumerate(corpus)
    ]


def _words(chunk: Chunk, field: str) -> list[str]:
    value = chunk.text if field == "text" else chunk.metadata.get(field, "")
    return (value if isinstance(value, str) else " ".join(value)).split()


def _scores(
    chunks: Sequence[Chunk], query: str, weights: Mapping[str, float], b: Mapping[str, float], k1: float
) -> dict[str, float]:
    """The published formula, chunk by chunk; those that have a term."""
    mean = {field: sum(len(_words(chunk, field)) for chunk in chunks) / max(1, len(chunks)) for field in weights}
    scores: dict[str, float] = {}
    for term in query.split():
        having = [chunk for chunk in chunks if any(term in _words(chunk, field) for field in weights)]
        idf = math.log(1 + (len(chunks) - len(having) + 0.5) / (len(having) + 0.5))
        for chunk in having:
            pseudo = 0.0
            for field, weight in weights.items():
                words = _words(chunk, field)
                if term in words:
                    pseudo += weight * words.count(term) / (1 - b[field] + b[field] * len(words) / mean[field])
            scores[chunk.id] = scores.get(chunk.id, 0.0) + idf * pseudo / (k1 + pseudo)
    return scores


def test_a_score_is_the_formula_worked_out() -> None:
    chunks = [
        Chunk("1", "x y", metadata={"title": "pump"}),
        Chunk("2", "pump pump z y", metadata={"title": ["a", "b"]}),
    ]
    found = BM25F.from_chunks(chunks, {"title": 3.0, "text": 1.0}, str.split, b={"title": 0.5}).search("pump", 9)
    idf = math.log(1 + 0.5 / 2.5)
    title = 3 * 1 / (1 - 0.5 + 0.5 * 1 / 1.5)
    text = 1 * 2 / (1 - 0.75 + 0.75 * 4 / 3)
    assert found.ids == ("1", "2")
    expected = [idf * title / (1.2 + title), idf * text / (1.2 + text)]
    assert [hit.score for hit in found] == pytest.approx(expected, rel=1e-12)
    assert found.hits[0].votes[0].terms == ("pump",)


@given(
    corpus=CHUNKS, query=QUESTIONS, weights=WEIGHTS, b=BS, k1=st.floats(0, 3),
    where=st.booleans(), require=st.booleans(), statistics=st.sampled_from(["exact", "filtered"]),
)  # fmt: skip
def test_scores_are_those_of_plain_python_and_explanations_add_up(
    corpus: Corpus, query: str, weights: dict[str, float], b: dict[str, float], k1: float, where: bool, require: bool,
    statistics: str,
) -> None:  # fmt: skip
    chunks = _chunks(corpus)
    channel = BM25F.from_chunks(chunks, weights, str.split, b=b, k1=k1, statistics=statistics)
    even = [chunk for chunk in chunks if chunk.metadata["even"]]
    counting = even if require or (where and statistics == "filtered") else chunks
    passing = {chunk.id for chunk in (even if where or require else chunks)}
    all_scores = _scores(counting, query, weights, b, k1)
    expected = {chunk_id: score for chunk_id, score in all_scores.items() if chunk_id in passing}

    asked = Query(query, where={"even": True} if where else None, require={"even": True} if require else None)
    found = channel.search(asked, len(chunks))
    assert {hit.id: hit.score for hit in found} == pytest.approx(expected, rel=1e-12)
    assert list(found.ids) == sorted(
        found.ids, key=lambda chunk_id: (-(channel.scores(asked, [chunk_id])[chunk_id]), chunk_id)
    )
    assert channel.search(asked, 2).ids == found.ids[:2]
    everything = {chunk_id: expected.get(chunk_id, 0.0) for chunk_id in passing} if query else {}
    assert channel.scores(asked, [chunk.id for chunk in chunks]) == pytest.approx(everything, rel=1e-12)
    for chunk in chunks:
        parts = channel.explain(asked, chunk.id)
        assert sum(part.contribution for part in parts) == pytest.approx(expected.get(chunk.id, 0.0), rel=1e-12)
        for part in parts:
            assert part.frequency == _words(chunk, part.field).count(part.term) > 0
            assert part.count == query.split().count(part.term)


@given(corpus=CHUNKS, query=QUESTIONS, k1=st.floats(0, 3), b=st.floats(0, 1))
def test_one_field_of_weight_1_is_bm25(corpus: Corpus, query: str, k1: float, b: float) -> None:
    chunks = _chunks(corpus)
    ours = BM25F.from_chunks(chunks, {"text": 1.0}, str.split, k1=k1, b=b).search(query, len(chunks))
    theirs = BM25.from_chunks(chunks, str.split, formula=Lucene(k1, b)).search(query, len(chunks))
    assert {hit.id: hit.score for hit in ours} == pytest.approx({hit.id: hit.score for hit in theirs}, rel=1e-12)
    assert {hit.id: hit.votes[0].terms for hit in ours} == {hit.id: hit.votes[0].terms for hit in theirs}


def test_equal_scores_go_by_id_and_long_fields_do_not_overflow() -> None:
    chunks = [Chunk(name, "pump " * 200, metadata={"title": "pump"}) for name in "bca"]
    found = BM25F.from_chunks(chunks, {"title": 2, "text": 3}, str.split).search("pump", 2)
    pseudo = 2 * 1 + 3 * 200
    assert found.ids == ("a", "b")
    score = math.log(1 + 0.5 / 3.5) * pseudo / (1.2 + pseudo)
    assert [hit.score for hit in found] == pytest.approx([score, score], rel=1e-12)


def test_a_term_of_several_languages_is_one_term() -> None:
    chunks = [
        Chunk("de", "Die Pumpen und die Ventile sind nicht neu", metadata={"title": "The pumps of the house"}),
        Chunk("en", "These are the pumps that you have", metadata={"title": "Die Pumpen sind nicht da"}),
        Chunk("it", "Nothing of this is in here", metadata={"title": "Die roten Pumps sind nicht mehr da"}),
        Chunk("no", "Nothing of this is in here", metadata={"title": "Und auch das ist es nicht"}),
    ]
    channel = BM25F.from_chunks(chunks, {"title": 1, "text": 1}, Analyzer("auto"), b=0.0)
    (part,) = channel.explain("pumps", "de")
    assert (part.field, part.document_frequency, part.term) == ("title", 3, "pump")
    assert set(channel.search("pumps", 9).ids) == {"de", "en", "it"}
    assert channel.search("pumps", 9).hits[0].votes[0].terms == ("pumps",)


def test_a_variant_counts_with_its_weight() -> None:
    channel = BM25F.from_chunks(_chunks([("a", None, True), ("b", "a", True)]), {"title": 1, "text": 1}, str.split)
    plain = channel.scores("b", ["c00", "c01"])
    query = Query("b", variants=(Variant("a", 0.5),))
    halved = {chunk_id: score / 2 for chunk_id, score in channel.scores(Query("a"), ["c00", "c01"]).items()}
    assert channel.coverage("b nosuchword") == channel.coverage(Query("b nosuchword")) == 0.5
    expected = {chunk_id: max(plain[chunk_id], halved[chunk_id]) for chunk_id in plain}
    assert channel.scores(query, ["c00", "c01", "c99"]) == expected
    assert {hit.id: hit.score for hit in channel.search(query, 9)} == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": {"title": 0.0}}, "weight of field 'title' is 0"),
        ({"fields": {"title": -1.0}}, "weight of field 'title' is a number of at least 0"),
        ({"b": {"titel": 0.5}}, "unknown field 'titel'. Did you mean 'title'"),
        ({"b": 1.5}, "b is between 0 and 1"),
        ({"k1": -1}, "k1 is a number of at least 0"),
        ({"statistics": "some"}, "unknown statistics 'some'"),
        ({"fields": {"year": 1.0}}, "chunk 'c': field 'year' is a string or a list of strings, not 2020"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BM25F.from_chunks([Chunk("c", "a", metadata={"year": 2020})], **options)


def test_without_chunks_nothing_is_found_and_the_recipe_says_so() -> None:
    empty = BM25F.from_chunks([], analyzer=Analyzer("en"))
    assert len(empty.search("pump", 9)) == 0
    assert repr(empty) == (
        f"BM25F({{'title': 3.0, 'text': 1.0}}, k1=1.2, b={{'title': 0.75, 'text': 0.75}}, "
        f"analyzer={Analyzer('en')!r}, chunks=0)"
    )


def test_a_single_chunk_is_as_long_as_the_mean() -> None:
    channel = BM25F.from_chunks([Chunk("1", "x y z", metadata={"title": "pump"})], {"title": 1.0, "text": 1.0}, k1=1.2)
    idf, pseudo = math.log(1 + 0.5 / 1.5), 1.0
    for where in (None, {"title": "pump"}):
        (hit,) = channel.search(Query("pump", where=where), k=1)
        assert hit.score == pytest.approx(idf * pseudo / (1.2 + pseudo), rel=1e-12)
