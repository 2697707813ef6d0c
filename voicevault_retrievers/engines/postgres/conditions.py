"""The portable filter in SQL over jsonb, with exactly the same meaning.

Every condition is true or false, never null, so that `NOT` is exact negation. Values of a filter are only in
parameters. Numbers are compared as decimals of their exact values, strings by code points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Rational, Real
from typing import Any

from voicevault_retrievers.core.filters import Condition, Every, Filter, Node, Not, parse
from voicevault_retrievers.engines.encoding import escaped
from voicevault_retrievers.engines.postgres.texts import metadata_json, number_text
from voicevault_retrievers.errors import FilterNotSupportedError

FEW = 8
"""Up to this many values of a list are compared one by one, which can use an index on the metadata."""

_COMPARED = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


@dataclass
class Where:
    """A filter as an SQL condition on `c.metadata`, and its parameters."""

    text: str = "true"
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, where: Filter | None, prefix: str) -> Where:
        """The condition of a filter; `prefix` begins its parameters' names.

        Raises FilterNotSupportedError for a number that equals no int or float, or has too many digits.
        """
        made = cls()
        writer = _Writer(made.parameters, prefix)
        made.text = "true" if not where else writer.node(parse(where))
        return made


class _Writer:
    def __init__(self, parameters: dict[str, Any], prefix: str) -> None:
        self._parameters = parameters
        self._prefix = prefix

    def node(self, node: Node) -> str:
        if isinstance(node, Condition):
            return f"({self._condition(node)})"
        if isinstance(node, Not):
            return f"(NOT {self.node(node.part)})"
        parts = [self.node(part) for part in node.parts]
        if isinstance(node, Every):
            return f"({' AND '.join(parts)})" if parts else "true"
        return f"({' OR '.join(parts)})" if parts else "false"

    def _given(self, value: Any, kind: str) -> str:
        name = f"{self._prefix}{len(self._parameters)}"
        self._parameters[name] = value
        return f"%({name})s::{kind}"

    def _condition(self, condition: Condition) -> str:
        key, operator, operand = condition.key, condition.operator, condition.operand
        value = f"(c.metadata -> {self._given(escaped(key), 'text')})"
        if operator == "$exists":
            there = f"coalesce(jsonb_typeof({value}) <> 'null', false)"
            return there if operand else f"NOT {there}"
        if operator in _COMPARED:
            return self._ordered(value, operator, operand)
        if operator == "$eq":
            return self._equal(key, operand)
        if operator == "$ne":
            return f"{self._typed(value, [operand])} AND NOT {self._equal(key, operand)}"
        if operator == "$in":
            return self._member(key, value, operand)
        if operator == "$nin":
            kind = f"coalesce(jsonb_typeof({value}) <> 'null', false)" if not operand else self._typed(value, operand)
            return f"{kind} AND NOT {self._member(key, value, operand)}"
        return self._of_lists_and_texts(key, value, operator, operand)

    def _of_lists_and_texts(self, key: str, value: str, operator: str, operand: Any) -> str:
        if operator == "$contains":
            member = f"{self._list(value)} AND {self._equal(key, operand)}"
            return f"({member}) OR {self._substring(value, operand)}"
        if operator == "$text":
            return self._substring(value, operand)
        if operator == "$itext":
            return self._substring(value, operand, folded=True)
        if operator == "$any":
            return f"{self._list(value)} AND {self._member(key, value, operand)}"
        if operator == "$all":
            every = [f"({self._equal(key, one)})" for one in operand]
            return " AND ".join([self._list(value), *every])
        empty = f"""({value} IN ('[]', '""'))"""
        return f"coalesce(jsonb_typeof({value}) <> 'null' AND {empty} = {self._given(bool(operand), 'boolean')}, false)"

    def _list(self, value: str) -> str:
        return f"coalesce(jsonb_typeof({value}) = 'array', false)"

    def _equal(self, key: str, operand: Any) -> str:
        """The condition that the value is the operand, or a list that has it."""
        said = _json(operand)
        if said is None:
            return "false"
        own, member = f"{{{metadata_json({key: None})[1:-5]}{said}}}", f"{{{metadata_json({key: None})[1:-5]}[{said}]}}"
        return f"(c.metadata @> {self._given(own, 'jsonb')} OR c.metadata @> {self._given(member, 'jsonb')})"

    def _member(self, key: str, value: str, operand: Sequence[Any]) -> str:
        if len(operand) <= FEW:
            return f"({' OR '.join(self._equal(key, one) for one in operand)})" if operand else "false"
        choices = self._given([said for one in operand if (said := _json(one)) is not None], "jsonb[]")
        items = f"EXISTS (SELECT FROM jsonb_array_elements({value}) AS item WHERE item = ANY ({choices}))"
        own = f"coalesce({value} = ANY ({choices}), false)"
        return f"CASE WHEN jsonb_typeof({value}) = 'array' THEN {items} ELSE {own} END"

    def _typed(self, value: str, operands: Sequence[Any]) -> str:
        """The condition that the value is a list, or of the JSON type of an operand."""
        kinds = sorted({"array", *(kind for one in operands if (kind := _kind(one)) is not None)})
        return f"coalesce(jsonb_typeof({value}) = ANY ({self._given(kinds, 'text[]')}), false)"

    def _ordered(self, value: str, operator: str, operand: Any) -> str:
        sign, kind = _COMPARED[operator], _kind(operand)
        if kind == "number" and not _is_nan(operand):
            given = self._given(_decimal(operand), "numeric")
            return f"CASE WHEN jsonb_typeof({value}) = 'number' THEN ({value})::numeric {sign} {given} ELSE false END"
        if kind == "string":
            given = self._given(escaped(operand), "text")
            told = f"({value} #>> '{{}}') COLLATE \"C\" {sign} {given}"
            return f"CASE WHEN jsonb_typeof({value}) = 'string' THEN {told} ELSE false END"
        return "false"

    def _substring(self, value: str, operand: Any, folded: bool = False) -> str:
        if not isinstance(operand, str):
            return "false"
        text, wanted = f"({value} #>> '{{}}')", operand.casefold() if folded else operand
        if folded:
            text = self._folded(text, wanted)
        found = f'strpos({text} COLLATE "C", {self._given(escaped(wanted), "text")}) > 0'
        return f"CASE WHEN jsonb_typeof({value}) = 'string' THEN {found} ELSE false END"

    def _folded(self, text: str, wanted: str) -> str:
        """A text with those letters casefolded whose folding has a letter of `wanted`; the others do not matter."""
        letters = set(wanted)
        single = {letter: folded for letter, folded in _folding().items() if letters.intersection(folded)}
        alone = {letter: folded for letter, folded in single.items() if len(folded) == 1}
        if alone:
            given = self._given("".join(alone), "text"), self._given("".join(alone.values()), "text")
            text = f"translate({text}, {given[0]}, {given[1]})"
        for letter, folded in single.items():
            if len(folded) > 1:
                text = f"replace({text}, {self._given(letter, 'text')}, {self._given(folded, 'text')})"
        return text


@cache
def _folding() -> dict[str, str]:
    """The letters that casefold changes, in this Python's Unicode version."""
    return {letter: letter.casefold() for letter in map(chr, range(0x110000)) if letter.casefold() != letter}


def _kind(operand: Any) -> str | None:
    """The JSON type of the values that an operand can equal."""
    if isinstance(operand, bool):
        return "boolean"
    if isinstance(operand, str):
        return "string"
    return "number" if isinstance(operand, Real) else None


def _json(operand: Any) -> str | None:
    """An operand as JSON; None where no value equals it."""
    kind = _kind(operand)
    if kind is None:
        return None
    if kind == "number":
        return _said(operand) if _is_finite(operand) else None
    return metadata_json({"": operand})[4:-1]


def _is_nan(operand: Any) -> bool:
    return bool(operand != operand)


def _decimal(operand: Any) -> str:
    """A number in the syntax of PostgreSQL's numeric."""
    return _said(operand) if _is_finite(operand) else ("Infinity" if operand > 0 else "-Infinity")


def _is_finite(operand: Any) -> bool:
    return isinstance(operand, Rational) or math.isfinite(operand)


def _said(operand: Any) -> str:
    try:
        return number_text(_number(operand))
    except ValueError as error:
        raise FilterNotSupportedError("a number in a filter has more digits than Python writes out") from error


def _number(operand: Any) -> int | float:
    if isinstance(operand, Integral):
        return int(operand)
    try:
        value = float(operand)
    except OverflowError:
        value = math.inf
    if isinstance(operand, float) or value == operand:
        return value
    raise FilterNotSupportedError(f"a number in a filter is an int or a float, not a {type(operand).__name__}")
