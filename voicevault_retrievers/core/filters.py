"""The portable filter on metadata: `{"source_file": "a.pdf", "page_number": {"$gte": 3}, "$or": [...]}`.

For a missing or null key, every operator but `{"$exists": false}` is false. Numbers compare with numbers, strings with
strings, booleans with booleans; across types the result is false. On a list, `$eq` and `$in` test membership.
`$contains` tests membership in a list, or a substring of a string. All keys of one object must hold.

Values in memory that JSON lacks are compared as what JSON has (`plain`). Any other value, such as an object, is not
comparable: neither a condition that denies (`$ne`, `$nin`, `$empty`) nor a negated condition passes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property
from numbers import Real
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from voicevault_retrievers.errors import ConfigError, unknown

Filter: TypeAlias = Mapping[str, Any]
Predicate: TypeAlias = Callable[[Mapping[str, Any]], bool]
Node: TypeAlias = "Condition | Every | Some | Not"
MAX_DEPTH = 32
_DIGITS = 308  # of the largest float
LISTS = (list, tuple, set, frozenset)
_OF_LISTS = ("$in", "$nin", "$any", "$all")
_DENYING = ("$ne", "$nin", "$empty")
_EXACT: dict[type[Any], Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
NOTHING: Filter = {"$or": []}
"""The filter that nothing passes."""


@dataclass(frozen=True)
class Condition:
    """One operator applied to one key: `{"page_number": {"$gte": 3}}`."""

    key: str
    operator: str
    operand: Any

    def passes(self, metadata: Mapping[str, Any], negated: bool = False) -> bool:
        return self.holds(metadata.get(self.key), negated)

    def holds(self, value: Any, negated: bool = False) -> bool:
        """Whether a value of the key meets the condition, or surely does not, where `negated`.

        None stands for a missing value. A value that is not comparable does neither.
        """
        if value is None:
            return (self.operator == "$exists" and not self.operand) is not negated
        if (negated or self.operator in _DENYING) and self.operator != "$exists" and not is_comparable(value):
            return False
        return _OPERATORS[self.operator](plain(value), self._compared) is not negated

    @cached_property
    def _compared(self) -> Any:
        if self.operator not in _OF_LISTS:
            return self.operand
        return _Choices(frozenset(map(_key, self.operand)), frozenset(map(_kind, self.operand)) - {None})


@dataclass(frozen=True)
class Every:
    """All parts must pass; without parts everything passes."""

    parts: tuple[Node, ...]

    def passes(self, metadata: Mapping[str, Any], negated: bool = False) -> bool:
        return (any if negated else all)(part.passes(metadata, negated) for part in self.parts)


@dataclass(frozen=True)
class Some:
    """At least one part must pass; without parts nothing passes."""

    parts: tuple[Node, ...]

    def passes(self, metadata: Mapping[str, Any], negated: bool = False) -> bool:
        return (all if negated else any)(part.passes(metadata, negated) for part in self.parts)


@dataclass(frozen=True)
class Not:
    """The negation of its part."""

    part: Node

    def passes(self, metadata: Mapping[str, Any], negated: bool = False) -> bool:
        return self.part.passes(metadata, not negated)


def parse(where: Filter | None) -> Node:
    """The filter as a tree. None and `{}` pass everything. Raises ConfigError for a malformed filter."""
    return _parse({} if where is None else where, 0)


def compile_filter(where: Filter | None) -> Predicate:
    """A predicate on metadata. None and `{}` pass everything. Raises ConfigError for a malformed filter."""
    return parse(where).passes


def both(first: Filter | None, second: Filter | None) -> Filter | None:
    """The conjunction of two filters."""
    return {"$and": [first, second]} if first and second else first or second


def scope(*required: Filter | None) -> Filter | None:
    """The conjunction of several access rights, each a filter that says what is permitted.

    None restricts nothing. Rights that are empty (`{}`), or that join an empty filter with `$and` or `$or`, permit
    nothing: rights that came out empty must not open everything. Where a chunk lacks a key, no operator on that key
    permits it but `{"$exists": false}`. `$not` inverts that, so deny with `$ne` and `$nin`. Raises ConfigError for a
    malformed filter.
    """
    given = [rights for rights in required if rights is not None]
    for rights in given:
        parse(rights)
    if any(says_nothing(rights) for rights in given):
        return NOTHING
    distinct = list({canonical(rights): rights for rights in given}.values())
    return {"$and": distinct} if len(distinct) > 1 else next(iter(distinct), None)


def canonical(where: Filter | None) -> str:
    """A filter as a string for cache keys: equal for equal filters, different for different ones."""
    return json.dumps(where, sort_keys=True, default=_as_json) if where else ""


def _as_json(value: Any) -> Any:
    """Values rather than their `repr`, which leaves out most of a long array."""
    if isinstance(value, Mapping):
        return dict(value)
    if (known := plain(value)) is not value:
        return known
    return list(value) if isinstance(value, Sequence) else {"$repr": repr(value)}


def says_nothing(where: Filter) -> bool:
    """Whether a filter, or a filter that it joins, has no condition, which is usually a mistake.

    Raises ConfigError for a malformed filter.
    """
    parse(where)
    return _says_nothing(where)


def _says_nothing(where: Filter) -> bool:
    joined = [part for key in ("$and", "$or") for part in where.get(key, ())]
    denied = [where["$not"]] if "$not" in where else []
    return (
        not where
        or any(key in where and not where[key] for key in ("$and", "$or"))
        or any(map(_says_nothing, (*joined, *denied)))
    )


def _parse(where: Filter, depth: int) -> Node:
    if not isinstance(where, Mapping):
        raise ConfigError(f"a filter is a mapping such as {{'source_file': 'a.pdf'}}, not {where!r}")
    _check_depth(depth)
    return _every([_clause(key, value, depth) for key, value in where.items()])


def _clause(key: str, value: Any, depth: int) -> Node:
    if not isinstance(key, str):
        raise ConfigError(f"the keys of a filter are strings, not {key!r}")
    if key in ("$and", "$or"):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise ConfigError(f"{key} takes a list of filters, not {value!r}")
        parts = [_parse(part, depth + 1) for part in value]
        return _every(parts) if key == "$and" else _some(parts)
    if key == "$not":
        return Not(_parse(value, depth + 1))
    if key.startswith("$"):
        raise unknown("filter operator", key, ("$and", "$or", "$not"))
    return _field(key, value, depth)


def _field(key: str, value: Any, depth: int) -> Node:
    _check_depth(depth)
    if not isinstance(value, Mapping):
        value = {"$eq": value}
    if not value:
        raise ConfigError(f"the filter on {key!r} says nothing: give a value or an operator")
    return _every([_condition(key, operator, operand, depth) for operator, operand in value.items()])


def _condition(key: str, operator: str, operand: Any, depth: int) -> Node:
    if operator == "$not":
        return Not(_field(key, operand, depth + 1))
    operand = plain(operand)
    if operator == "$exists" and not isinstance(operand, bool):
        raise ConfigError(f"$exists takes true or false, not {operand!r}")
    if operator not in _OPERATORS:
        raise unknown("filter operator", operator, (*_OPERATORS, "$not"))
    if operator in _OF_LISTS:
        if isinstance(operand, str | bytes) or not isinstance(operand, Sequence):
            raise ConfigError(f"{operator} takes a list, not {operand!r}")
        operand = [plain(choice) for choice in operand]
    if operator not in ("$exists", "$empty"):
        for choice in operand if operator in _OF_LISTS else (operand,):
            _check_operand(key, operator, choice)
    return Condition(key, operator, operand)


def _check_operand(key: str, operator: str, operand: Any) -> None:
    if not isinstance(operand, str | bool | Real | NoneType):  # null equals nothing
        raise ConfigError(
            f"the filter on {key!r}: {operator} cannot compare {operand!r:.200}: give a string, a number, a boolean, a "
            'date or a datetime; for several values use {"$in": [...]}, or {"$nin": [...]} to deny them; for a missing '
            'or null one {"$exists": false}'
        )


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"a filter nests deeper than {MAX_DEPTH}")


def _every(parts: list[Node]) -> Node:
    """The conjunction of parts, with nested conjunctions flattened."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, Every) else (part,))]
    return flat[0] if len(flat) == 1 else Every(tuple(flat))


def _some(parts: list[Node]) -> Node:
    """The disjunction of parts, in which equalities on one key are one: `$in`, which looks its operands up."""
    operands: dict[str, list[Any]] = {}
    equal, others = list[Node](), list[Node]()
    for part in parts:
        if isinstance(part, Condition) and part.operator in ("$eq", "$in"):
            operands.setdefault(part.key, []).extend(part.operand if part.operator == "$in" else [part.operand])
        else:
            others.append(part)
    for key, some in operands.items():
        equal.append(Condition(key, "$in", some) if len(some) != 1 else Condition(key, "$eq", *some))
    return Some((*equal, *others))


def plain(value: Any) -> Any:
    """A value as filters compare it: as the JSON value for which it stands, or itself.

    Scalars and arrays of numpy are Python's. A Decimal is an int, or the nearest float. A date or a datetime is its
    ISO 8601 text, in UTC where it has a time zone.
    """
    if type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufUO":
        return value.tolist()
    if isinstance(value, Decimal):
        if value.is_nan():
            return math.nan
        if value.is_infinite():
            return float(value)
        is_whole = value.adjusted() <= _DIGITS and value == value.to_integral_value()
        return int(value) if is_whole else float(value)
    if isinstance(value, datetime) and value.utcoffset() is not None:
        value = _in_utc(value)
    return value.isoformat() if isinstance(value, date) else value


def _in_utc(value: datetime) -> datetime:
    """A time in UTC; the ends of the calendar, such as "never", where that is beyond them."""
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        return value.replace(tzinfo=timezone.utc)


def is_comparable(value: Any) -> bool:
    """Whether a filter can tell a value, and each member of a list, from any operand: JSON values, and `plain` ones."""
    value = plain(value)
    members = _items(value)
    return all(map(_is_known, [value] if members is None else members))


def _is_known(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool, Real, Mapping, *LISTS))


def _items(value: Any) -> list[Any] | None:
    return list(map(plain, value)) if isinstance(value, LISTS) else None


def _kind(value: Any) -> type[Any] | None:
    """The type of what a value compares with; None for a value that compares with nothing."""
    if isinstance(value, str):
        return str
    if isinstance(value, bool):
        return bool
    return Real if isinstance(value, Real) else None


def _same_type(left: Any, right: Any) -> bool:
    return (kind := _kind(left)) is not None and kind is _kind(right)


def _equal(value: Any, operand: Any) -> bool:
    return _same_type(value, operand) and bool(value == operand)


def _eq(value: Any, operand: Any) -> bool:
    items = _items(value)
    return _equal(value, operand) if items is None else any(_equal(item, operand) for item in items)


def _ne(value: Any, operand: Any) -> bool:
    comparable = _items(value) is not None or _same_type(value, operand)
    return comparable and not _eq(value, operand)


class _Choices(NamedTuple):
    """Several operands: what is equal to one of them is found however many they are."""

    keys: frozenset[Hashable]
    kinds: frozenset[type[Any] | None]


def _key(value: Any) -> Hashable:
    """The same for values that are `_equal`; of an enumeration's member, which has a hash of its own, of its value."""
    kind = _kind(value)
    if kind is None or value != value:
        return object()  # equal to nothing
    if type(value) not in _EXACT:
        value = next((exact(value) for base, exact in _EXACT.items() if isinstance(value, base)), value)
    return kind, value


def _keys(value: Any) -> set[Hashable]:
    items = _items(value)
    return {_key(value)} if items is None else set(map(_key, items))


def _in(value: Any, choices: _Choices) -> bool:
    return not choices.keys.isdisjoint(_keys(value))


def _nin(value: Any, choices: _Choices) -> bool:
    comparable = not choices.keys or _items(value) is not None or _kind(value) in choices.kinds
    return comparable and not _in(value, choices)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(value: Any, operand: Any) -> bool:
        return not isinstance(value, bool) and _same_type(value, operand) and compare(value, operand)

    return test


def _contains(value: Any, operand: Any) -> bool:
    if isinstance(value, str):
        return isinstance(operand, str) and operand in value
    return _items(value) is not None and _eq(value, operand)


def _text(value: Any, operand: Any) -> bool:
    return isinstance(value, str) and isinstance(operand, str) and operand in value


def _itext(value: Any, operand: Any) -> bool:
    return isinstance(value, str) and isinstance(operand, str) and operand.casefold() in value.casefold()


def _all(value: Any, choices: _Choices) -> bool:
    return _items(value) is not None and choices.keys <= _keys(value)


def _any(value: Any, choices: _Choices) -> bool:
    return _items(value) is not None and _in(value, choices)


def _empty(value: Any, operand: Any) -> bool:
    return (_items(value) == [] or value == "") is bool(operand)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": _eq,
    "$ne": _ne,
    "$gt": _ordered(lambda value, operand: value > operand),
    "$gte": _ordered(lambda value, operand: value >= operand),
    "$lt": _ordered(lambda value, operand: value < operand),
    "$lte": _ordered(lambda value, operand: value <= operand),
    "$in": _in,
    "$nin": _nin,
    "$contains": _contains,
    "$text": _text,
    "$itext": _itext,
    "$any": _any,
    "$all": _all,
    "$empty": _empty,
    "$exists": lambda value, operand: bool(operand),
}
