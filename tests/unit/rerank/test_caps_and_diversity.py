"""Caps, maximal marginal relevance, near duplicates: what they keep, in what order, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers import Counting, GivenChannel, HashEmbedder, ListChannel
from tests.properties.strategies import chunk_lists, found
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Vote, ranked
from voicevault_retrievers.dense import VectorChannel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank import MMR, Cosines, NearDuplicates, PageCap, Shingles
from voicevault_retrievers.store import KnowledgeBase

EMBEDDER = HashEmbedder()
QUERY = Query("pump")
A = "press the red button to stop the pump at once and call the shift lead before you start it again tomorrow"
B = A.replace("tomorrow", "today")
C = "an invoice is paid within thirty days of the delivery of all the goods that were ordered by the customer"


def ranking(texts: Sequence[str], scores: Sequence[float | None] = ()) -> Ranking:
    given = scores or [1 / rank for rank in range(1, len(texts) + 1)]
    pairs = enumerate(zip(texts, given, strict=True))
    return Ranking(tuple(Hit(Chunk(f"c{at:03}", text), score) for at, (text, score) in pairs))


def refined(stage: Stage, texts: Sequence[str], scores: Sequence[float | None] = ()) -> Ranking:
    return stage.refine(QUERY, ranking(texts, scores))


def test_mmr_takes_next_what_is_relevant_and_unlike_what_was_taken() -> None:
    given = refined(MMR(0.5), [A, B, C], [1.0, 0.8, 0.0])
    assert given.ids == ("c000", "c002", "c001")  # B is A but for its last word: 18 of 20 runs of three
    expected = [0.5 * 1.0, 0.5 * 0.0 - 0.5 * 0.0, 0.5 * 0.8 - 0.5 * 18 / 20]
    assert [hit.score for hit in given] == pytest.approx(expected, abs=1e-7)
    assert [hit.vote("mmr") for hit in given] == [Vote("mmr", rank, hit.score) for rank, hit in enumerate(given, 1)]


def test_mmr_orders_the_first_depth_hits_and_the_rest_follow_unscored() -> None:
    given = refined(MMR(0.5, depth=3), [A, B, C, "x", "y"])
    assert given.ids == ("c000", "c002", "c001", "c003", "c004")
    assert [hit.score is None for hit in given] == [False, False, False, True, True]
    assert MMR(depth=3).needs(2) == 3


def test_mmr_goes_by_ranks_where_a_score_is_missing() -> None:
    given = refined(MMR(0.5), [A, B, C], [None, None, None])
    assert [hit.score for hit in given] == pytest.approx([0.5, 0.0, 0.25 - 0.5 * 18 / 20], abs=1e-7)


@pytest.mark.parametrize("scores", [[1e308, 0.0, -1e308], [5e-324, 0.0, 0.0], [2.0, 2.0, 2.0]])
def test_mmr_scales_any_scores(scores: list[float]) -> None:
    assert all(hit.score is not None and abs(hit.score) <= 1 for hit in refined(MMR(), [A, B, C], scores))


def oracle(hits: Sequence[Hit], balance: float, alike: Callable[[Hit, Hit], float]) -> list[tuple[str, float]]:
    """Carbonell and Goldstein's formula, tried for every hit at every place.

    Hits that differ and are worth the same but for rounding are no case to test.
    """
    low, high = min(hit.score or 0.0 for hit in hits), max(hit.score or 0.0 for hit in hits)

    def worth(hit: Hit, before: Sequence[Hit]) -> float:
        relevance = ((hit.score or 0.0) - low) / (high - low) if high > low else 1.0
        return balance * relevance - (1 - balance) * max((alike(hit, one) for one in before), default=0.0)

    left, chosen = list(hits), list[Hit]()
    scores: list[float] = []
    while left:
        best = min(left, key=lambda hit: (-round(worth(hit, chosen), 6), hit.id))
        differ = [hit for hit in left if (hit.text, hit.score) != (best.text, best.score)]
        assume(all(abs(worth(hit, chosen) - worth(best, chosen)) > 1e-5 for hit in differ))
        scores.append(worth(best, chosen))
        chosen.append(best)
        left.remove(best)
    return [(hit.id, score) for hit, score in zip(chosen, scores, strict=True)]


def resemblance(first: Hit, second: Hit) -> float:
    def runs(text: str) -> set[tuple[str, ...]]:
        words = text.casefold().split()
        return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))} if words else set()

    one, two = runs(first.chunk.text), runs(second.chunk.text)
    return len(one & two) / len(one | two) if one | two else 0.0


def cosine(first: Hit, second: Hit) -> float:
    one, two = EMBEDDER.embed_documents([first.chunk.text, second.chunk.text])
    return max(0.0, float(one @ two))


WORDS = st.lists(st.sampled_from(["pump", "valve", "oil", "hot"]), min_size=1, max_size=7).map(" ".join)
RANKINGS = st.lists(st.tuples(WORDS, st.integers(0, 20)), min_size=1, max_size=8).map(
    lambda entries: Ranking(ranked(Hit(Chunk(f"c{at}", text), score / 8) for at, (text, score) in enumerate(entries)))
)


@given(RANKINGS, st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]))
def test_mmr_is_the_formula(hits: Ranking, balance: float) -> None:
    for by, alike in (("shingles", resemblance), (EMBEDDER, cosine)):
        refined = MMR(balance, by=by).refine(QUERY, hits)  # type: ignore[arg-type]
        expected = oracle(hits.hits, balance, alike)
        assert [hit.score for hit in refined] == pytest.approx([score for _, score in expected], abs=1e-5)
        assert sorted(refined.ids) == sorted(hits.ids)
        if by == "shingles":
            assert list(refined.ids) == [name for name, _ in expected]


STAGES: list[Stage] = [
    MMR(), MMR(0.3, by=EMBEDDER), MMR(depth=4), NearDuplicates(), NearDuplicates(0.5, by=EMBEDDER), PageCap(1),
    PageCap(None, max_chunks_per_document=2),
]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=repr)
@given(chunks=chunk_lists, entries=found)
def test_stages_keep_chunks_votes_and_what_they_were_given(stage: Stage, chunks: list[Chunk], entries: Any) -> None:
    given = tuple(Hit(chunk, score, (Vote("a", 1, score),), "read") for chunk, (_, score) in zip(chunks, entries))  # noqa: B905
    before = Ranking(ranked(given))
    copy = replace(before)
    after = stage.refine(QUERY, before)
    assert before == copy
    held = {hit.id: hit for hit in before}
    for hit in after:
        assert (hit.chunk, hit.context, hit.votes[:1]) == (held[hit.id].chunk, "read", held[hit.id].votes)
    if not isinstance(stage, MMR):
        assert [hit for hit in before if hit in after.hits] == list(after)
        for m in range(len(before)):  # what comes later changes nothing before it
            assert stage.refine(QUERY, before.top(m)).hits == after.hits[: len(stage.refine(QUERY, before.top(m)))]


@given(chunk_lists, st.integers(0, 8))
def test_a_shorter_search_is_a_prefix(chunks: list[Chunk], k: int) -> None:
    dense = VectorChannel.from_chunks(chunks, EMBEDDER)
    for stage in STAGES[:2] + STAGES[3:]:
        assert (dense >> stage).search("pump oil", k).ids == (dense >> stage).search("pump oil", k + 1).ids[:k]


def test_near_duplicates_keep_the_best_and_compare_with_what_was_kept() -> None:
    assert refined(NearDuplicates(), [A, C, B, A.upper(), f"{C}!"]).ids == ("c000", "c001")
    chain = ["a b c d e f g h", "b c d e f g h i", "c d e f g h i j"]  # each is 5/7 of its neighbour, the ends 4/8
    assert refined(NearDuplicates(5 / 7), chain).ids == ("c000", "c002")
    assert refined(NearDuplicates(0.9), ["", "  ", "?!", ""]).ids == ("c000", "c001", "c002", "c003")


def test_near_duplicates_by_vectors() -> None:
    same = ["pump oil", "oil pump", "valve hot"]  # the words of two are the same
    assert refined(NearDuplicates(), same).ids == ("c000", "c001", "c002")
    assert refined(NearDuplicates(by=EMBEDDER), same).ids == ("c000", "c002")
    assert refined(NearDuplicates(1.0, by=EMBEDDER), same).ids == ("c000", "c002")


@given(st.lists(WORDS, max_size=600), st.sampled_from([0.3, 0.5, 0.8]))
def test_near_duplicates_are_those_of_a_plain_loop(texts: list[str], threshold: float) -> None:
    kept: list[Hit] = []
    for hit in ranking(texts):
        if not any(resemblance(hit, one) >= threshold - 1e-6 for one in kept):
            kept.append(hit)
    assert refined(NearDuplicates(threshold), texts).hits == tuple(kept)


def test_near_duplicates_across_blocks() -> None:
    texts = [f"number {at % 300} of {at % 300} things in row {at % 300}" for at in range(700)]
    assert len(refined(NearDuplicates(0.9), texts)) == 300


def test_shingles_are_words_of_any_script() -> None:
    rows = Shingles(2).rows(ranking(["电池维护手册", "电池维护指南", "電池"]).hits)
    assert [len(row) for row in rows] == [5, 5, 1]
    assert Shingles(2).table(rows)[0, 1] == pytest.approx(3 / 7)  # 电池, 池维 and 维护 of 7
    assert Shingles(3).table(Shingles(3).rows(ranking(["a b", "A, b!"]).hits))[0, 1] == 1.0


def test_a_wide_table_is_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Shingles(1).rows(ranking([A, B, C, f"{A} {C}"]).hits)
    whole = Shingles(1).table(rows)
    monkeypatch.setattr("voicevault_retrievers.rerank.likeness._CELLS", 8)
    assert np.array_equal(Shingles(1).table(rows, 1), whole[:, 1:])


CAPPED = {f"d{at}": {"source_file": f"{at % 2}.pdf", "page_number": at // 4} for at in range(20)}


@pytest.mark.parametrize("cap", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 3, 7, 20])
def test_caps_fill_k_where_k_exist(cap: int, k: int) -> None:
    below = ListChannel([(f"d{at}", None) for at in range(20)], metadata=CAPPED)
    pages = [name for name, place in CAPPED.items() if _place(name, place) < cap]
    assert (below >> PageCap(cap)).search("q", k).ids == tuple(pages[:k])
    files = [f"d{at}" for at in range(20) if at // 2 < cap]
    assert (below >> PageCap(None, max_chunks_per_document=cap)).search("q", k).ids == tuple(files[:k])


def _place(name: str, place: dict[str, Any]) -> int:
    same = [other for other, its in CAPPED.items() if its == place]
    return same.index(name)


def test_duplicates_are_filled_up_from_below() -> None:
    chunks = [Chunk(f"c{at:02}", f"the {'same' if at < 30 else f'other {at}'} words again") for at in range(40)]
    below = GivenChannel(map(Hit, chunks))
    assert (below >> NearDuplicates()).search("q", 5).ids == ("c00", "c30", "c31", "c32", "c33")
    assert len((below >> NearDuplicates()).search("q", 40)) == 11


def test_a_cap_per_document_alone_reads_any_metadata() -> None:
    hits = tuple(Hit(Chunk(f"c{at}", metadata={"source_file": ["a.pdf"], "page_number": 1})) for at in range(3))
    assert PageCap(None, max_chunks_per_document=2).refine(QUERY, Ranking(hits)).ids == ("c0", "c1")
    assert repr(PageCap(None, max_chunks_per_document=2)) == "PageCap(None, max_chunks_per_document=2)"
    with pytest.raises(ConfigError, match="for each page, each document or both"):
        PageCap(None)


def test_stored_vectors_are_taken_and_others_embedded() -> None:
    embedder = Counting()
    chunks = [Chunk("c000", A), Chunk("c001", B), Chunk("c002", C)]
    dense = VectorChannel.from_chunks(chunks[:2], embedder)
    embedder.texts.clear()
    given = MMR(0.5, by=dense).refine(QUERY, ranking([A, B, C]))
    assert embedder.texts == [C]
    assert given == MMR(0.5, by=HashEmbedder()).refine(QUERY, ranking([A, B, C]))
    assert set(dense.vectors(["c001", "none"])) == {"c001"}


def test_a_knowledge_base_gives_its_vectors(tmp_path: Path) -> None:
    chunks = [Chunk(f"c{at}", text) for at, text in enumerate([A, B, C])]
    base = KnowledgeBase.create(tmp_path / "kb", embedder=EMBEDDER)
    base.add(chunks[:1])
    base.compact()
    base.add(chunks[1:])
    expected = dict(zip((chunk.id for chunk in chunks), EMBEDDER.embed_documents([A, B, C]), strict=True))
    got = base.dense().vectors([*expected, "none"])
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], row) for name, row in expected.items())
    searched = base.dense() >> NearDuplicates(by=base.dense())
    assert isinstance(searched, Channel)
    assert len(searched.search("pump", 3)) == 2


def test_a_preset_gives_its_stages_the_vectors_of_its_dense_channel() -> None:
    stages = [{"near_duplicates": {"by": "vectors"}}, {"mmr": {"by": "vectors", "lambda_mult": 0.5}}, "mmr"]
    preset = Preset.of({"version": 1, "stages": stages})
    dense = VectorChannel.from_chunks([Chunk("c0", A), Chunk("c1", B), Chunk("c2", C)], EMBEDDER)
    pipeline = preset.build({"bm25": ListChannel([], kind="keyword"), "dense": dense})
    assert repr(Cosines(dense)) in pipeline.describe()
    assert "by=Shingles(3)" in pipeline.describe()
    assert not pipeline.search("pump").errors
    with pytest.raises(ConfigError, match="has none that compare"):
        preset.build({"bm25": ListChannel([]), "dense": ListChannel([])})


def test_what_goes_by_vectors_and_has_none_raises() -> None:
    channel = ListChannel([("x", 1.0), ("y", 0.5)]) >> MMR(by="vectors")
    with pytest.raises(ConfigError, match="mmr goes by vectors and was given none"):
        channel.search("q")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MMR(1.5), "lambda_mult is a number from 0 to 1, not 1.5"),
        (lambda: MMR(float("nan")), "from 0 to 1"),
        (lambda: MMR(depth=0), "depth is a whole number of at least 1"),
        (lambda: MMR(by="words"), "compared by 'shingles', 'vectors'"),  # type: ignore[arg-type]
        (lambda: NearDuplicates(-0.1), "threshold is a number from 0 to 1"),
        (lambda: NearDuplicates(timeout=0), "timeout is a number of seconds"),
        (lambda: Preset.of({"version": 1, "stages": [{"mmr": {"lambda": 1}}]}), "Did you mean 'lambda_mult'"),
    ],
)
def test_options_that_are_wrong(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_recipe_says_all() -> None:
    assert repr(MMR()) == "MMR(0.7, depth=None, by=Shingles(3), timeout=None, name='mmr')"
    assert repr(NearDuplicates(by=EMBEDDER)) == (
        "NearDuplicates(None, by=HashEmbedder(16), timeout=None, name='near_duplicates')"
    )
