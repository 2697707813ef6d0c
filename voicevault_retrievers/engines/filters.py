"""Translation of the portable filter into the filter languages of vector stores.

A store receives a clause that passes whatever the portable filter passes, and often more: conditions that its language
cannot express, or evaluates differently, are left out. The results still have to be checked against the filter, unless
the translation is exact.

Every language leaves out keys that are not ASCII identifiers, numbers beyond 2**53, unprintable strings, lists of more
than 100 values, and filters of more than 100 conditions: long ones crash Chroma.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from voicevault_retrievers.core.filters import Condition, Every, Filter, Node, Not, Some, parse

Clause: TypeAlias = Any
Scalar: TypeAlias = str | int | float | bool

MAX_CONDITIONS = 100
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The metadata keys that are safe in every language."""

_EXACT = 2**53
ORDERED = ("$gt", "$gte", "$lt", "$lte")


class Bound(Enum):
    """What passes where there is no clause."""

    EVERYTHING = "everything"
    NOTHING = "nothing"


class Translation(NamedTuple):
    """A filter in a store's language: `clause` passes at least what the filter passes, and None passes everything."""

    clause: Clause | None
    exact: bool
    """Whether the clause passes nothing else."""


class Language:
    """A filter language. Each clause passes at least what is asked; this base class leaves out every condition.

    `reserved` are the keys under which the store, or its framework, writes metadata of its own: conditions on them are
    left out. `exact` are the methods whose clauses pass nothing else, `ordered` those of numbers.
    """

    exact: frozenset[str] = frozenset()

    def __init__(self, reserved: Sequence[str] = ()) -> None:
        self.reserved = frozenset(reserved)

    def equal(self, key: str, operand: Scalar) -> Clause:
        """A clause for `$eq`."""
        return Bound.EVERYTHING

    def unequal(self, key: str, operand: Scalar) -> Clause:
        """A clause for what `$eq` does not pass, including chunks without the key."""
        return Bound.EVERYTHING

    def other(self, key: str, operand: Scalar) -> Clause:
        """A clause for `$ne`."""
        return self.unequal(key, operand)

    def among(self, key: str, texts: Sequence[str], negated: bool) -> Clause:
        """A clause for what equals one of more than `MAX_CONDITIONS` texts, or, where `negated`, does not."""
        return Bound.EVERYTHING

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        """A clause for `$gt`, `$gte`, `$lt` or `$lte`."""
        return Bound.EVERYTHING

    def exists(self, key: str, wanted: bool) -> Clause:
        """A clause for `$exists`."""
        return Bound.EVERYTHING

    def is_exact(self, method: str, operand: Scalar) -> bool:
        """Whether the clause of one of the methods above passes nothing else for an operand."""
        return method in self.exact and not (method == "ordered" and isinstance(operand, str))

    def every(self, clauses: Sequence[Clause]) -> Clause:
        """A clause for what all clauses pass."""
        return {"$and": list(clauses)}

    def some(self, clauses: Sequence[Clause]) -> Clause:
        """A clause for what at least one clause passes."""
        return {"$or": list(clauses)}


class Chroma(Language):
    """Chroma's language: `$eq` is not membership, `$contains` distinguishes 1 from 1.0, and `$ne` passes every list.

    Chroma compares a whole number with the operand's whole part: it takes 2 and 2.5 for equal.
    """

    def equal(self, key: str, operand: Scalar) -> Clause:
        if not _chroma_has_lists():
            return {key: {"$eq": operand}}
        members = [operand]
        if not isinstance(operand, str | bool):
            members = [float(operand), int(operand)] if float(operand).is_integer() else [operand]
        return self.some([{key: {"$eq": operand}}, *({key: {"$contains": member}} for member in members)])

    def unequal(self, key: str, operand: Scalar) -> Clause:
        fraction = isinstance(operand, float) and not operand.is_integer()
        return Bound.EVERYTHING if fraction else {key: {"$ne": operand}}

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        if isinstance(operand, str):
            return Bound.EVERYTHING
        return {key: {operator: math.ceil(operand) if operator in ("$lt", "$lte") else math.floor(operand)}}


class Qdrant(Language):
    """Qdrant's language; `prefix` is the path of metadata in the payload.

    Qdrant's match distinguishes 1 from 1.0, so numbers become ranges.
    """

    exact = frozenset({"equal", "unequal", "among"})

    def __init__(self, prefix: str = "", reserved: Sequence[str] = ()) -> None:
        super().__init__(reserved)
        self.prefix = prefix
        self.models: Any = import_module("qdrant_client.models")

    def equal(self, key: str, operand: Scalar) -> Clause:
        if isinstance(operand, str | bool):
            return self._field(key, match=self.models.MatchValue(value=operand))
        return self._field(key, range=self.models.Range(gte=operand, lte=operand))

    def unequal(self, key: str, operand: Scalar) -> Clause:
        return self.models.Filter(must_not=[self.equal(key, operand)])

    def among(self, key: str, texts: Sequence[str], negated: bool) -> Clause:
        found = self._field(key, match=self.models.MatchAny(any=list(texts)))
        return self.models.Filter(must_not=[found]) if negated else found

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        if isinstance(operand, str):
            return Bound.EVERYTHING
        return self._field(key, range=self.models.Range(**{operator[1:]: operand}))

    def exists(self, key: str, wanted: bool) -> Clause:
        if wanted:  # an empty list exists, but counts as empty for Qdrant
            return Bound.EVERYTHING
        return self.models.IsEmptyCondition(is_empty=self.models.PayloadField(key=self.prefix + key))

    def is_exact(self, method: str, operand: Scalar) -> bool:
        """Where the payload holds values of this kind unchanged: lone surrogates become question marks."""
        unchanged = not isinstance(operand, float) and (not isinstance(operand, str) or "?" not in operand)
        return unchanged and super().is_exact(method, operand)

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return self.models.Filter(must=list(clauses))

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return self.models.Filter(should=list(clauses))

    def _field(self, key: str, **test: Any) -> Clause:
        return self.models.FieldCondition(key=self.prefix + key, **test)


def nothing_passes(where: Filter | None) -> bool:
    """Whether a filter passes nothing, whatever the metadata, such as empty access rights."""
    return _translated(parse(where), Language()).clause is Bound.NOTHING


def translate(where: Filter | None, language: Language) -> Translation:
    """A filter in a store's language. Where `nothing_passes`, there is no clause, which is not exact."""
    node = parse(where)
    if size_of(node) > MAX_CONDITIONS:
        return Translation(None, False)
    clause, exact = _translated(node, language)
    if isinstance(clause, Bound):
        return Translation(None, exact and clause is Bound.EVERYTHING)
    return Translation(clause, exact)


def _translated(node: Node, language: Language, negated: bool = False) -> Translation:
    """A clause, or a bound, that passes at least what `node` passes, or, where `negated`, what it does not pass."""
    if isinstance(node, Not):
        return _translated(node.part, language, not negated)
    if isinstance(node, Condition):
        return _condition(node, language, negated)
    parts = [_translated(part, language, negated) for part in node.parts]
    if isinstance(node, Every) is not negated:
        return _joined(parts, Bound.NOTHING, Bound.EVERYTHING, language.every)
    return _joined(parts, Bound.EVERYTHING, Bound.NOTHING, language.some)


def _joined(
    parts: Sequence[Translation], absorbing: Bound, neutral: Bound, join: Callable[[Sequence[Clause]], Clause]
) -> Translation:
    decisive = [part.exact for part in parts if part.clause is absorbing]
    if decisive:
        return Translation(absorbing, any(decisive))
    clauses = [part.clause for part in parts if part.clause is not neutral]
    clause = join(clauses) if len(clauses) > 1 else clauses[0] if clauses else neutral
    return Translation(clause, all(part.exact for part in parts))


def _condition(condition: Condition, language: Language, negated: bool) -> Translation:
    key, operator, operand = condition.key, condition.operator, condition.operand
    simpler = _in_simpler_ones(condition, negated)
    if simpler is not None:
        clause, exact = _translated(simpler, language, negated)
        return Translation(clause, exact and operator in ("$in", "$nin"))
    if not KEY.fullmatch(key) or key in language.reserved:
        return _WIDEST
    many = are_texts(operand) and (operator == "$in" or (operator in ("$nin", "$any") and not negated))
    if not many and operator != "$exists" and not is_portable(operand):
        return _WIDEST
    if many:
        clause = language.among(key, operand, negated or operator == "$nin")
        exact = operator == "$in" and all(language.is_exact("among", text) for text in operand)
    elif operator == "$exists":
        clause, exact = language.exists(key, bool(operand) is not negated), language.is_exact("exists", operand)
    elif operator == "$eq" and negated:
        clause, exact = language.unequal(key, operand), language.is_exact("unequal", operand)
    elif operator == "$eq":
        clause, exact = language.equal(key, operand), language.is_exact("equal", operand)
    elif operator == "$ne" and not negated:
        clause, exact = language.other(key, operand), language.is_exact("other", operand)
    elif operator in ORDERED and not negated and not isinstance(operand, bool):
        clause, exact = language.ordered(key, operator, operand), language.is_exact("ordered", operand)
    else:
        return _WIDEST
    return Translation(clause, exact and not isinstance(clause, Bound))


_WIDEST = Translation(Bound.EVERYTHING, False)


def _in_simpler_ones(condition: Condition, negated: bool) -> Node | None:
    """Simpler conditions that pass at least as much as one on a list of values; None for another condition.

    Those for `$in` and `$nin` pass nothing else.
    """
    key, operator, operand = condition.key, condition.operator, condition.operand
    if operator == "$contains" and not negated and not isinstance(operand, str):
        return Condition(key, "$eq", operand)
    if operator not in ("$in", "$nin", "$any", "$all") or len(operand) > MAX_CONDITIONS:
        return None
    if operator == "$in" or (operator == "$any" and not negated):
        return Some(tuple(Condition(key, "$eq", choice) for choice in operand))
    if operator == "$all" and not negated:
        return Every(tuple(Condition(key, "$eq", choice) for choice in operand))
    if operator == "$nin" and not negated and len({kind_of(choice) for choice in operand}) <= 1:
        others = tuple(Condition(key, "$ne", choice) for choice in operand)
        return Every(others) if others else Condition(key, "$exists", True)
    return None


def kind_of(operand: Any) -> type:
    """The kind of a value; values of one kind can be compared."""
    return float if type(operand) is int else type(operand)


def keys_of(node: Node) -> frozenset[str]:
    """The metadata keys that a node's conditions are on."""
    if isinstance(node, Not):
        return keys_of(node.part)
    if isinstance(node, Condition):
        return frozenset([node.key])
    return frozenset().union(*map(keys_of, node.parts))


def is_portable(operand: Any) -> bool:
    """Whether every store interprets a value in the same way."""
    if type(operand) is str:
        return operand.isprintable()  # no NUL and no lone surrogate, which databases refuse
    return type(operand) is bool or (type(operand) in (int, float) and abs(operand) < _EXACT)


def are_texts(operand: Any) -> bool:
    """Whether an operand is a list of texts that every store interprets in the same way."""
    return isinstance(operand, list) and all(type(each) is str and is_portable(each) for each in operand)


def size_of(node: Node) -> int:
    """The number of conditions that a node expands to."""
    if isinstance(node, Not):
        return size_of(node.part)
    if isinstance(node, Condition):
        many = isinstance(node.operand, Sequence) and not isinstance(node.operand, str)
        return len(node.operand) if many and len(node.operand) <= MAX_CONDITIONS else 1
    return sum(map(size_of, node.parts))


@cache
def _chroma_has_lists() -> bool:
    """Whether the installed Chroma stores lists; it does since it has `$contains`."""
    try:
        import_module("chromadb.api.types").validate_where({"key": {"$contains": "member"}})
    except ValueError:
        return False
    return True
