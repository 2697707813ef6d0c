"""The portable filter, operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voicevault_retrievers.core.filters import Condition, Every, Not, Some, both, canonical, compile_filter, parse
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError

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


def test_equal_filters_have_one_canonical_form() -> None:
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1}) != canonical({"a": "1", "b": 2})
    assert canonical({"a": np.float32(3)}) != canonical({"a": repr(np.float32(3))})


def test_a_filter_is_a_tree_without_nested_conjunctions() -> None:
    low, high, other = Condition("a", "$gte", 1), Condition("a", "$lt", 3), Condition("b", "$eq", "x")
    assert parse({"$and": [{"a": {"$gte": 1, "$lt": 3}}, {"b": "x"}]}) == Every((low, high, other))
    assert parse({"$or": [{"$not": {"b": "x"}}, {"$and": [{"b": "x"}]}]}) == Some((Not(other), other))
