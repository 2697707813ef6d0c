"""LlamaIndex: the portable filter as MetadataFilters, and back; what stores are given of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from tests.engines.awkward import FILTERS, VALUES, WHERE, metadata
from voicevault_retrievers.engines.languages import said
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.filters import compile_filter
from voicevault_retrievers.llama_index.filters import filter_of, metadata_filters_of
from voicevault_retrievers.llama_index.store_filters import Postgres, flattened

HELD = metadata([*VALUES, 2**60, 2**60 + 1, "SS", "a b"])


def passing(where: Any) -> list[bool]:
    passes = compile_filter(where)
    return [passes(each) for each in HELD]


def has_booleans(where: Any) -> bool:
    if isinstance(where, dict):
        return any(key not in ("$exists", "$empty") and has_booleans(value) for key, value in where.items())
    return isinstance(where, bool) or (isinstance(where, list) and any(map(has_booleans, where)))


@given(where=WHERE)
def test_there_and_back_passes_the_same(where: dict[str, Any]) -> None:
    try:
        said = metadata_filters_of(where)
    except FilterNotSupportedError:
        assert has_booleans(where) or "None" in str(where) or "['a', 'b']" in str(where)
        return
    assert passing(filter_of(said)) == passing(where)


@pytest.mark.parametrize("where", FILTERS, ids=lambda where: str(where)[:60])
def test_so_does_each_operator(where: dict[str, Any]) -> None:
    if has_booleans(where):
        with pytest.raises(FilterNotSupportedError, match=r"MetadataFilters cannot say .*(True|False)"):
            metadata_filters_of(where)
    else:
        assert passing(filter_of(metadata_filters_of(where))) == passing(where)


def test_one_that_nests_too_deep_is_refused() -> None:
    where: dict[str, Any] = {"a": 1}
    for _ in range(5000):
        where = {"$not": where}
    with pytest.raises(ConfigError, match="nests deeper than"):
        filter_of(where)


def test_what_it_says() -> None:
    assert metadata_filters_of({"a": 1, "$not": {"b": {"$in": ["x", 2]}}}) == MetadataFilters(
        filters=[
            MetadataFilter(key="a", value=1),
            MetadataFilters(
                filters=[
                    MetadataFilters(
                        filters=[
                            MetadataFilter(key="b", value=["x"], operator=FilterOperator.IN),
                            MetadataFilter(key="b", value=[2], operator=FilterOperator.IN),
                        ],
                        condition=FilterCondition.OR,
                    )
                ],
                condition=FilterCondition.NOT,
            ),
        ]
    )
    assert metadata_filters_of(None) == metadata_filters_of({}) == MetadataFilters(filters=[])
    for where in ({"a": True}, {"a": {"$in": [1, None]}}, {"a": {"$eq": {"b": 1}}}):
        with pytest.raises(FilterNotSupportedError, match="MetadataFilters cannot say"):
            metadata_filters_of(where)
    with pytest.raises(ConfigError, match="Did you mean"):
        metadata_filters_of({"a": {"$gtt": 1}})


MARKS = ["x' OR '1'='1", "a\\", ":name", 'a"b', "'; DROP TABLE data; --"]


@pytest.mark.parametrize("value", MARKS)
def test_nothing_that_sql_would_read_is_written_into_it(value: str) -> None:
    """LlamaIndex's PGVectorStore writes keys and values into SQL as they are."""
    for operator in ("$eq", "$ne", "$contains", "$gt", "$text"):
        assert said({"a": {operator: value}}, Postgres(["a"])) is None
        assert said({value: {operator: "safe"}}, Postgres([value])) is None
    assert said({"$or": [{"a": {"$in": [value]}}, {"a": 1}]}, Postgres()) is None
    assert said({"a": {"$in": [value]}, "b": "safe"}, Postgres()) is not None


def test_numbers_are_ordered_by_postgres_where_they_are_declared() -> None:
    """It casts the values of each row, and raises where one is no number."""
    assert said({"year": {"$gte": 2020}}, Postgres()) is None
    assert said({"year": {"$gte": 2020}}, Postgres(["year"])) == MetadataFilter(
        key="year", value=2020, operator=FilterOperator.GTE
    )
    assert said({"year": {"$gte": "2020"}}, Postgres(["year"])) is None


def test_what_a_flat_store_cannot_hold_is_left_out_and_marked() -> None:
    assert flattened({"a": 1, "b": None, "c": "x", "d": True, "e": 0.5}) == {
        "a": 1, "b": None, "c": "x", "d": True, "e": 0.5,
    }  # fmt: skip
    for value in ([1], {"a": 1}, 2**64, float("nan"), float("inf")):
        assert flattened({"a": 1, "b": value}) == {"a": 1, "_voicevault_others": True}
