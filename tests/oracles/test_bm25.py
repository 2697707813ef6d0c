"""BM25 beside rank-bm25 and bm25s, on random corpora."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.lexical.formulas import FORMULAS

rank_bm25 = pytest.importorskip("rank_bm25")
bm25s = pytest.importorskip("bm25s")

letters = st.sampled_from("abcdefgh")
corpora = st.lists(st.lists(letters, min_size=1, max_size=12), min_size=1, max_size=20)
questions = st.lists(st.sampled_from("abcdefghz"), min_size=1, max_size=6)
k1s = st.floats(0.5, 3.0)
bs = st.floats(0.0, 1.0)


def _chunks(corpus: Sequence[Sequence[str]]) -> list[Chunk]:
    return [Chunk(f"d{number:03}", " ".join(words)) for number, words in enumerate(corpus)]


def _compare(
    channel: BM25, corpus: Sequence[Sequence[str]], query: Sequence[str], theirs: Any, **tolerance: float
) -> None:
    found = {hit.id: hit.score for hit in channel.search(" ".join(query), len(corpus))}
    matching = {f"d{number:03}" for number, words in enumerate(corpus) if set(words) & set(query)}
    assert set(found) == matching
    expected = {f"d{number:03}": score for number, score in enumerate(theirs) if f"d{number:03}" in matching}
    assert found == pytest.approx(expected, **tolerance)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("BM25Okapi", "okapi"), ("BM25Plus", "bm25+")],
)
@given(corpus=corpora, query=questions)
def test_scores_are_those_of_rank_bm25(theirs: str, ours: str, corpus: list[list[str]], query: list[str]) -> None:
    scores = getattr(rank_bm25, theirs)(corpus).get_scores(query)
    channel = BM25.from_chunks(_chunks(corpus), str.split, formula=ours)
    _compare(channel, corpus, query, scores, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["BM25Okapi", "BM25L", "BM25Plus"])
@given(corpus=corpora, query=questions, k1=k1s, b=bs)
def test_a_live_rank_bm25_object_keeps_its_scores(
    name: str, corpus: list[list[str]], query: list[str], k1: float, b: float
) -> None:
    ranker = getattr(rank_bm25, name)(corpus, k1=k1, b=b)
    channel = BM25.from_rank_bm25(ranker, _chunks(corpus))
    _compare(channel, corpus, query, ranker.get_scores(query), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("method", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
@given(corpus=corpora, query=questions)
def test_scores_are_those_of_bm25s(method: str, corpus: list[list[str]], query: list[str]) -> None:
    vocabulary = {letter: number for number, letter in enumerate(sorted({w for words in corpus for w in words}))}
    ranker = bm25s.BM25(method=method, k1=1.5, b=0.75, delta=0.5 if method == "bm25l" else 1.0, dtype="float64")
    ids = [[vocabulary[word] for word in words] for words in corpus]
    ranker.index(bm25s.tokenization.Tokenized(ids=ids, vocab=vocabulary), show_progress=False)
    known = [word for word in query if word in vocabulary]
    scores = ranker.get_scores(known) if known else np.zeros(len(corpus))
    channel = BM25.from_chunks(_chunks(corpus), str.split, formula=method)
    _compare(channel, corpus, query, scores, rel=1e-5, abs=1e-5)


def test_okapi_and_the_packages_own_default_are_their_formulas() -> None:
    corpus = [["a", "b"], ["a", "a", "c"], ["a"], ["d", "e", "f", "g"]]
    count, average = 4, 10 / 4
    okapi = {
        word: math.log((count - n + 0.5) / (n + 0.5)) for word, n in {"a": 3, **dict.fromkeys("bcdefg", 1)}.items()
    }
    okapi["a"] = 0.25 * math.fsum(okapi.values()) / len(okapi)  # in place of a negative one
    lucene = math.log(1 + (count - 3 + 0.5) / (3 + 0.5))

    def tf(frequency: int, length: int) -> float:
        return frequency / (frequency + 1.5 * (1 - 0.75 + 0.75 * length / average))

    chunks = _chunks(corpus)
    found = {hit.id: hit.score for hit in BM25.from_chunks(chunks, str.split, formula="okapi").search("a b", 10)}
    assert found == pytest.approx(
        {
            "d000": (okapi["a"] + okapi["b"]) * tf(1, 2) * 2.5,
            "d001": okapi["a"] * tf(2, 3) * 2.5,
            "d002": okapi["a"] * tf(1, 1) * 2.5,
        },
        rel=1e-9,
    )
    default = {hit.id: hit.score for hit in BM25.from_chunks(chunks, str.split).search("a", 10)}
    assert default == pytest.approx(
        {name: lucene * tf(*of) for name, of in {"d000": (1, 2), "d001": (2, 3), "d002": (1, 1)}.items()}, rel=1e-9
    )


def test_okapi_keeps_a_match_that_scores_below_zero_and_drops_it_on_request() -> None:
    corpus = [["a"], ["a"], ["a"], ["a", "b"]]
    scores = rank_bm25.BM25Okapi(corpus).get_scores(["a"])
    assert max(scores) < 0
    assert len(BM25.from_chunks(_chunks(corpus), str.split, formula="okapi").search("a", 10)) == len(corpus)
    strict = BM25.from_chunks(_chunks(corpus), str.split, formula="okapi", exclude_nonpositive=True)
    assert len(strict.search("a", 10)) == 0


def test_a_rank_bm25_object_with_other_documents_is_refused() -> None:
    ranker = rank_bm25.BM25Okapi([["a"], ["b"]])
    with pytest.raises(ConfigError, match="2 documents, given 1"):
        BM25.from_rank_bm25(ranker, [Chunk("x", "a")])
    with pytest.raises(ConfigError, match="unknown rank-bm25 class 'object'"):
        BM25.from_rank_bm25(object(), [])


@given(corpus=corpora, query=questions, formula=st.sampled_from(sorted(FORMULAS)))
def test_an_explanation_adds_up(corpus: list[list[str]], query: list[str], formula: str) -> None:
    channel = BM25.from_chunks(_chunks(corpus), str.split, formula=formula)
    for hit in channel.search(" ".join(query), 5):
        parts = channel.explain(" ".join(query), hit.id)
        assert sum(part.contribution for part in parts) == pytest.approx(hit.score, rel=1e-12, abs=1e-12)
        assert {part.term for part in parts if part.frequency} == set(hit.votes[0].terms)
        for part in parts:
            assert part.frequency == hit.chunk.text.split().count(part.term)
            assert part.document_frequency == sum(part.term in words for words in corpus)
