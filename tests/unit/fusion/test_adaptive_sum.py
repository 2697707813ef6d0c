"""The default fusion: exact scores, and weights that are found anew for each query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import Counting, HashEmbedder, KnowingChannel, ListChannel
from voicevault_retrievers.core.types import ChannelKind, Chunk, Query
from voicevault_retrievers.dense import VectorChannel
from voicevault_retrievers.fusion import AdaptiveSum, Pool, fuse
from voicevault_retrievers.fusion.adaptive_sum import LEAST
from voicevault_retrievers.lexical import BM25, BM25F
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.pipeline.pipeline import Pipeline

EMBEDDER = HashEmbedder(16)
WORDS = "pump valve seal motor shaft bolt gauge hose filter drain relay fuse wire lamp switch".split()


def chunks(count: int, seed: int = 0) -> list[Chunk]:
    rng = np.random.default_rng(seed)
    return [
        Chunk(f"c{at:03}", " ".join(rng.choice(WORDS, size=rng.integers(3, 12))), metadata={"open": bool(at % 2)})
        for at in range(count)
    ]


class Told(KnowingChannel):
    """The best of a list, the exact scores of all chunks, and how much of the query the collection has."""

    def __init__(
        self, scores: Mapping[str, float], depth: int, kind: ChannelKind = "semantic", coverage: float | None = None
    ) -> None:
        best = sorted(scores.items(), key=lambda entry: -entry[1])[:depth]
        super().__init__(best, scores, coverage=coverage, kind=kind)


def falling(count: int, first: float = 10.0, last: float = 1.0) -> dict[str, float]:
    """The scores of so many chunks, the first and the tenth as given."""
    return {f"w{at:02}": first + (last - first) * at / 9 if at < 10 else last for at in range(count)}


def share(name: str, **channels: KnowingChannel) -> float:
    pool = Pool({key: one.search("q", 100) for key, one in channels.items()})
    found = {
        key: pool.evidence(key, one.kind, one.scores(Query("q"), pool.missing(key)), one.covered)
        for key, one in channels.items()
    }
    return AdaptiveSum().shares(found)[name]


def part(factor: float) -> float:
    return LEAST + (1 - LEAST) * factor


def test_a_hit_adds_its_exact_score_scaled_for_the_query_whether_it_was_listed_or_not() -> None:
    words = Told({"x": 8.0, "y": 6.0, "z": 2.0}, 2, "keyword")
    sense = Told({"z": 0.9, "x": 0.5, "y": 0.1}, 1)
    hits = {hit.id: hit for hit in fuse(words=words, sense=sense).search("q")}
    # z, the only hit by meaning, has a quarter of the highest keyword score; cosines lie between .1 and 1
    of_sense = 3 * part((0.9 - 0.1) / 0.9) * part(0.25**2)
    assert hits["x"].score == pytest.approx(1.0 + of_sense * (0.05 + 0.4 / 0.9))
    assert hits["z"].score == pytest.approx(0.25 + of_sense * (0.05 + 0.8 / 0.9))
    assert hits["x"].found_by == "keyword"  # the other channel did not find it, and says what it thinks of it
    vote = hits["x"].vote("sense")
    assert vote is not None
    assert (vote.rank, vote.score) == (None, 0.5)
    assert hits["x"].score == math.fsum(vote.contribution or 0.0 for vote in hits["x"].votes)


def test_weights_multiply_and_the_share_of_meaning_is_an_option() -> None:
    words, sense = Told({"x": 8.0, "y": 6.0}, 2, "keyword"), Told({"y": 0.9, "x": 0.5}, 2)
    once, thrice = (
        {hit.id: hit for hit in fuse(words=words, sense=sense, weights={"words": weight}).search("q")}
        for weight in (1.0, 3.0)
    )
    one = {hit.id: hit for hit in fuse(words=words, sense=sense, method=AdaptiveSum(semantic=1)).search("q")}
    for key in ("x", "y"):
        parts = {name: once[key].vote(name) for name in ("words", "sense")}
        assert parts["words"] is not None
        assert parts["sense"] is not None
        of_words, of_sense = parts["words"].contribution or 0.0, parts["sense"].contribution or 0.0
        assert thrice[key].score == pytest.approx(3 * of_words + of_sense)
        assert one[key].score == pytest.approx(of_words + of_sense / 3)


def test_keywords_count_as_far_as_the_best_stands_above_the_tenth() -> None:
    assert share("words", words=Told(falling(20), 20, "keyword")) == pytest.approx(part(0.9))
    assert share("words", words=Told(falling(20, last=10.0), 20, "keyword")) == pytest.approx(LEAST)
    assert share("words", words=Told(falling(9, last=10.0), 9, "keyword")) == 1.0  # fewer than ten match at all


@pytest.mark.parametrize(("coverage", "known"), [(1.0, 1.0), (0.8, 1.0), (0.4, 0.25), (0.0, 0.0), (None, 1.0)])
def test_keywords_count_as_far_as_the_collection_knows_the_query(coverage: float | None, known: float) -> None:
    words = Told({"x": 8.0, "y": 6.0}, 2, "keyword", coverage)
    strays = Told({"z": 0.9, "y": 0.1, "x": 0.0}, 1)
    assert share("words", words=words) == pytest.approx(part(known))
    # what keywords do not know they cannot refute
    assert share("sense", words=words, sense=strays) == pytest.approx(3 * part(0.9) * part(1 - known))


def test_meaning_counts_as_far_as_keywords_confirm_its_ten_best() -> None:
    words = Told({**falling(20), "far": 0.0}, 20, "keyword")
    near = {f"w{at:02}": 0.9 - at / 100 for at in range(20)}
    agrees = Told({**near, "far": 0.0}, 21)
    elsewhere = {**{key: 0.5 - score / 10 for key, score in near.items()}, "far": 0.9, "w19": 0.0}
    strays = Told(elsewhere, 1)
    assert share("sense", words=words, sense=agrees) == pytest.approx(3 * part(0.9) * part(0.9**2))
    assert share("sense", words=words, sense=strays) == pytest.approx(3 * part(0.9) * LEAST)
    assert fuse(words=words, sense=strays).search("q").ids[0] == "w00"
    assert share("sense", sense=Told(elsewhere, 21)) == pytest.approx(3 * part(0.9))  # nobody is there to refute it
    one_of_two = share("sense", words=words, others=Told({"far": 3.0}, 1, "keyword"), sense=strays)
    assert one_of_two == pytest.approx(3 * part(0.9))


def test_cosines_that_are_all_high_count_as_those_that_use_the_whole_range() -> None:
    words = Told({"x": 8.0, "y": 6.0, "z": 2.0}, 3, "keyword")
    wide = {"z": 0.9, "x": 0.5, "y": 0.1}
    narrow = {key: 1 - 0.2 * (1 - score) for key, score in wide.items()}
    one, other = (fuse(words=words, sense=Told(given, 3)).search("q") for given in (wide, narrow))
    assert one.ids == other.ids
    differences = [
        [(hit.score or 0.0) - (ranking.hits[-1].score or 0.0) for hit in ranking] for ranking in (one, other)
    ]
    assert differences[0] == pytest.approx(differences[1])


def test_scores_at_0_and_below_keep_their_order() -> None:
    words = Told({"x": 0.0, "y": -1.0, "z": -3.0}, 3, "keyword")
    ranking = fuse(words=words).search("q")
    assert ranking.ids == ("x", "y", "z")
    assert all(math.isfinite(hit.score or 0.0) for hit in ranking)
    alone = fuse(words=Told({"x": 0.0}, 1, "keyword"), sense=Told({"y": 0.5}, 1)).search("q")
    assert set(alone.ids) == {"x", "y"}


def test_similarities_above_1_are_scaled_too() -> None:
    """Inner products of vectors that are not of length 1, as other stores give them."""
    ranking = fuse(words=Told({"x": 2.0}, 1, "keyword"), sense=Told({"y": 70.0, "x": 20.0}, 2)).search("q")
    votes = [vote.contribution or 0.0 for hit in ranking for vote in hit.votes]
    assert all(0 <= contribution <= 4 for contribution in votes)


def test_a_channel_that_cannot_score_others_hits_counts_its_last_and_says_so() -> None:
    class Blind(Told):
        def _scores(self, ids: Iterable[str]) -> None:
            return None

    words, sense = Told({"x": 8.0, "y": 6.0}, 2, "keyword"), Blind({"y": 0.9, "w": 0.3}, 2)
    ranking = fuse(words=words, sense=sense).search("q")
    votes = {hit.id: hit.vote("sense") for hit in ranking}
    assert votes["x"] is not None
    assert votes["w"] is not None
    assert votes["x"].contribution == votes["w"].contribution
    assert ["no exact scores of sense" in note.message for note in ranking.errors] == [True]
    assert not any(note.degrades for note in ranking.errors)


def test_a_channel_that_finds_nothing_changes_nothing() -> None:
    for silent in (ListChannel([]), ListChannel([], kind="keyword")):
        ranking = fuse(words=Told({"x": 8.0, "y": 6.0}, 2), silent=silent).search("q")
        assert ranking.ids == ("x", "y")
        assert ranking.errors == ()


def test_a_query_is_embedded_once() -> None:
    embedder = Counting(16)
    given = chunks(80)
    fuse(words=BM25.from_chunks(given), sense=VectorChannel.from_chunks(given, embedder)).search("pump valve")
    assert embedder.asked == ["pump valve"]


def test_documents_that_share_no_word_with_the_query_hardly_change_the_shares() -> None:
    own = chunks(60)
    others = [Chunk(f"n{at:03}", f"zork{at} blip{at} quux") for at in range(600)]
    shares = []
    for given in (own, [*own, *others]):
        words, query = BM25.from_chunks(given), Query("pump valve")
        pool = Pool({"words": words.search(query, 100)})
        found = {"words": pool.evidence("words", "keyword", None, words.coverage(query))}
        shares.append(AdaptiveSum().shares(found)["words"])
    assert shares[1] == pytest.approx(shares[0], abs=0.05)  # terms are rarer now, and lengths count otherwise


def test_chunks_that_are_not_permitted_weigh_nothing() -> None:
    given = [*chunks(300), Chunk("secret", "xyzzy pump", metadata={"open": False})]
    permitted = [chunk for chunk in given if chunk.metadata["open"]]
    for text in ("pump valve", "xyzzy pump"):
        within, alone = (
            fuse(words=BM25.from_chunks(some), sense=VectorChannel.from_chunks(some, EMBEDDER)).search(query)
            for some, query in ((given, Query(text, require={"open": True})), (permitted, Query(text)))
        )
        assert [(hit.id, hit.score, hit.votes) for hit in within] == [(hit.id, hit.score, hit.votes) for hit in alone]


def test_coverage_is_the_share_of_the_querys_terms_that_some_chunk_has() -> None:
    given = [replace(chunk, metadata={**chunk.metadata, "title": "zoom"}) for chunk in chunks(120)]
    for channel in (BM25.from_chunks(given), BM25F.from_chunks(given)):
        assert channel.coverage(Query("pump valve")) == 1.0
        assert channel.coverage(Query("pump xyzzy")) == 0.5
        assert channel.coverage(Query("xyzzy")) == 0.0
        assert channel.coverage(Query("the of")) is None
        assert channel.coverage(Query("")) is None
    grown = BM25.from_chunks(given[:10])
    for start in range(10, 120, 10):
        grown.add(given[start : start + 10])
    grown.add([Chunk("x", "xyzzy")])
    assert grown.coverage(Query("pump xyzzy")) == 1.0
    grown.delete("x")
    assert grown.coverage(Query("pump xyzzy")) == 0.5
    assert VectorChannel.from_chunks(given, EMBEDDER).coverage(Query("pump")) is None


def test_an_index_without_chunks_has_nothing_to_say() -> None:
    empty = BM25(LexicalIndex([]))
    assert empty.coverage(Query("pump")) in (0.0, None)
    assert fuse(words=empty, sense=VectorChannel.from_chunks([], EMBEDDER)).search("pump").hits == ()


def test_a_pipeline_as_a_channel_tells_under_its_own_filters() -> None:
    given = chunks(120)
    words, sense = BM25.from_chunks(given), VectorChannel.from_chunks(given, EMBEDDER)
    narrowed = fuse(
        words=Pipeline(words).narrowed(None, {"open": True}), sense=Pipeline(sense).narrowed(None, {"open": True})
    ).search("pump valve")
    directly = fuse(words=words, sense=sense).search(Query("pump valve", require={"open": True}))
    assert [(hit.id, hit.score) for hit in narrowed] == [(hit.id, hit.score) for hit in directly]
    assert narrowed.errors == ()


def test_a_query_in_another_language_than_the_chunks_goes_by_meaning() -> None:
    """What words it shares with them, as names, neither decide nor refute."""
    words = Told({"name": 9.0, "other": 3.0}, 2, "keyword", coverage=0.2)
    sense = Told({"answer": 0.6, "second": 0.4, "name": 0.1, "other": 0.05}, 2)
    assert fuse(words=words, sense=sense).search("q").ids[0] == "answer"
    words.covered = 1.0
    assert fuse(words=words, sense=sense).search("q").ids[0] == "name"
