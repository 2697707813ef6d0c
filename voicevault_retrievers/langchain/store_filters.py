"""The portable filter in the languages of LangChain's vector stores.

A store is given a filter that passes whatever the portable one passes, and often more: what its language cannot say,
or says differently, is left out. What it then finds is still to be checked.

| store | given |
|---|---|
| InMemoryVectorStore, FAISS | the whole filter, as a function; FAISS applies it to all of its vectors |
| Chroma | equality, `$ne $in $nin`; order of numbers |
| QdrantVectorStore | the same, and `{"$exists": false}` |
| PGVector | `$eq $in $ne $nin $exists`, order of numbers and strings; nothing under `$not` but `$exists` |
| any other, and subclasses of these | nothing |

Left out everywhere are keys that are not ASCII identifiers, numbers that a double cannot tell apart, unprintable
strings, lists of more than 100 values, and filters of more than 100 conditions: Chroma does not survive long ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from langchain_core.vectorstores import VectorStore

from voicevault_retrievers.filters import Condition, Every, Filter, Node, Not, Some, parse
from voicevault_retrievers.langchain.stores import kinds_of

Clause: TypeAlias = Any
Scalar: TypeAlias = str | int | float | bool

MAX_CONDITIONS = 100
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXACT = 2**53
_ORDERED = ("$gt", "$gte", "$lt", "$lte")


class Bound(Enum):
    """What passes where there is no clause."""

    EVERYTHING = "everything"
    NOTHING = "nothing"


class Language:
    """What a store can say. Each clause passes at least what is asked; this one says nothing."""

    def equal(self, key: str, operand: Scalar) -> Clause:
        """Passes what `$eq` passes."""
        return Bound.EVERYTHING

    def unequal(self, key: str, operand: Scalar) -> Clause:
        """Passes what `$eq` does not, so also what lacks the key."""
        return Bound.EVERYTHING

    def other(self, key: str, operand: Scalar) -> Clause:
        """Passes what `$ne` passes."""
        return self.unequal(key, operand)

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        """Passes what `$gt`, `$gte`, `$lt` or `$lte` passes."""
        return Bound.EVERYTHING

    def exists(self, key: str, wanted: bool) -> Clause:
        """Passes what `$exists` passes."""
        return Bound.EVERYTHING

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return {"$and": list(clauses)}

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return {"$or": list(clauses)}


class Chroma(Language):
    """Its `$eq` is not membership, its `$contains` tells 1 from 1.0, and its `$ne` passes every list.

    It compares a whole number with the operand's whole part, so that 2 is not below 2.5, and equals it.
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
    """Its match tells 1 from 1.0, so numbers are said as a range; keys are paths below the payload's metadata."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.models: Any = import_module("qdrant_client.models")

    def equal(self, key: str, operand: Scalar) -> Clause:
        if isinstance(operand, str | bool):
            return self._field(key, match=self.models.MatchValue(value=operand))
        return self._field(key, range=self.models.Range(gte=operand, lte=operand))

    def unequal(self, key: str, operand: Scalar) -> Clause:
        clause = self.equal(key, operand)
        return clause if clause is Bound.EVERYTHING else self.models.Filter(must_not=[clause])

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        if isinstance(operand, str):
            return Bound.EVERYTHING
        return self._field(key, range=self.models.Range(**{operator[1:]: operand}))

    def exists(self, key: str, wanted: bool) -> Clause:
        if wanted or key in _QDRANT_ADDS:  # an empty list exists, but Qdrant calls it empty
            return Bound.EVERYTHING
        return self.models.IsEmptyCondition(is_empty=self.models.PayloadField(key=f"{self.root}.{key}"))

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return self.models.Filter(must=list(clauses))

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return self.models.Filter(should=list(clauses))

    def _field(self, key: str, **test: Any) -> Clause:
        if key in _QDRANT_ADDS:
            return Bound.EVERYTHING
        return self.models.FieldCondition(key=f"{self.root}.{key}", **test)


class Postgres(Language):
    """Its comparisons of unlike types are unknown, which no NOT turns round, and its `$nin` compares texts."""

    def equal(self, key: str, operand: Scalar) -> Clause:
        return {key: {"$eq": operand}}

    def unequal(self, key: str, operand: Scalar) -> Clause:
        return Bound.EVERYTHING

    def other(self, key: str, operand: Scalar) -> Clause:
        unsafe = isinstance(operand, bool) or str(operand).startswith("[")  # that may be the text of a list
        return Bound.EVERYTHING if unsafe else {key: {"$nin": [operand]}}

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        return {key: {operator: operand}}

    def exists(self, key: str, wanted: bool) -> Clause:
        held = {key: {"$exists": wanted}}
        return held if wanted else self.some([held, {key: {"$eq": None}}])


def nothing_passes(where: Filter | None) -> bool:
    """Whether a filter can pass nothing, whatever the metadata, such as rights that came out empty."""
    return widened(parse(where), Language()) is Bound.NOTHING


def pushed(store: VectorStore, where: Filter | None) -> dict[str, Any]:
    """What a store's search is given, by keyword, so that it passes at least what the filter passes."""
    options = _OPTIONS.get(kinds_of(store)[0])
    return options(store, parse(where)) if options is not None and where else {}


def widened(node: Node, language: Language, negated: bool = False) -> Clause:
    """A clause that passes at least what `node` passes, or, where `negated`, what it does not."""
    if isinstance(node, Not):
        return widened(node.part, language, not negated)
    if isinstance(node, Condition):
        return _condition(node, language, negated)
    parts = [widened(part, language, negated) for part in node.parts]
    if isinstance(node, Every) is not negated:
        return _joined(parts, Bound.NOTHING, Bound.EVERYTHING, language.every)
    return _joined(parts, Bound.EVERYTHING, Bound.NOTHING, language.some)


def _joined(
    parts: Sequence[Clause], absorbing: Bound, neutral: Bound, join: Callable[[Sequence[Clause]], Clause]
) -> Clause:
    if any(part is absorbing for part in parts):
        return absorbing
    said = [part for part in parts if part is not neutral]
    return join(said) if len(said) > 1 else said[0] if said else neutral


def _condition(condition: Condition, language: Language, negated: bool) -> Clause:
    key, operator, operand = condition.key, condition.operator, condition.operand
    simpler = _in_simpler_ones(condition, negated)
    if simpler is not None:
        return widened(simpler, language, negated)
    if not _KEY.fullmatch(key):
        return Bound.EVERYTHING
    if operator == "$exists":
        return language.exists(key, bool(operand) is not negated)
    if not _said_alike(operand):
        return Bound.EVERYTHING
    if operator == "$eq":
        return (language.unequal if negated else language.equal)(key, operand)
    if operator == "$ne" and not negated:
        return language.other(key, operand)
    if operator in _ORDERED and not negated and not isinstance(operand, bool):
        return language.ordered(key, operator, operand)
    return Bound.EVERYTHING


def _in_simpler_ones(condition: Condition, negated: bool) -> Node | None:
    """Conditions that pass at least as much as one on a list of values; None where it is not one."""
    key, operator, operand = condition.key, condition.operator, condition.operand
    if operator == "$contains" and not negated and not isinstance(operand, str):
        return Condition(key, "$eq", operand)
    if operator not in ("$in", "$nin", "$any", "$all") or len(operand) > MAX_CONDITIONS:
        return None
    if operator == "$in" or (operator == "$any" and not negated):
        return Some(tuple(Condition(key, "$eq", choice) for choice in operand))
    if operator == "$all" and not negated:
        return Every(tuple(Condition(key, "$eq", choice) for choice in operand))
    if operator == "$nin" and not negated and len({_kind(choice) for choice in operand}) <= 1:
        return Every(tuple(Condition(key, "$ne", choice) for choice in operand))
    return None


def _kind(operand: Any) -> type:
    """Values of one kind can be compared."""
    return float if type(operand) is int else type(operand)


def _said_alike(operand: Any) -> bool:
    """Whether every store takes a value for what it is."""
    if type(operand) is str:
        return operand.isprintable()  # neither NUL nor half a surrogate pair, which databases refuse
    return type(operand) is bool or (type(operand) in (int, float) and abs(operand) < _EXACT)


def _size(node: Node) -> int:
    """How many conditions a node becomes."""
    if isinstance(node, Not):
        return _size(node.part)
    if isinstance(node, Condition):
        many = isinstance(node.operand, Sequence) and not isinstance(node.operand, str)
        return len(node.operand) if many and len(node.operand) <= MAX_CONDITIONS else 1
    return sum(map(_size, node.parts))


def _said(node: Node, language: Language) -> Clause | None:
    clause = widened(node, language) if _size(node) <= MAX_CONDITIONS else Bound.EVERYTHING
    return None if isinstance(clause, Bound) else clause


def _in_language(language: Language) -> Callable[[Any, Node], dict[str, Any]]:
    def options(store: Any, node: Node) -> dict[str, Any]:
        clause = _said(node, language)
        return {} if clause is None else {"filter": clause}

    return options


def _qdrant(store: Any, node: Node) -> dict[str, Any]:
    if not _KEY.fullmatch(store.metadata_payload_key):
        return {}
    language = Qdrant(store.metadata_payload_key)
    clause = _said(node, language)
    if clause is None:
        return {}
    return {"filter": clause if isinstance(clause, language.models.Filter) else language.every([clause])}


def _in_memory(store: Any, node: Node) -> dict[str, Any]:
    return {"filter": lambda document: node.passes(document.metadata)}


def _faiss(store: Any, node: Node) -> dict[str, Any]:
    return {"filter": node.passes, "fetch_k": max(1, store.index.ntotal)}


@cache
def _chroma_has_lists() -> bool:
    """Whether this version can hold lists, which came with the operator that finds their members."""
    try:
        import_module("chromadb.api.types").validate_where({"key": {"$contains": "member"}})
    except ValueError:
        return False
    return True


_QDRANT_ADDS = ("_id", "_collection_name")
"""The metadata that LangChain's Qdrant store writes into what it found, and Qdrant itself does not know."""

_OPTIONS: dict[str, Callable[[Any, Node], dict[str, Any]]] = {
    "langchain_chroma.Chroma": _in_language(Chroma()),
    "langchain_community.FAISS": _faiss,
    "langchain_core.InMemoryVectorStore": _in_memory,
    "langchain_postgres.PGVector": _in_language(Postgres()),
    "langchain_qdrant.QdrantVectorStore": _qdrant,
}
"""By package and class, exactly: a subclass may search with a filter of its own, which this one would replace."""
