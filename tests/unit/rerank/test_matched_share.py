"""Whether anything relevant was found, by the share of a question that the best hit matches."""

from __future__ import annotations

import math

import pytest

from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers import BM25, Chunk, Pipeline, Query, VectorChannel, fuse
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank import MATCHED, MatchedShare, Threshold

PAGES = [
    Chunk("seal", "Die Dichtung der Pumpe wird jährlich gewechselt."),
    Chunk("oil", "Das Öl der Turbine kühlt die Lager."),
    Chunk("door", "Die Tür der Halle ist rot."),
]


def shares(question: str, words: BM25, below: BM25 | None = None) -> dict[str, float]:
    found = ((below or words) >> MatchedShare(words)).search(question)
    return {hit.id: vote.score for hit in found if (vote := hit.vote("matched")) is not None and vote.score is not None}


def test_the_share_is_the_score_by_the_highest_there_could_be() -> None:
    chunks = [Chunk("a", "x " * 500), Chunk("b", "x y"), Chunk("c", "z")]
    words = BM25.from_chunks(chunks, str.split)
    scan = words.scan(Query("x y"))
    idf = [math.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (2, 1)]
    assert scan.highest == pytest.approx(sum(idf))
    found = shares("x y", words)
    hits = {hit.id: hit.score for hit in words.search("x y")}
    assert found == pytest.approx({one: (score or 0.0) / sum(idf) for one, score in hits.items()})
    assert all(0 < share < 1 for share in found.values())


def test_the_order_stays_and_each_hit_has_a_vote_more() -> None:
    words, near = BM25.from_chunks(PAGES), VectorChannel.from_chunks(PAGES, HashEmbedder())
    hybrid = fuse(words=words, near=near)
    plain, voted = hybrid.search("Dichtung der Pumpe"), (hybrid >> MatchedShare(words)).search("Dichtung der Pumpe")
    assert [(hit.id, hit.score) for hit in voted] == [(hit.id, hit.score) for hit in plain]
    assert [hit.votes[:-1] for hit in voted] == [hit.votes for hit in plain]
    ranks = {hit.id: vote.rank for hit in voted if (vote := hit.vote("matched")) is not None}
    assert (ranks["seal"], sorted(ranks.values())) == (1, list(range(1, len(ranks) + 1)))
    assert voted.errors == plain.errors


def test_a_threshold_on_it_says_where_nothing_was_found() -> None:
    words = BM25.from_chunks(PAGES)
    careful = Pipeline(words >> MatchedShare(words), confidence=Threshold(MATCHED, least=0.27, stage="matched"))
    assert careful.search("Wann wird die Dichtung der Pumpe gewechselt?").confidence == "ok"
    assert careful.search("Welche Farbe hat die Dichtung der Turbine?").confidence == "none"


def test_of_a_question_in_another_language_it_says_nothing() -> None:
    words = BM25.from_chunks(PAGES)
    stage = MatchedShare(words)
    given = ListChannel([("seal", 1.0)]).search("q")
    found = stage.refine(Query("when is the seal of the turbine replaced"), given)
    assert [(hit.id, hit.vote("matched")) for hit in found] == [("seal", None)]
    assert [(note.kind, note.degrades) for note in found.errors] == [("OtherWords", False)]
    assert Threshold(MATCHED, 0.99, "matched")(found) == "ok"
    assert stage.refine(Query("?!"), given).hits == given.hits


def test_what_rights_do_not_permit_has_no_share() -> None:
    chunks = [Chunk("a", "pump seal", metadata={"of": 1}), Chunk("b", "pump seal", metadata={"of": 2})]
    words = BM25.from_chunks(chunks)
    found = MatchedShare(words).refine(Query("pump seal", require={"of": 1}), words.search("pump seal"))
    votes = {hit.id: vote.score for hit in found if (vote := hit.vote("matched")) is not None}
    assert votes["b"] == 0.0 < (votes["a"] or 0.0)


def test_it_needs_a_channel_that_says_how_high_a_score_can_be() -> None:
    near = VectorChannel.from_chunks(PAGES, HashEmbedder())
    with pytest.raises(ConfigError, match="BM25 channel"):
        MatchedShare(near).refine(Query("pump"), ListChannel([("a", 1.0)]).search("q"))
    assert "matched" in repr(MatchedShare(near))
