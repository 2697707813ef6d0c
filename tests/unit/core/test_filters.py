"""The portable filter, operator by operator."""

from __future__ import annotations

import math
from collections import UserList
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from itertools import product
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from voicevault_retrievers.core.filters import (
    Condition,
    Every,
    Not,
    Some,
    both,
    canonical,
    compile_filter,
    parse,
    says_nothing,
    scope,
)
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25

META: dict[str, Any] = {
    "file": "a.pdf", "page": 3, "ratio": 0.5, "done": True, "tags": ["x", "y", 2], "none": None, "void": [],
    "blank": "",
}  # fmt: skip

TRUE = [
    {}, {"file": "a.pdf"}, {"file": "a.pdf", "page": 3}, {"page": 3.0}, {"page": {"$gte": 3, "$lt": 4}},
    {"ratio": {"$gt": 0}}, {"file": {"$gte": "a"}}, {"done": True}, {"tags": "x"}, {"tags": {"$in": ["z", "y"]}},
    {"tags": {"$nin": ["z"]}}, {"tags": {"$contains": 2}}, {"tags": {"$all": ["x", "y"]}},
    {"tags": {"$any": ["q", "x"]}}, {"file": {"$contains": ".pdf"}}, {"file": {"$text": "a.p"}},
    {"file": {"$itext": "A.PDF"}}, {"file": {"$in": ["a.pdf"]}}, {"file": {"$nin": ["b.pdf", 3]}},
    {"file": {"$nin": []}}, {"file": {"$ne": "b.pdf"}}, {"none": {"$exists": False}}, {"missing": {"$exists": False}},
    {"page": {"$exists": True}}, {"void": {"$empty": True}}, {"blank": {"$empty": True}}, {"file": {"$empty": False}},
    {"$or": [{"file": "b.pdf"}, {"page": 3}]}, {"$and": [{"file": "a.pdf"}, {"$not": {"page": 4}}]},
    {"$not": {"missing": "x"}}, {"page": {"$not": {"$gt": 5}}}, {"missing": {"$not": {"$eq": 1}}},
]  # fmt: skip
FALSE = [
    {"file": "A.pdf"}, {"page": "3"}, {"page": True}, {"done": 1}, {"done": {"$gt": 0}}, {"page": {"$ne": "3"}},
    {"missing": {"$ne": 1}}, {"none": {"$ne": 1}}, {"none": {"$exists": True}}, {"missing": {"$nin": [1]}},
    {"file": {"$nin": [1]}}, {"missing": {"$empty": True}}, {"tags": {"$gt": 1}}, {"tags": {"$all": ["x", "z"]}},
    {"page": {"$contains": 3}}, {"page": {"$text": "3"}}, {"file": {"$any": ["a.pdf"]}}, {"$or": []},
    {"$or": [{"file": "b.pdf"}]}, {"file": "a.pdf", "page": 4},
]  # fmt: skip
BAD: list[tuple[Any, str]] = [
    ("file", "a filter is a mapping"),
    ({"$xor": []}, "unknown filter operator"),
    ({"page": {"$gtee": 3}}, r"Did you mean '\$gte'"),
    ({"$or": {"a": 1}}, "takes a list of filters"),
    ({"page": {"$in": "abc"}}, "takes a list"),
    ({"page": {"$exists": 1}}, "true or false"),
    ([], "a filter is a mapping"),
    ("", "a filter is a mapping"),
    (0, "a filter is a mapping"),
    ({"tenant": {}}, "says nothing"),
    ({3: 4}, "keys of a filter are strings"),
]


@pytest.mark.parametrize("where", TRUE, ids=str)
def test_passes(where: dict[str, Any]) -> None:
    assert compile_filter(where)(META)
    if where:
        assert not compile_filter({"$not": where})(META)


@pytest.mark.parametrize("where", FALSE, ids=str)
def test_does_not_pass(where: dict[str, Any]) -> None:
    assert not compile_filter(where)(META)
    assert compile_filter({"$not": where})(META)


@pytest.mark.parametrize(("where", "message"), BAD, ids=str)
def test_a_malformed_filter_is_refused(where: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compile_filter(where)
    with pytest.raises(ConfigError, match=message):
        Query("q", require=where)


def test_nesting_has_a_limit_under_a_key_too() -> None:
    deep: dict[str, Any] = {"a": 1}
    under: dict[str, Any] = {"$eq": 1}
    for _ in range(100):
        deep, under = {"$not": deep}, {"$not": under}
    for where in (deep, {"a": under}):
        with pytest.raises(ConfigError, match="nests deeper"):
            compile_filter(where)


def test_both_holds_what_both_hold() -> None:
    assert both(None, None) is None
    assert both({"page": 3}, None) == {"page": 3}
    assert compile_filter(both({"page": 3}, {"file": "a.pdf"}))(META)
    assert not compile_filter(both({"page": 3}, {"file": "b.pdf"}))(META)


def test_numbers_of_numpy_are_numbers() -> None:
    assert compile_filter({"page": {"$gte": 3}})({"page": np.int64(3)})
    assert compile_filter({"page": np.float32(3)})({"page": 3})


DAY, NOON = date(2024, 1, 1), datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
SAME: list[tuple[Any, Any]] = [
    (np.bool_(True), True), (np.int64(3), 3), (np.float32(0.5), 0.5), (Decimal("19.99"), 19.99), (Decimal(3), 3),
    (Decimal(2**60 + 1), 2**60 + 1), (DAY, "2024-01-01"), (NOON, "2024-01-01T12:00:00+00:00"), (np.array(3), 3),
    (NOON.astimezone(timezone(timedelta(hours=2))), "2024-01-01T12:00:00+00:00"), (np.array(["x"]), ["x"]),
]  # fmt: skip
UNKNOWN: list[Any] = [object(), b"x", UUID(int=1), np.datetime64("2024-01-01"), [object(), "x"], {UUID(int=1)}]
KINDS = ["object", "bytes", "uuid", "datetime64", "list", "set"]
DENIALS: list[dict[str, Any]] = [
    {"$not": {"a": 1}}, {"a": {"$not": {"$eq": 1}}}, {"a": {"$ne": 1}}, {"a": {"$nin": [1]}}, {"a": {"$nin": []}},
    {"$not": {"a": {"$ne": 1}}}, {"$not": {"$or": [{"a": 1}, {"b": 1}]}}, {"a": {"$empty": False}},
    {"$not": {"$and": [{"a": 1}, {"b": {"$exists": False}}]}}, {"a": {"$not": {"$gt": 1}}},
    {"$not": {"$not": {"$not": {"a": {"$in": [1, "y"]}}}}}, {"$not": {"a": {"$all": ["q"]}}},
]  # fmt: skip


def passing(where: dict[str, Any], value: Any) -> bool:
    """Whether a filter passes a value of `a`, by its predicate and by columns, which agree."""
    found = Rows([Chunk("1", metadata={"a": value})]).selection(where)
    passes = compile_filter(where)({"a": value})
    assert (found is None or found.count == 1) == passes
    return passes


@pytest.mark.parametrize(("value", "stored"), SAME, ids=repr)
def test_a_value_that_json_lacks_is_compared_as_what_a_store_keeps(value: Any, stored: Any) -> None:
    for held in (value, stored) if isinstance(stored, list) else (value, stored, [value], (value, "other")):
        for operand in (value, stored):
            several = operand if isinstance(stored, list) else [operand]
            assert passing({"a": {"$in": several}}, held)
            for denied in ({"a": {"$nin": several}}, {"$not": {"a": {"$in": several}}}):
                assert not passing(denied, held)
    if not isinstance(stored, bool | list):
        assert passing({"a": {"$gte": stored, "$lte": value}}, value)
        assert not passing({"a": {"$gt": value}}, value)


@pytest.mark.parametrize("where", DENIALS, ids=str)
@pytest.mark.parametrize("value", UNKNOWN, ids=KINDS)
def test_what_no_filter_can_compare_passes_no_denial(where: dict[str, Any], value: Any) -> None:
    assert not passing(where, value)
    assert passing({"a": {"$exists": True}}, value)
    assert passing({"$not": {"a": {"$exists": False}}}, value)


def test_a_member_that_no_filter_can_compare_hides_no_other() -> None:
    assert passing({"a": "x"}, [object(), "x"])
    assert not passing({"a": {"$ne": "y"}}, [object(), "x"])
    assert passing({"a": {"$ne": "y"}}, [DAY, None, {}, "x"])


OPERANDS = [object(), b"x", ["x"], {"x"}, {}, UUID(int=1), np.datetime64("2024"), np.array([1])]


@pytest.mark.parametrize("operand", OPERANDS, ids=lambda operand: type(operand).__name__)
def test_an_operand_that_no_filter_can_compare_is_refused(operand: Any) -> None:
    for where in ({"a": {"$eq": operand}}, {"a": {"$not": {"$ne": operand}}}, {"a": {"$in": [operand]}}):
        with pytest.raises(ConfigError, match=r"cannot compare .* give a string, a number, a boolean, a date"):
            compile_filter(where)


class Letter(str, Enum):
    A = "a"


class Count(IntEnum):
    ONE = 1


class Compared(str):
    """A text that counts how often any of its class was compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


SCALARS: list[Any] = [
    0, 1, 1.0, 1.5, -0.0, True, False, "a", "1", "", Letter.A, Count.ONE, Compared("a"), math.nan, 2**53 + 1,
    float(2**53), Fraction(3, 2), Decimal("1.5"), np.float32(1.5), date(2024, 5, 1), "2024-05-01", None,
]  # fmt: skip


VALUES: list[Any] = [*SCALARS, *([one, "a", 1] for one in SCALARS), [], [["a"]], {"a": 1}]


@pytest.mark.parametrize(
    ("operator", "join"),
    [
        ("$in", lambda equal, unequal, listed: any(equal)),
        ("$nin", lambda equal, unequal, listed: any(unequal) and not any(equal)),
        ("$any", lambda equal, unequal, listed: listed and any(equal)),
        ("$all", lambda equal, unequal, listed: listed and all(equal)),
    ],
)
def test_several_operands_are_as_each_alone(
    operator: str, join: Callable[[list[bool], list[bool], bool], bool]
) -> None:
    """By predicate, and by columns."""
    rows = Rows([Chunk(str(at), metadata={"a": value}) for at, value in enumerate(VALUES)])

    def passing(operator: str, operand: Any) -> list[bool]:
        passes = compile_filter({"a": {operator: operand}})
        return [passes({"a": value}) for value in VALUES]

    equal, unequal = ([passing(one, operand) for operand in SCALARS] for one in ("$eq", "$ne"))
    for one, other in product(range(len(SCALARS)), repeat=2):
        several = [SCALARS[one], SCALARS[other]]
        expected = [
            join([equal[one][at], equal[other][at]], [unequal[one][at], unequal[other][at]], isinstance(value, list))
            for at, value in enumerate(VALUES)
        ]
        assert passing(operator, several) == expected
        selected = rows.selection({"a": {operator: several}})
        assert selected is not None
        assert selected.mask.tolist() == expected


@pytest.mark.parametrize("operator", ["$in", "$nin", "$any", "$all"])
def test_several_thousand_are_not_compared_one_by_one(operator: str) -> None:
    passes = compile_filter({"a": {operator: [Compared(at) for at in range(5000)]}})
    before = Compared.times
    for value in ("none", "7", ["none", "7"]):
        passes({"a": value})
    assert Compared.times < before + 100


def test_equal_filters_have_one_canonical_form() -> None:
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1}) != canonical({"a": "1", "b": 2})
    assert canonical({"a": np.float32(3)}) != canonical({"a": repr(np.float32(3))})


def test_a_filter_is_a_tree_without_nested_conjunctions() -> None:
    low, high, other = Condition("a", "$gte", 1), Condition("a", "$lt", 3), Condition("b", "$eq", "x")
    assert parse({"$and": [{"a": {"$gte": 1, "$lt": 3}}, {"b": "x"}]}) == Every((low, high, other))
    assert parse({"$or": [{"$not": {"b": "x"}}, {"$and": [{"b": "x"}]}]}) == Some((other, Not(other)))


def test_equalities_of_which_one_is_to_hold_are_one_condition() -> None:
    where = {"$or": [{"a": 1}, {"a": {"$gt": 5}}, {"b": "x"}, {"a": {"$in": [2, 3]}}, {"c": {"$in": []}}]}
    one, few, other = Condition("a", "$in", [1, 2, 3]), Condition("c", "$in", []), Condition("b", "$eq", "x")
    assert parse(where) == Some((one, other, few, Condition("a", "$gt", 5)))


@pytest.mark.parametrize("where", [{"$or": {"a": 1}}, {"$and": 5}, {"$not": "x"}, {"$and": [1]}, "x", ["x"]])
def test_what_is_no_filter_is_refused_before_it_is_asked_what_it_says(where: Any) -> None:
    with pytest.raises(ConfigError):
        says_nothing(where)


def test_the_two_times_of_an_hour_that_the_clock_repeats_are_apart() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    assert first == second
    chunks = [Chunk("first", "pump", None, {"at": first}), Chunk("second", "pump", None, {"at": second})]
    border = datetime(2024, 10, 27, 1, tzinfo=timezone.utc)
    for given in (chunks, chunks[::-1]):
        bm25 = BM25.from_chunks(given)
        for operator, wanted in (("$lt", "first"), ("$gte", "second")):
            where = {"at": {operator: border}}
            assert (
                bm25.search(Query("pump", where=where)).ids
                == bm25.search(Query("pump", require=where)).ids
                == (wanted,)
            )


@pytest.mark.parametrize("kind", [np.array, list, tuple, lambda numbers: UserList(numbers)])
def test_long_lists_that_differ_are_different_filters(kind: Any) -> None:
    own, other = np.arange(1500), np.arange(1500)
    other[700] = 10_000
    rights, asked = ({"doc": {"$in": kind(numbers)}} for numbers in (own, other))
    assert canonical(rights) != canonical(asked)
    assert canonical(rights) == canonical({"doc": {"$in": own.tolist()}})
    bm25 = BM25.from_chunks([Chunk(str(at), "pump", metadata={"doc": at}) for at in (1, 700, 10_000)])
    for name in ("where", "require"):
        assert set(bm25.search(Query("pump", **{name: rights})).ids) == {"1", "700"}
        assert set(bm25.search(Query("pump", **{name: asked})).ids) == {"1", "10000"}
    assert bm25.search(Query("pump", require=scope(rights, asked))).ids == ("1",)


WEST, EAST = timezone(timedelta(hours=-5)), timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    ("key", "most", "some"),
    [
        ("until", datetime.max.replace(tzinfo=WEST), datetime(2030, 1, 1, tzinfo=WEST)),
        ("limit", Decimal("Infinity"), Decimal("3.5")),
    ],
)
def test_the_greatest_of_their_kind_are_compared(key: str, most: Any, some: Any) -> None:
    chunks = [Chunk("some", "pump", metadata={key: some}), Chunk("most", "pump", metadata={key: most})]
    bm25 = BM25.from_chunks(chunks)
    assert bm25.search(Query("pump", where={key: {"$gt": some}})).ids == ("most",)
    assert set(bm25.search(Query("pump", require={key: {"$lte": most}})).ids) == {"some", "most"}
    assert compile_filter({"at": {"$lt": some if key == "until" else 0}})({"at": -1}) == (key == "limit")
    assert compile_filter({"at": {"$lt": datetime.max}})({"at": datetime.min.replace(tzinfo=EAST)})
