"""LlamaIndex's metadata filters as the portable filter, and back."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from voicevault_retrievers.errors import FilterNotSupportedError
from voicevault_retrievers.filters import Condition, Every, Filter, Node, Not, compile_filter, parse

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
_NAMES = {operator: name for name, operator in _OPERATORS.items()}


def filter_of(where: Filter | MetadataFilters | None) -> Filter | None:
    """The portable filter, checked. A missing key fails every operator but IS_EMPTY, also NE and NIN.

    Nested filters and all conditions are kept; NOT holds where none of its filters does. Raises
    FilterNotSupportedError for an unknown operator or condition, ConfigError for a malformed filter.
    """
    portable = _group(where) if isinstance(where, MetadataFilters) else where
    compile_filter(portable)  # before it is copied: one that nests too deep cannot be
    return deepcopy(portable) or None


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


def metadata_filters_of(where: Filter | None) -> MetadataFilters:
    """LlamaIndex's filters that say what the portable filter says: `filter_of` them passes the same metadata.

    Raises FilterNotSupportedError for what they cannot say: booleans, and operands that are neither strings, numbers,
    None nor lists of these. What a vector store makes of them is its own affair.
    """
    said = _said(parse(where))
    return said if isinstance(said, MetadataFilters) else MetadataFilters(filters=[said])


def _said(node: Node) -> MetadataFilter | MetadataFilters:
    if isinstance(node, Condition):
        return _conditions(node.key, node.operator, node.operand)
    if isinstance(node, Not):
        return _joined(FilterCondition.NOT, [_said(node.part)])
    if isinstance(node, Every):
        return _joined(FilterCondition.AND, [_said(part) for part in node.parts])
    if not node.parts:  # an OR of nothing would pass everything
        return _filter("", FilterOperator.IN, [])
    return _joined(FilterCondition.OR, [_said(part) for part in node.parts])


def _conditions(key: str, operator: str, operand: Any) -> MetadataFilter | MetadataFilters:
    if operator in ("$exists", "$empty"):
        return _present(key, operator, bool(operand))
    if operator in ("$in", "$nin", "$any", "$all"):
        return _listed(key, operator, _by_type(operand))
    return _filter(key, _NAMES[operator], operand)


def _present(key: str, operator: str, wanted: bool) -> MetadataFilter | MetadataFilters:
    present = _filter(key, FilterOperator.NIN, [])  # which every value passes, and what is missing does not
    if operator == "$exists":
        return present if wanted else _joined(FilterCondition.NOT, [present])
    empty = _filter(key, FilterOperator.IS_EMPTY, None)
    return _joined(FilterCondition.AND, [present, empty if wanted else _joined(FilterCondition.NOT, [empty])])


def _listed(key: str, operator: str, kinds: Sequence[list[Any]]) -> MetadataFilter | MetadataFilters:
    """One filter where the values are of one kind, else several: a MetadataFilter holds values of one type."""
    each = [_filter(key, _NAMES[operator], values) for values in kinds or ([],)]
    if len(each) == 1:
        return each[0]
    if operator != "$nin":
        return _joined(FilterCondition.AND if operator == "$all" else FilterCondition.OR, each)
    # What can be compared with one of the values, and equals none of them.
    none = _joined(FilterCondition.NOT, [_filter(key, FilterOperator.IN, values) for values in kinds])
    return _joined(FilterCondition.AND, [_joined(FilterCondition.OR, each), none])


def _by_type(values: Sequence[Any]) -> list[list[Any]]:
    """The values in lists of one type."""
    kinds: dict[type, list[Any]] = {}
    for value in values:
        kinds.setdefault(type(value), []).append(value)
    return list(kinds.values())


def _joined(condition: FilterCondition, filters: Sequence[MetadataFilter | MetadataFilters]) -> MetadataFilters:
    return MetadataFilters(filters=list(filters), condition=condition)


def _filter(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:
    try:
        return MetadataFilter(key=key, operator=operator, value=value)
    except ValueError as error:
        raise FilterNotSupportedError(
            f"MetadataFilters cannot say {operator.value} {value!r} of {key!r}: they hold strings, numbers and lists "
            "of one of these; give the portable filter where it is taken"
        ) from error
