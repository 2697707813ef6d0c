"""The default fusion: scores by their deviation over what matches, and channels by how far others confirm them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import Counting, HashEmbedder, KnowingChannel, ListChannel
from voicevault_retrievers.alike import Alike
from voicevault_retrievers.dense import ExactVectors, VectorChannel, VectorPart
from voicevault_retrievers.fusion import DistributionBased, Evidence, Standardised, fuse
from voicevault_retrievers.fusion.trust import confirmed, trust
from voicevault_retrievers.lexical import BM25, BM25F
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.lexical.matching import LEAST, spread_of
from voicevault_retrievers.pipeline import Pipeline
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.types import ChannelKind, Chunk, Query, Spread

EMBEDDER = HashEmbedder(16)
WORDS = "pump valve seal motor shaft bolt gauge hose filter drain relay fuse wire lamp switch".split()


def chunks(count: int, seed: int = 0) -> list[Chunk]:
    rng = np.random.default_rng(seed)
    return [
        Chunk(f"c{at:03}", " ".join(rng.choice(WORDS, size=rng.integers(3, 12))), metadata={"open": bool(at % 2)})
        for at in range(count)
    ]


class Told(KnowingChannel):
    """The best of a list, the exact scores of all chunks, and their spread."""

    def __init__(
        self, scores: Mapping[str, float], depth: int, sd: float | None, kind: ChannelKind = "semantic"
    ) -> None:
        super().__init__(sorted(scores.items(), key=lambda entry: -entry[1])[:depth], scores, sd=sd, kind=kind)


def test_a_hit_adds_its_exact_score_by_its_channels_deviation_whether_it_was_listed_or_not() -> None:
    words = Told({"x": 8.0, "y": 6.0, "z": 1.0}, 2, 2.0, "keyword")
    sense = Told({"z": 0.9, "x": 0.5, "y": 0.1}, 1, 0.1)
    hits = {hit.id: hit for hit in fuse(words=words, sense=sense, method=Standardised(trust=False)).search("q")}
    words_share, sense_share = 1.0 / 1.1, 1.2 / 1.1
    assert hits["x"].score == pytest.approx(words_share * 8.0 / 2.0 + sense_share * 0.5 / 0.1)
    assert hits["z"].score == pytest.approx(words_share * 1.0 / 2.0 + sense_share * 0.9 / 0.1)
    assert hits["x"].found_by == "keyword"  # the other channel did not find it, and says what it thinks of it
    vote = hits["x"].vote("sense")
    assert vote is not None
    assert (vote.rank, vote.score) == (None, 0.5)
    assert hits["x"].score == math.fsum(vote.contribution or 0.0 for vote in hits["x"].votes)


def test_weights_multiply_and_the_share_of_meaning_is_an_option() -> None:
    words = Told({"x": 8.0, "y": 6.0}, 2, 2.0, "keyword")
    sense = Told({"y": 0.9, "x": 0.5}, 2, 0.1)
    ranking = fuse(words=words, sense=sense, weights={"words": 3.0}, method=Standardised(semantic=1)).search("q")
    assert {hit.id: hit.score for hit in ranking} == {
        "x": pytest.approx(3 * 8.0 / 2.0 + 0.5 / 0.1),
        "y": pytest.approx(3 * 6.0 / 2.0 + 0.9 / 0.1),
    }


def test_without_a_deviation_all_go_by_their_lists_and_the_result_says_so() -> None:
    known = Told({"x": 8.0, "y": 6.0}, 2, 2.0)
    for other in (Told({"y": 0.9}, 1, None), Told({"y": 0.9}, 1, 0.0), ListChannel([("y", 0.9)])):
        ranking = fuse(known=known, other=other).search("q")
        expected = fuse(known=known, other=other, method=DistributionBased()).search("q")
        assert [(hit.id, hit.score) for hit in ranking] == [(hit.id, hit.score) for hit in expected]
        (note,) = ranking.errors
        assert not note.degrades
        assert "no deviation of other is known" in note.message


def test_a_channel_that_cannot_score_others_hits_counts_its_last_and_says_so() -> None:
    class Blind(Told):
        def scores(self, query: Query, ids: Iterable[str]) -> None:  # type: ignore[override]
            return None

    words, sense = Told({"x": 8.0, "y": 6.0}, 2, 2.0), Blind({"y": 0.9, "w": 0.3}, 2, 0.1)
    ranking = fuse(words=words, sense=sense, method=Standardised(semantic=1, trust=False)).search("q")
    assert {hit.id: hit.score for hit in ranking}["x"] == pytest.approx(8.0 / 2.0 + 0.3 / 0.1)
    assert ["no exact scores of sense" in note.message for note in ranking.errors] == [True]


def test_a_channel_that_finds_nothing_changes_nothing() -> None:
    words, silent = Told({"x": 8.0, "y": 6.0}, 2, 2.0), ListChannel([])
    ranking = fuse(words=words, silent=silent).search("q")
    assert ranking.ids == ("x", "y")
    assert ranking.errors == ()


def test_documents_that_share_no_word_with_the_query_do_not_change_how_channels_are_weighed() -> None:
    own = chunks(60)
    others = [Chunk(f"n{at:03}", f"zork{at} blip{at} quux") for at in range(600)]

    def deviations(given: Sequence[Chunk]) -> tuple[float, float]:
        words, sense = BM25.from_chunks(given), VectorChannel.from_chunks(given, EMBEDDER)
        query = Query("pump valve")
        spread, other = words.spread(query), sense.spread(query, words.sample(query))
        assert spread is not None
        assert other is not None
        return spread.sd / (words.search(query, 1).hits[0].score or 0.0), other.sd

    (words, sense), (more_words, more_sense) = deviations(own), deviations([*own, *others])
    assert more_sense == sense
    assert more_words == pytest.approx(words, rel=0.1)  # terms are rarer now, and lengths count otherwise


@pytest.mark.parametrize("seed", range(5))
def test_spread_and_sample_are_those_of_the_live_chunks_however_they_came(seed: int) -> None:
    rng = np.random.default_rng(seed)
    every, query = chunks(400, seed), Query("pump valve seal gauge", require={"open": True} if seed % 2 else None)
    fresh = BM25.from_chunks(every[:300])
    grown = BM25.from_chunks(every[:100])
    for start in range(100, 400, 50):
        grown.add(every[start : start + 50])
    grown.delete([chunk.id for chunk in rng.permutation(np.array(every[300:], dtype=object))])
    assert len(grown.index.segments) > 1
    assert grown.spread(query) == fresh.spread(query)
    assert grown.sample(query) == fresh.sample(query)
    assert grown.index.drawn(50) == fresh.index.drawn(50)


def test_the_spread_is_that_of_all_scores_of_what_matches() -> None:
    given = chunks(200)
    channel, query = BM25.from_chunks(given), Query("pump valve seal")
    scores = np.array([hit.score for hit in channel.search(query, 1000)])
    spread = channel.spread(query)
    assert spread is not None
    assert (spread.mean, spread.sd) == (pytest.approx(scores.mean(), rel=1e-4), pytest.approx(scores.std(), rel=1e-3))
    assert spread.n == len(scores)
    assert set(channel.sample(query) or ()) <= {hit.id for hit in channel.search(query, 1000)}
    assert channel.spread(Query("pump valve seal", where={"open": True})) == spread
    assert channel.spread(Query("xyzzy")) is None


def test_the_deviation_is_a_tenth_of_the_highest_score_at_least() -> None:
    one, alike = spread_of(np.array([5.0])), spread_of(np.array([5.0, 5.0, 5.0]))
    assert one == Spread(5.0, LEAST * 5.0, 1)
    assert alike == Spread(5.0, LEAST * 5.0, 3)
    assert spread_of(np.empty(0)) is None


def test_the_spread_of_cosines_is_that_of_all_of_few_chunks() -> None:
    given = chunks(100)
    rows = Rows.of(given)
    matrix = EMBEDDER.embed_documents([chunk.text for chunk in rows.chunks])
    channel = VectorChannel(ExactVectors([VectorPart(rows, matrix)], 16), EMBEDDER)
    cosines = matrix.astype(np.float64) @ EMBEDDER.embed_queries(["pump"])[0].astype(np.float64)
    spread, few = channel.spread(Query("pump")), channel.spread(Query("pump"), ["c001", "c002", "c050"])
    assert spread is not None
    assert few is not None
    assert (spread.mean, spread.sd, spread.n) == (pytest.approx(cosines.mean()), pytest.approx(cosines.std()), 100)
    assert few.sd == pytest.approx(cosines[[1, 2, 50]].std())


def test_a_query_is_embedded_once() -> None:
    embedder = Counting(16)
    given = chunks(80)
    fuse(words=BM25.from_chunks(given), sense=VectorChannel.from_chunks(given, embedder)).search("pump valve")
    assert embedder.asked == ["pump valve"]


def _alike(scores: np.ndarray, found: np.ndarray | None = None) -> Alike:  # type: ignore[type-arg]
    ids = tuple(f"c{at:02}" for at in range(len(scores)))
    return Alike(ids, scores, np.ones(scores.shape, dtype=bool) if found is None else found)


def test_a_channel_whose_neighbours_nobody_confirms_is_trusted_less() -> None:
    rng = np.random.default_rng(0)
    topics = np.repeat(np.arange(8), 8)
    related = (topics[:, None] == topics).astype(float)
    words, sense = _alike(related + 0.1 * rng.random((64, 64))), _alike(related + 0.1 * rng.random((64, 64)))
    noise = _alike(rng.random((64, 64)))
    good, bad = trust({"words": words, "sense": sense}, words.ids), trust({"words": words, "sense": noise}, words.ids)
    assert min(good.values()) > 0.9
    assert bad["sense"] < 0.7
    several = trust({"a": words, "b": sense, "noise": noise}, words.ids)
    assert several["noise"] < several["a"]


def test_trust_is_whole_where_it_cannot_be_said() -> None:
    rng = np.random.default_rng(0)
    few, many = _alike(rng.random((10, 10))), _alike(rng.random((64, 64)))
    assert trust({"a": few, "b": few}, few.ids) == {"a": 1.0, "b": 1.0}
    assert trust({"a": many}, many.ids) == {"a": 1.0}
    assert trust({"a": many, "b": _alike(rng.random((64, 64)), np.eye(64, dtype=bool))}, many.ids) == {
        "a": 1.0,
        "b": 1.0,
    }
    assert trust({}, ()) == {}


def test_trust_is_asked_of_what_has_to_do_with_the_query() -> None:
    """Half of the chunks are of another language, in which one channel is lost; the others say nothing of it."""
    rng = np.random.default_rng(0)
    topics = np.repeat(np.arange(16), 8)
    related = (topics[:, None] == topics).astype(float)
    known = np.arange(128) < 64
    same = known[:, None] == known
    words = _alike(np.where(same, related + 0.1 * rng.random((128, 128)), 0.0), same)
    sense = _alike(np.where(known[:, None], related, 0.0) + 0.1 * rng.random((128, 128)))
    spoken, foreign = (trust({"words": words, "sense": sense}, [words.ids[at]]) for at in (0, 127))
    assert spoken["sense"] > 0.9
    assert foreign["sense"] < 0.7
    assert trust({"words": words, "sense": sense}, []) == {"words": 1.0, "sense": 1.0}


def test_two_bases_sample_the_same_chunks_by_words_and_by_vectors() -> None:
    given = chunks(400)
    words, sense = BM25.from_chunks(given), VectorChannel.from_chunks(given, EMBEDDER)
    for query in (Query("q"), Query("q", require={"open": True})):
        one, other = words.alike(query), sense.alike(query)
        assert one is not None
        assert other is not None
        assert one.ids == other.ids
        assert words.alike(query) is one  # kept: it is looked at for every query
        assert sense.alike(query) is other
        assert len(one.ids) == (256 if query.require is None else 200)


def test_peers_are_of_the_languages_of_what_matches() -> None:
    """However many of another language there are, channels are compared by the same chunks."""
    german = [
        Chunk(f"g{n}", f"Die Pumpe ist mit dem Ventil {n} und der Dichtung auf der Halle verbunden") for n in range(60)
    ]
    english = [Chunk(f"e{n}", f"The lamp is at the door {n} and on the wall of the hall") for n in range(600)]
    query = Query("Dichtung")
    alone, among = BM25.from_chunks(german), BM25.from_chunks([*english, *german])
    assert set(among.peers(query)) == {chunk.id for chunk in german}
    assert among.peers(query) == alone.peers(query)
    assert len(among.peers(Query("zeppelin"))) == 256
    sense = VectorChannel.from_chunks([*english, *german], EMBEDDER)
    for channel in (among, sense):
        found = channel.alike(query, among.peers(query))
        assert found is not None
        assert found.ids == alone.peers(query)
    assert set(among.peers(replace(query, require={"open": True}))) == set()


def test_chunks_that_are_not_permitted_weigh_nothing() -> None:
    given = chunks(300)
    permitted = [chunk for chunk in given if chunk.metadata["open"]]
    query, bare = Query("pump valve", require={"open": True}), Query("pump valve")
    for method in (Standardised(), Standardised(trust=False)):
        within = fuse(
            words=BM25.from_chunks(given), sense=VectorChannel.from_chunks(given, EMBEDDER), method=method
        ).search(query)
        alone = fuse(
            words=BM25.from_chunks(permitted), sense=VectorChannel.from_chunks(permitted, EMBEDDER), method=method
        ).search(bare)
        assert [(hit.id, hit.score, hit.votes) for hit in within] == [(hit.id, hit.score, hit.votes) for hit in alone]


def test_an_index_without_chunks_has_nothing_to_say() -> None:
    empty = BM25(LexicalIndex([]))
    assert empty.spread(Query("pump")) is None
    assert not empty.sample(Query("pump"))
    assert VectorChannel.from_chunks([], EMBEDDER).spread(Query("pump")) is None
    assert fuse(words=empty, sense=VectorChannel.from_chunks([], EMBEDDER)).search("pump").hits == ()


def test_fields_tell_of_all_that_match_too() -> None:
    given = [replace(chunk, metadata={"title": "pump", "open": at % 2 == 0}) for at, chunk in enumerate(chunks(120))]
    fields, query = BM25F.from_chunks(given), Query("valve seal")
    scores = np.array([hit.score for hit in fields.search(query, 1000)])
    spread = fields.spread(query)
    assert spread is not None
    assert (spread.sd, spread.n) == (pytest.approx(scores.std(), rel=1e-3), len(scores))
    assert set(fields.sample(query) or ()) == {hit.id for hit in fields.search(query, 1000)}
    assert fields.spread(Query("xyzzy")) is None
    ranking = fuse(words=fields, sense=VectorChannel.from_chunks(given, EMBEDDER)).search(query)
    assert ranking.errors == ()


def test_a_pipeline_as_a_channel_tells_under_its_own_filters() -> None:
    given = chunks(120)
    words, sense = BM25.from_chunks(given), VectorChannel.from_chunks(given, EMBEDDER)
    narrowed = fuse(
        words=Pipeline(words).narrowed(None, {"open": True}), sense=Pipeline(sense).narrowed(None, {"open": True})
    ).search("pump valve")
    directly = fuse(words=words, sense=sense).search(Query("pump valve", require={"open": True}))
    assert [(hit.id, hit.score) for hit in narrowed] == [(hit.id, hit.score) for hit in directly]
    assert narrowed.errors == ()


def test_a_channel_whose_best_hits_nobody_confirms_counts_less_for_this_query() -> None:
    words = Told({"x": 10.0, "y": 5.0, "z": 0.0}, 2, 1.0, "keyword")
    agrees, strays = Told({"x": 0.9, "y": 0.2, "z": 0.1}, 2, 0.1), Told({"z": 0.9, "y": 0.2, "x": 0.1}, 1, 0.1)
    evidence = {
        name: Evidence(one.search("q"), one.kind, one.known, Spread(0.0, one.sd or 0.0, 100))
        for name, one in (("words", words), ("agrees", agrees), ("strays", strays))
    }
    assert confirmed({name: evidence[name] for name in ("words", "agrees")}) == {"words": 1.0, "agrees": 1.0}
    assert confirmed({name: evidence[name] for name in ("words", "strays")}) == {
        "words": 0.2 / 0.9,  # the best that z's channel thinks of x and y
        "strays": 0.0,  # z has no word of the query
    }
    assert confirmed({"words": evidence["words"]}) == {"words": 1.0}
    assert fuse(words=words, sense=strays).search("q").ids[0] == "x"
