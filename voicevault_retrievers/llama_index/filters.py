"""LlamaIndex's metadata filters as the portable filter."""

from __future__ import annotations

from copy import deepcopy

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from voicevault_retrievers.errors import FilterNotSupportedError
from voicevault_retrievers.filters import Filter, compile_filter

_OPERATORS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.ANY: "$any",
    FilterOperator.ALL: "$all",
    FilterOperator.CONTAINS: "$contains",
    FilterOperator.TEXT_MATCH: "$text",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "$itext",
}


def filter_of(where: Filter | MetadataFilters | None) -> Filter | None:
    """The portable filter, checked. A missing key fails every operator but IS_EMPTY, also NE and NIN.

    Nested filters and all conditions are kept; NOT holds where none of its filters does. Raises
    FilterNotSupportedError for an unknown operator or condition, ConfigError for a malformed filter.
    """
    portable = _group(where) if isinstance(where, MetadataFilters) else deepcopy(where)
    compile_filter(portable)
    return portable or None


def _group(group: MetadataFilters) -> Filter:
    if not group.filters:
        return {}
    parts = [_group(part) if isinstance(part, MetadataFilters) else _clause(part) for part in group.filters]
    if group.condition in (None, FilterCondition.AND):
        return {"$and": parts}
    if group.condition == FilterCondition.OR:
        return {"$or": parts}
    if group.condition == FilterCondition.NOT:
        return {"$not": {"$or": parts}}
    raise FilterNotSupportedError(f"the filter condition {group.condition!r} is unknown; use and, or, not")


def _clause(clause: MetadataFilter) -> Filter:
    if clause.operator == FilterOperator.IS_EMPTY:
        return {"$or": [{clause.key: {"$exists": False}}, {clause.key: {"$empty": True}}]}
    if clause.operator not in _OPERATORS:
        known = ", ".join(operator.value for operator in FilterOperator)
        raise FilterNotSupportedError(f"the filter operator {clause.operator!r} is unknown; use one of {known}")
    return {clause.key: {_OPERATORS[clause.operator]: clause.value}}
