"""What is made of stages, and hits in somebody else's order."""

from __future__ import annotations

import math

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.stages import StageWrapper, TopN, id_at, place_id, place_of
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, in_order
from voicevault_retrievers.errors import ConfigError, InvalidScoreError

CHANNEL = ListChannel([("a", 4.0), ("b", 3.0), ("c", 2.0), ("d", 1.0)])


class Drops(Stage):
    """Drops the first."""

    name = "drops"
    blocking = True

    def needs(self, k: int) -> int:
        return k + 1

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return Ranking(ranking.hits[1:])


async def test_the_first_of_a_stages_hits_are_kept() -> None:
    channel = CHANNEL >> TopN(Drops(), 2)
    assert channel.search("q", 3).ids == (await channel.asearch("q", 3)).ids == ("b", "c")
    assert channel.search("q", 1).ids == ("b",)
    assert [TopN(Drops(), 2).needs(k) for k in (1, 5)] == [2, 3]
    assert TopN(Drops(), 2).blocking
    with pytest.raises(ConfigError, match="top_n"):
        TopN(Drops(), 0)


async def test_a_stage_with_nothing_around_it_is_as_it_was() -> None:
    stage = Drops()
    around = StageWrapper(stage)
    assert (CHANNEL >> around).search("q", 3) == (CHANNEL >> stage).search("q", 3)
    assert await (CHANNEL >> around).asearch("q", 3) == (CHANNEL >> stage).search("q", 3)
    assert (around.name, around.blocking, around.refills, repr(around)) == ("drops", True, True, repr(stage))
    assert around.refine(Query("q"), Ranking()) == Ranking()


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([0.5, 0.4], True), ([0.5, None], True), ([None, None], True), ([0.4, 0.5], False), ([None, 0.5], False),
        ([0.5, None, 0.4], False),
    ],
)  # fmt: skip
def test_scores_stay_where_they_fall(scores: list[float | None], kept: bool) -> None:
    hits = tuple(Hit(Chunk(name), score) for name, score in zip("abc", scores, strict=False))
    assert Ranking(in_order(iter(hits))).ids == tuple(hit.id for hit in hits)
    assert [hit.score for hit in in_order(hits)] == (scores if kept else [None] * len(scores))


def test_equal_scores_stay_where_ids_rise_and_what_is_no_number_is_refused() -> None:
    assert in_order([Hit(Chunk("b"), 0.5), Hit(Chunk("a"), 0.5)])[0].score is None
    for bad in (math.nan, math.inf):
        with pytest.raises(InvalidScoreError):
            in_order([Hit(Chunk("a"), bad)])


def test_a_place_and_an_id_are_had_again() -> None:
    places = [place_id(at, own) for at, own in enumerate(["b", "a:1", None, "a"])]
    assert places == sorted(places)
    assert [(place_of(place), id_at(place)) for place in places] == [(0, "b"), (1, "a:1"), (2, ""), (3, "a")]
