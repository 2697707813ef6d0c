"""Metadata and filters that engines differ on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Ranking

VALUES: list[Any] = [
    None, 0, 1, 1.0, 2, 2.5, -3, 2**53 + 1, True, False, "a", "b", "A", "1", "", '["a", "b"]', "gro\u00dfe",
    "a'b\"c\\%", "\U0001f600", "\uffee", "2024-05-01", "2024-11-30", ["a", "b"], ["1"], [1, 2], [2.5, 0.5], [True],
    ["a", 1], [None, "a"], [["a"]], [], {"deep": 1},
]  # fmt: skip
UNHELD = range(VALUES.index(["a", 1]), len(VALUES))
"""Where the values are that Chroma does not take: lists that are empty or of several types, and what is nested."""


def metadata(values: Sequence[Any]) -> list[dict[str, Any]]:
    """Metadata with each of the values, with none, and with other keys."""
    held: list[dict[str, Any]] = [{"v": value} for value in values]
    held += [{}, {"w": "x"}]
    return [each | ({"w": "xy"[at % 2], "page-number": at} if at % 3 else {}) for at, each in enumerate(held)]


def passing(ranking: Ranking, where: dict[str, Any]) -> tuple[str, ...]:
    passes = compile_filter(where)
    return tuple(hit.id for hit in ranking if passes(hit.chunk.metadata))


FILTERS: list[dict[str, Any]] = [
    {"v": 1},
    {"v": 1.0},
    {"v": 2.5},
    {"v": 2**53 + 1},
    {"v": float(2**53)},
    {"v": True},
    {"v": False},
    {"v": "a"},
    {"v": "1"},
    {"v": ""},
    {"v": "gro\u00dfe"},
    {"v": "a'b\"c\\%"},
    {"v": None},
    {"v": {"$ne": 1}},
    {"v": {"$ne": 2.5}},
    {"v": {"$ne": True}},
    {"v": {"$ne": "a"}},
    {"v": {"$ne": "1"}},
    {"v": {"$ne": '["a", "b"]'}},
    {"v": {"$gt": 1}},
    {"v": {"$gte": 1}},
    {"v": {"$lt": 2.5}},
    {"v": {"$lte": -3}},
    {"v": {"$gt": 2**53}},
    {"v": {"$gt": math.inf}},
    {"v": {"$gte": "a"}},
    {"v": {"$lt": "\U0001f600"}},
    {"v": {"$gte": "2024-06-01", "$lt": "2025"}},
    {"v": {"$in": [1, "a", True]}},
    {"v": {"$in": []}},
    {"v": {"$nin": ["a", "b"]}},
    {"v": {"$nin": [1, "a"]}},
    {"v": {"$contains": "a"}},
    {"v": {"$contains": 1}},
    {"v": {"$text": "a"}},
    {"v": {"$itext": "A"}},
    {"v": {"$any": ["a", 2]}},
    {"v": {"$all": ["a", "b"]}},
    {"v": {"$empty": True}},
    {"v": {"$exists": True}},
    {"v": {"$exists": False}},
    {"w": "x", "v": {"$gte": 0}},
    {"page-number": {"$gte": 3}},
    {"deep": 1},
    {"_collection_name": {"$in": [f"store{at}" for at in range(99)]}},
    {"_id": {"$exists": False}},
    {"$or": [{"v": "a"}, {"v": {"$text": "b"}}]},
    {"$or": [{"v": "a"}, {"w": "y"}]},
    {"$and": [{"w": "x"}, {"$or": [{"v": 1}, {"v": "1"}]}]},
    {"$not": {"v": "a"}},
    {"$not": {"v": {"$in": [1, True]}}},
    {"$not": {"v": {"$gt": 1}}},
    {"$not": {"$or": [{"v": 1}, {"w": "x"}]}},
    {"$not": {"$not": {"v": "a"}}},
    {"v": {"$not": {"$exists": False}}},
    {"$not": {}},
    {"$or": []},
    {},
    {"v": {"$in": [*(f"none {at}" for at in range(5000)), "a"]}},
    {"v": {"$nin": [*(f"none {at}" for at in range(150)), "a"]}},
    {"$or": [{"w": {"$in": ["x", str(at)]}} for at in range(1500)]},
]


ODD = [0.5, -0.5, -2.5, 2.4, 2**60, 1e300, math.nan, "x", '["1"]', "[1, 2]", "\0", "\ud800", "gro", None]
SCALARS = st.sampled_from([value for value in VALUES if isinstance(value, str | int | float)] + ODD)
CONDITIONS = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains"]), SCALARS),
    st.tuples(st.sampled_from(["$in", "$nin", "$any", "$all"]), st.lists(SCALARS, max_size=3)),
    st.tuples(st.sampled_from(["$text", "$itext"]), st.sampled_from(["a", "A", "", "SS", 1])),
    st.tuples(st.sampled_from(["$exists", "$empty"]), st.booleans()),
).map(lambda said: {said[0]: said[1]})
WHERE = st.recursive(
    st.dictionaries(st.sampled_from(["v", "w"]), CONDITIONS, max_size=2),
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(["$and", "$or"]), st.lists(below, max_size=3), min_size=1),
        below.map(lambda where: {"$not": where}),
    ),
    max_leaves=6,
)
