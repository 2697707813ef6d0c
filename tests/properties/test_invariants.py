"""The ten invariants that hold for every channel, stage, fusion and composition of them.

1 valid rankings of at most k; 2 order of channels and corpus; 3 votes reproduce the fused score; 4 prefixes; 5 inputs
unchanged; 6 empty and extreme input; 7 save and open (in test_knowledge_base); 8 sync equals async; 9 round trips (in
frameworks); 10 adding then deleting (here for the index, in test_knowledge_base on disk).
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import HashEmbedder, ListChannel, examples
from tests.properties.strategies import chunk_lists, found, queries
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.pages import page_of
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.dense import ExactVectors, VectorChannel, VectorPart
from voicevault_retrievers.errors import InvalidScoreError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25, IndexSegment, LexicalIndex
from voicevault_retrievers.lexical.builder import build
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.query import RuleExpansion
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank, PageCap
from voicevault_retrievers.text import Analyzer

EMBEDDER = HashEmbedder(16)
Make = Callable[[Sequence[Chunk]], Channel]


def _length(query: str, passages: Sequence[str]) -> list[float]:
    return [len(set(query.split()) & set(passage.split())) - len(passage) / 100 for passage in passages]


def bm25(chunks: Sequence[Chunk]) -> Channel:
    return BM25.from_chunks(chunks)


def okapi(chunks: Sequence[Chunk]) -> Channel:
    return BM25.from_chunks(chunks, formula="okapi")


def dense(chunks: Sequence[Chunk]) -> Channel:
    return VectorChannel.from_chunks(chunks, EMBEDDER)


def fused(chunks: Sequence[Chunk]) -> Channel:
    return fuse(bm25=bm25(chunks), dense=dense(chunks))


def nested(chunks: Sequence[Chunk]) -> Channel:
    return fuse(inner=fused(chunks), okapi=okapi(chunks), weights={"okapi": 0.5})


def capped(chunks: Sequence[Chunk]) -> Channel:
    return fused(chunks) >> PageCap(1)


def whole(chunks: Sequence[Chunk]) -> Channel:
    rerank = CrossEncoderRerank(CallableScorer(_length, name="overlap"), depth=4)
    return (RuleExpansion() >> fused(chunks)) >> rerank >> PageCap(2)


CHANNELS: list[Make] = [bm25, okapi, dense, fused, nested, capped, whole]
EACH = pytest.mark.parametrize("make", CHANNELS, ids=lambda make: make.__name__)
ks = st.integers(0, 25)


@EACH
@given(chunks=chunk_lists, query=queries, k=ks)
def test_1_a_ranking_is_valid_and_holds_at_most_k(make: Make, chunks: list[Chunk], query: str, k: int) -> None:
    ranking = make(chunks).search(query, k)
    assert len(ranking) <= k
    assert set(ranking.ids) <= {chunk.id for chunk in chunks}
    assert not any(failure.degrades for failure in ranking.errors)
    Ranking(ranking.hits)  # its constructor checks ids, scores and order


@EACH
@given(chunks=chunk_lists, query=queries, seed=st.randoms(use_true_random=False))
def test_2_the_order_of_the_corpus_does_not_matter(make: Make, chunks: list[Chunk], query: str, seed: object) -> None:
    shuffled = list(chunks)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert make(chunks).search(query, 10) == make(shuffled).search(query, 10)


@pytest.mark.parametrize("make", [fused, nested])
@given(chunks=chunk_lists, query=queries)
def test_3_votes_reproduce_the_fused_score(make: Make, chunks: list[Chunk], query: str) -> None:
    for hit in make(chunks).search(query, 10):
        assert hit.score == hit.fused == math.fsum(vote.contribution or 0.0 for vote in hit.votes)


@given(first=found, second=found)
def test_3_rrf_is_the_papers(first: list[tuple[str, float]], second: list[tuple[str, float]]) -> None:
    ranking = fuse(a=ListChannel(first), b=ListChannel(second), method=RRF(k=60)).search("q", 100)
    for hit in ranking:
        ranks = [[i for i, _ in entries].index(hit.id) + 1 for entries in (first, second) if hit.id in dict(entries)]
        assert hit.score == math.fsum(1 / (60 + rank) for rank in ranks)


@EACH
@given(chunks=chunk_lists, query=queries, k=st.integers(0, 20))
def test_4_fewer_results_are_the_first_of_more(make: Make, chunks: list[Chunk], query: str, k: int) -> None:
    channel = make(chunks)
    assert channel.search(query, k).ids == channel.search(query, k + 1).ids[:k]


@EACH
@given(chunks=chunk_lists, query=queries)
def test_5_inputs_are_not_changed(make: Make, chunks: list[Chunk], query: str) -> None:
    before, asked = copy.deepcopy(chunks), Query(query, where={"page_number": {"$gte": 1}})
    ranking = make(chunks).search(asked, 5)
    assert chunks == before
    assert asked == Query(query, where={"page_number": {"$gte": 1}})
    by_id = {chunk.id: chunk for chunk in before}
    assert all(hit.chunk == by_id[hit.id] for hit in ranking)


@EACH
@pytest.mark.parametrize("query", ["", " ", "unknownword", "?", "the", "泵"])
@pytest.mark.parametrize("k", [0, 1, 1000])
def test_6_nothing_to_find_is_an_empty_ranking(make: Make, query: str, k: int) -> None:
    assert make([]).search(query, k) == Ranking()
    found = make([Chunk("a", "pump"), Chunk("b", "")]).search(query, k)
    assert len(found) <= (min(k, 2) if query.strip() else 0)


@given(chunks=chunk_lists, query=queries)
def test_6_a_chunk_that_shares_no_word_is_no_filler(chunks: list[Chunk], query: str) -> None:
    analyzer = Analyzer("en")  # of one language, so that a query is read as a document is
    terms = set(analyzer(query))
    for formula in FORMULAS:
        ids = BM25.from_chunks(chunks, analyzer, formula=formula).search(query, 100).ids
        assert set(ids) == {chunk.id for chunk in chunks if terms & set(analyzer(chunk.text))}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_6_a_score_that_is_no_number_is_a_named_error(bad: float) -> None:
    with pytest.raises(InvalidScoreError, match="chunk 'x'"):
        ListChannel([("x", bad)]).search("q", 5)
    skipped = fuse(bad=ListChannel([("x", bad)]), good=ListChannel([("y", 1.0)])).search("q", 5)
    assert skipped.ids == ("y",)
    assert [(failure.stage, failure.kind) for failure in skipped.errors] == [("bad", "InvalidScoreError")]


@EACH
@examples(0.25)
@given(chunks=chunk_lists, query=queries, k=ks)
def test_8_sync_equals_async(make: Make, chunks: list[Chunk], query: str, k: int) -> None:
    channel = make(chunks)
    assert channel.search(query, k) == asyncio.run(channel.asearch(query, k))


@given(chunks=chunk_lists, extra=chunk_lists, query=queries, cut=st.integers(0, 20))
@pytest.mark.parametrize("formula", sorted(FORMULAS))
def test_10_deletes_and_segments_leave_every_score_as_it_was(
    formula: str, chunks: list[Chunk], extra: list[Chunk], query: str, cut: int
) -> None:
    """Scores with chunks deleted, over one or several segments, are to the bit those of an index of the rest."""
    kept = {chunk.id for chunk in chunks}
    extra = [chunk for chunk in extra if chunk.id not in kept]
    everything = [*chunks, *extra]
    segments = [_segment(part, kept) for part in (everything[:cut], everything[cut:]) if part]
    whole_index = BM25(LexicalIndex(segments), formula=formula).search(query, 100)
    assert whole_index == BM25.from_chunks(chunks, formula=formula).search(query, 100)


@given(chunks=chunk_lists, extra=chunk_lists, query=queries, cut=st.integers(0, 20))
def test_10_deletes_and_parts_leave_every_cosine_as_it_was(
    chunks: list[Chunk], extra: list[Chunk], query: str, cut: int
) -> None:
    kept = {chunk.id for chunk in chunks}
    everything = [*chunks, *(chunk for chunk in extra if chunk.id not in kept)]
    parts = [_vectors(part, kept) for part in (everything[:cut], everything[cut:]) if part]
    channel = VectorChannel(ExactVectors(parts, EMBEDDER.dimension), EMBEDDER)
    assert channel.search(query, 100) == dense(chunks).search(query, 100)


@given(chunks=chunk_lists, query=queries, page=st.integers(1, 3))
def test_access_scores_and_explanations_are_those_of_such_a_base_too(
    chunks: list[Chunk], query: str, page: int
) -> None:
    permitted = [chunk for chunk in chunks if chunk.metadata.get("page_number") == page]
    asked, ids = Query(query, require={"page_number": page}), [chunk.id for chunk in chunks]
    for make in (bm25, okapi, dense):
        assert make(chunks).scores(asked, ids) == make(permitted).scores(Query(query), ids)
    for formula in FORMULAS:
        limited, own = BM25.from_chunks(chunks, formula=formula), BM25.from_chunks(permitted, formula=formula)
        for hit in limited.search(asked, 5):
            parts = limited.explain(asked, hit.id)
            assert parts == own.explain(query, hit.id)
            assert math.fsum(part.contribution for part in parts) == pytest.approx(hit.score, abs=1e-9)
        forbidden = [chunk.id for chunk in chunks if chunk not in permitted]
        assert not any(limited.explain(asked, chunk_id) for chunk_id in forbidden)


@given(chunks=chunk_lists, query=queries)
def test_scores_are_those_that_a_search_gives(chunks: list[Chunk], query: str) -> None:
    asked = RuleExpansion().rewrite(Query(f"what is the {query}"))
    for make in (bm25, okapi, dense):
        channel = make(chunks)
        found = {hit.id: hit.score for hit in channel.search(asked, 100)}
        scores = channel.scores(asked, found) or {}
        assert scores == pytest.approx(found)


@given(chunks=chunk_lists, query=queries, page=st.integers(1, 3))
def test_where_narrows_and_keeps_the_scores_of_the_whole_base(chunks: list[Chunk], query: str, page: int) -> None:
    for make in (bm25, okapi, dense):
        everything = make(chunks).search(query, 100)
        narrowed = make(chunks).search(Query(query, where={"page_number": page}), 100)
        expected = [(h.id, h.score) for h in everything if h.chunk.metadata.get("page_number") == page]
        assert [(hit.id, hit.score) for hit in narrowed] == expected


@given(chunks=chunk_lists, query=queries, k=st.integers(1, 8), cap=st.integers(1, 3))
def test_the_page_cap_is_hard_fills_up_and_keeps_the_order(chunks: list[Chunk], query: str, k: int, cap: int) -> None:
    below = fused(chunks)
    full = below.search(query, 1000)
    expected: list[str] = []
    counts: dict[object, int] = {}
    for hit in full:
        page = page_of(hit.chunk.metadata)
        counts[page] = counts.get(page, 0) + 1
        if page is None or counts[page] <= cap:
            expected.append(hit.id)
    assert (below >> PageCap(cap)).search(query, k).ids == tuple(expected[:k])


def _segment(chunks: Sequence[Chunk], kept: set[str]) -> IndexSegment:
    rows = Rows.of(chunks)
    live = np.array([chunk_id in kept for chunk_id in rows.ids])
    analyzer = Analyzer()
    return IndexSegment(
        Rows(rows.chunks, rows.ids, live), build(analyzer.analyse([chunk.text for chunk in rows.chunks]))
    )


def _vectors(chunks: Sequence[Chunk], kept: set[str]) -> VectorPart:
    rows = Rows.of(chunks)
    live = np.array([chunk_id in kept for chunk_id in rows.ids])
    return VectorPart(
        Rows(rows.chunks, rows.ids, live), EMBEDDER.embed_documents([chunk.text for chunk in rows.chunks])
    )
