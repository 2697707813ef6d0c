"""LlamaIndex: filters that are refused, and what stores are given of a portable filter."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.vector_stores import FilterOperator, MetadataFilter

from voicevault_retrievers.engines.filters import translate
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.llama_index.store_filters import PostgresFilters, flattened


def test_one_that_nests_too_deep_is_refused() -> None:
    where: dict[str, Any] = {"a": 1}
    for _ in range(5000):
        where = {"$not": where}
    with pytest.raises(ConfigError, match="nests deeper than"):
        filter_of(where)


MARKS = ["x' OR '1'='1", "a\\", ":name", 'a"b', "'; DROP TABLE data; --"]


@pytest.mark.parametrize("value", MARKS)
def test_nothing_that_sql_would_read_is_written_into_it(value: str) -> None:
    """LlamaIndex's PGVectorStore writes keys and values into SQL as they are."""
    for operator in ("$eq", "$ne", "$contains", "$gt", "$text"):
        assert translate({"a": {operator: value}}, PostgresFilters(["a"])).clause is None
        assert translate({value: {operator: "safe"}}, PostgresFilters([value])).clause is None
    assert translate({"$or": [{"a": {"$in": [value]}}, {"a": 1}]}, PostgresFilters()).clause is None
    assert translate({"a": {"$in": [value]}, "b": "safe"}, PostgresFilters()).clause is not None


def test_numbers_are_ordered_by_postgres_where_they_are_declared() -> None:
    """It casts the values of each row, and raises where one is no number."""
    assert translate({"year": {"$gte": 2020}}, PostgresFilters()).clause is None
    assert translate({"year": {"$gte": 2020}}, PostgresFilters(["year"])).clause == MetadataFilter(
        key="year", value=2020, operator=FilterOperator.GTE
    )
    assert translate({"year": {"$gte": "2020"}}, PostgresFilters(["year"])).clause is None


def test_what_a_flat_store_cannot_hold_is_left_out_and_marked() -> None:
    assert flattened({"a": 1, "b": None, "c": "x", "d": True, "e": 0.5}) == {
        "a": 1, "b": None, "c": "x", "d": True, "e": 0.5,
    }  # fmt: skip
    for value in ([1], {"a": 1}, 2**64, float("nan"), float("inf")):
        assert flattened({"a": 1, "b": value}) == {"a": 1, "_voicevault_others": True}
