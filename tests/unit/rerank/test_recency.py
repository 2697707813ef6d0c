"""Reranking by age: the sum, the scale of the scores, and dates of every form."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ListChannel
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank, RecencyRerank

NOW = datetime(2024, 7, 1, tzinfo=timezone.utc)


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def found_by(*entries: tuple[str, float | None, Any]) -> Channel:
    return ListChannel(
        [(chunk_id, score) for chunk_id, score, _ in entries], metadata={key: {"date": day} for key, _, day in entries}
    )


def scores(channel: Channel, query: str | Query = "q", **options: Any) -> dict[str, float | None]:
    stage = RecencyRerank(**{"reference_date": NOW, **options})
    return {hit.id: hit.score for hit in (channel >> stage).search(query)}


def test_the_formula() -> None:
    channel = found_by(("a", 9.0, ago(60)), ("b", 5.0, ago(0)), ("c", 1.0, ago(15)))
    assert scores(channel) == {"a": 1 + 0.1 * 0.25, "b": 0.5 + 0.1, "c": 0.1 * 0.5**0.5}
    assert scores(channel, weight=0.8, half_life_days=60) == {"a": 1.4, "b": 0.5 + 0.8, "c": 0.8 * 0.5**0.25}
    found = (channel >> RecencyRerank(0.8, 60, reference_date=NOW)).search("q")
    assert found.ids == ("a", "b", "c")
    vote = found.hits[1].vote("recency")
    assert vote is not None
    assert vote.parts == (Vote("scaled", 2, 5.0, 1.0, 0.5), Vote("recency", 1, 1.0, 0.8, 0.8))


def test_what_is_new_rises() -> None:
    assert list(scores(found_by(("a", 2.0, ago(900)), ("b", 1.9, ago(1)), ("c", 0.1, None)))) == ["b", "a", "c"]


def test_one_score_or_equal_ones_are_scaled_to_one() -> None:
    assert scores(found_by(("a", -7.0, None))) == {"a": 1.0}
    assert scores(found_by(("a", 3.0, None), ("b", 3.0, ago(30)))) == {"b": 1 + 0.1 * 0.5, "a": 1.0}
    assert scores(ListChannel([])) == {}


def test_ranks_stand_in_where_no_hit_has_a_score() -> None:
    channel = found_by(("c", None, None), ("b", None, ago(0)), ("a", None, None))
    assert scores(channel) == {"c": 1.0, "b": (1 / 2 - 1 / 3) / (1 - 1 / 3) + 0.1, "a": 0.0}


def test_hits_below_a_rerankers_depth_and_beyond_this_ones_follow_unscored() -> None:
    channel = found_by(("a", 3.0, None), ("b", 2.0, ago(0)), ("c", 1.0, ago(0)))
    model = CallableScorer(lambda query, passages: [float(len(passage)) for passage in passages], name="length")
    assert scores(channel >> CrossEncoderRerank(model, depth=2, blend=1)) == {"b": 1.1, "a": 1.0, "c": None}
    assert scores(channel, depth=1) == {"a": 1.0, "b": None, "c": None}
    assert (RecencyRerank(depth=5).needs(2), RecencyRerank(depth=5).needs(9)) == (5, 9)


@pytest.mark.parametrize(
    ("given_date", "days"),
    [
        (ago(30), 30),
        (ago(30).replace(tzinfo=None), 30),
        (ago(30).astimezone(timezone(timedelta(hours=-9))), 30),
        (date(2024, 6, 1), 30),
        ("2024-06-01", 30),
        ("20240601", 30),
        (" 2024-06-01T00:00Z ", 30),
        ("2024-06-01t00:00:00z", 30),
        ("2024-06-01 02:00:00+02:00", 30),
        ("2024-05-31T18:30:00.000-0530", 30),
        ("2024-06-01T06:00:00.1234567", 29.75 - 0.123456 / 86400),
        ("20240601T120000Z", 29.5),
        ("2024-06-01T12", 29.5),
        (ago(30).timestamp(), 30),
        (int(ago(30).timestamp()), 30),
        (np.int64(ago(30).timestamp()), 30),
        (0, (NOW - datetime(1970, 1, 1, tzinfo=timezone.utc)).days),
        (ago(-3), 0),
        ("2999-01-01", 0),
        (datetime.max, 0),
    ],
)
def test_dates_of_every_form(given_date: Any, days: float) -> None:
    found = (found_by(("a", 1.0, given_date)) >> RecencyRerank(reference_date=NOW)).search("q")
    assert found.hits[0].score == pytest.approx(1 + 0.1 * 0.5 ** (days / 30), abs=1e-12)
    assert found.errors == ()


@pytest.mark.parametrize("missing", [None, "", math.nan])
def test_no_date_adds_nothing(missing: Any) -> None:
    found = (found_by(("a", 1.0, missing), ("b", 0.0, NOW)) >> RecencyRerank(reference_date=NOW)).search("q")
    assert ({hit.id: hit.score for hit in found}, found.errors) == ({"a": 1.0, "b": 0.1}, ())


def test_where_no_hit_has_a_date_a_note_says_so() -> None:
    stage = RecencyRerank(date_key=("date", "day"), reference_date=NOW)
    (note,) = (found_by(("a", 1.0, None), ("b", 0.5, "")) >> stage).search("q").errors
    assert (note.kind, note.degrades) == ("NoDates", False)
    assert note.message == "no hit has a 'date' or 'day': the order is that of the scores"
    assert (found_by() >> stage).search("q").errors == ()


class Missing:
    """As pandas' NA: what it compares to is neither true nor false."""

    def __ne__(self, other: object) -> Any:
        return self

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


UNREADABLE = [
    "soon", "2024-13-01", "2024-0601", "2024-06-01T25:00", "2024-06-01+99:00T", "2024-06-01T10:30.5", "٢٠٢٤-06-01",
    True, ["2024-06-01"], 1e300, 10**400, math.inf, Missing(),
]  # fmt: skip


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=lambda value: str(value)[:20])
def test_a_date_that_cannot_be_read_adds_nothing_and_is_noted(unreadable: Any) -> None:
    channel = found_by(("a", 3.0, unreadable), ("b", 2.0, ago(0)), ("c", 1.0, unreadable))
    found = (channel >> RecencyRerank(reference_date=NOW)).search("q")
    assert {hit.id: hit.score for hit in found} == {"a": 1.0, "b": 0.5 + 0.1, "c": 0.0}
    (note,) = found.errors
    assert (note.stage, note.kind, note.degrades) == ("recency", "UnreadableDate", False)
    assert note.message.startswith("2 hits have a 'date' that is no date")


def test_the_age_is_counted_from_the_query_then_the_stage_then_now() -> None:
    channel = found_by(("a", 1.0, date(2024, 1, 1)))
    query = Query("q", reference_date=datetime(2024, 1, 31))
    assert scores(channel, query) == {"a": 1 + 0.1 * 0.5}
    assert scores(channel, reference_date="2024-01-01") == {"a": 1.1}
    assert scores(channel, reference_date=date(2024, 3, 1)) == {"a": 1 + 0.1 * 0.25}
    assert scores(channel, reference_date=None, clock=lambda: datetime(2024, 1, 31)) == {"a": 1 + 0.1 * 0.5}
    assert RecencyRerank().clock().utcoffset() == timedelta(0)


def test_another_key_holds_the_date() -> None:
    channel = ListChannel([("a", 1.0)], metadata={"a": {"published": NOW, "date": ago(999)}})
    assert scores(channel, date_key="published") == {"a": 1.1}


@given(
    st.lists(
        st.tuples(st.none() | st.floats(-1e9, 1e9), st.none() | st.datetimes() | st.text(max_size=12)), max_size=6
    ),
    st.floats(0, 5),
)
def test_the_parts_add_up_to_the_score_exactly(entries: list[tuple[float | None, Any]], weight: float) -> None:
    hits = [
        Hit(Chunk(f"{at:03d}", metadata={"date": day}), score)
        for at, (score, day) in enumerate(sorted(entries, key=lambda e: -math.inf if e[0] is None else -e[0]))
    ]
    scored = sorted((h for h in hits if h.score is not None), key=lambda h: (-(h.score or 0.0), h.chunk.id))
    before = Ranking((*scored, *(h for h in hits if h.score is None)))
    after = RecencyRerank(weight, reference_date=NOW).refine(Query("q"), before)
    assert sorted(after.ids) == sorted(before.ids)
    for hit in after:
        vote = hit.vote("recency")
        assert (vote is None) == (hit.score is None)
        if vote is not None:
            assert vote.score == hit.score == math.fsum(part.contribution or 0.0 for part in vote.parts)


@pytest.mark.parametrize(
    "options",
    [{"weight": -1}, {"half_life_days": 0}, {"half_life_days": -3}, {"reference_date": "soon"}, {"depth": 0}],
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RecencyRerank(**options)
