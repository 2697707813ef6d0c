"""LlamaIndex's metadata filters as the portable filter, and a retriever's own filters and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from voicevault_retrievers._support.checks import weights_or_none
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.filters import NOTHING, Filter, both, compile_filter, scope
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import FilterNotSupportedError


def filter_of(where: Filter | MetadataFilters | None) -> Filter | None:
    """Convert a portable filter or MetadataFilters to a checked portable filter.

    MetadataFilters pass what they pass in LlamaIndex's SimpleVectorStore. NE and NIN pass nodes without the key. EQ,
    NE, IN and NIN compare a list as a whole, so that no scalar equals it. CONTAINS, ANY and ALL match members of a list
    and substrings of a string. Values that cannot be compared, where LlamaIndex raises a TypeError, do not pass. Groups
    nest; NOT holds where none of its filters does. Raises FilterNotSupportedError for an unknown operator or condition,
    and for a list where an operator takes a scalar, or a scalar where it takes a list; ConfigError for a malformed
    filter.
    """
    portable = _group(where) if isinstance(where, MetadataFilters) else where
    compile_filter(portable)  # before copying: a filter that nests too deep cannot be copied
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
    if clause.operator in _OF_LISTS:
        if not isinstance(clause.value, list):
            raise FilterNotSupportedError(f"the filter operator {clause.operator.value!r} takes a list: give [...]")
        return _OF_LISTS[clause.operator](clause.key, clause.value)
    if clause.operator not in _OF_SCALARS:
        known = ", ".join(operator.value for operator in FilterOperator)
        raise FilterNotSupportedError(f"the filter operator {clause.operator!r} is unknown; use one of {known}")
    if isinstance(clause.value, list):
        raise FilterNotSupportedError(
            f"the filter operator {clause.operator.value!r} takes no list: use any or all for members, in for values"
        )
    return _OF_SCALARS[clause.operator](clause.key, clause.value)


def _is_in(key: str, values: Sequence[Any]) -> Filter:
    """A filter for values that equal one of the values themselves, not for lists that contain one."""
    equal = _equal_to(values)
    return {key: {"$in": equal, "$not": {"$any": equal}}}


def _is_not_in(key: str, values: Sequence[Any]) -> Filter:
    equal = _equal_to(values)
    return {"$or": [{key: {"$not": {"$in": equal}}}, {key: {"$any": equal}}]}


def _has(key: str, value: Any) -> Filter:
    """A filter for lists that contain the value and strings that contain it."""
    equal = _equal_to([value])
    return {key: {"$contains": value}} if len(equal) == 1 else {"$or": [{key: {"$contains": one}} for one in equal]}


def _has_any(key: str, values: Sequence[Any]) -> Filter:
    return {"$or": [_has(key, value) for value in values]} if values else NOTHING


def _has_all(key: str, values: Sequence[Any]) -> Filter:
    return {"$and": [_has(key, value) for value in values]} if values else {key: {"$exists": True}}


def _is_empty(key: str, value: Any) -> Filter:
    return {"$or": [{key: {"$exists": False}}, {key: {"$empty": True}}]}


def _equal_to(values: Sequence[Any]) -> list[Any]:
    """The values with the booleans that equal them in Python: MetadataFilter has no booleans, so 1 also means True."""
    return [one for value in values for one in ((value, bool(value)) if value in (0, 1) else (value,))]


def _plain(operator: str) -> Callable[[str, Any], Filter]:
    return lambda key, value: {key: {operator: value}}


_OF_SCALARS: dict[FilterOperator, Callable[[str, Any], Filter]] = {
    FilterOperator.EQ: lambda key, value: _is_in(key, [value]),
    FilterOperator.NE: lambda key, value: _is_not_in(key, [value]),
    FilterOperator.GT: _plain("$gt"),
    FilterOperator.GTE: _plain("$gte"),
    FilterOperator.LT: _plain("$lt"),
    FilterOperator.LTE: _plain("$lte"),
    FilterOperator.CONTAINS: _has,
    FilterOperator.TEXT_MATCH: _plain("$text"),
    FilterOperator.TEXT_MATCH_INSENSITIVE: _plain("$itext"),
    FilterOperator.IS_EMPTY: _is_empty,
}
_OF_LISTS: dict[FilterOperator, Callable[[str, Sequence[Any]], Filter]] = {
    FilterOperator.IN: _is_in,
    FilterOperator.NIN: _is_not_in,
    FilterOperator.ANY: _has_any,
    FilterOperator.ALL: _has_all,
}


Where = Filter | MetadataFilters | None


@dataclass(frozen=True)
class Narrowing:
    """Filters that are added to a query's, and weights that override its own."""

    where: Filter | None = None
    require: Filter | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    def further(self, where: Where, require: Where, weights: Mapping[str, float] | None) -> Narrowing:
        """This narrowing with further filters and weights."""
        return Narrowing(
            both(self.where, filter_of(where)),
            scope(self.require, None if require is None else filter_of(require) or {}),
            {**self.weights, **weights_of(weights)},
        )

    def of(self, query: Query) -> Query:
        """The narrowed query."""
        return replace(
            query,
            where=both(self.where, query.where),
            require=scope(self.require, query.require),
            weights={**(query.weights or {}), **self.weights} or None,
        )


def weights_of(weights: Mapping[str, float] | None) -> dict[str, float]:
    """A copy of the weights; ConfigError unless they are a mapping of names."""
    return dict(weights_or_none(weights) or {})


class Weighing(Rewriter):
    """A rewriter that sets default weights of channels by name; the query's weights override them."""

    name = "weights"

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = weights

    def rewrite(self, query: Query) -> Query:
        return replace(query, weights={**self.weights, **(query.weights or {})})

    def __repr__(self) -> str:
        return f"Weighing({dict(self.weights)})"
