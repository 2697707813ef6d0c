"""Facets: what filters ask of metadata as numbers in one list column, which array functions of SQL search.

The numbers are digests, so that a filter in the database's language contains no text of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from voicevault_retrievers.engines.filters import Clause, Language, Scalar

_RESERVED = 1024


def number_of(*parts: str) -> int:
    """A number of 63 bits for some strings; numbers below `_RESERVED` are left for other facets."""
    told = "\0".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "big") % (2**63 - _RESERVED) + _RESERVED


def facet(key: str, value: Any) -> int:
    """The facet that a key has a value, or has it in its list."""
    return number_of("is", key, *_told(value))


def kind(key: str, value: Any) -> int:
    """The facet that a key's value is comparable with this one."""
    return number_of("kind", key, _told(value)[0])


def present(key: str) -> int:
    """The facet that a key has a value."""
    return number_of("has", key)


def of_metadata(metadata: Mapping[str, Any]) -> list[int]:
    """The facets of metadata, each once."""
    found: dict[int, None] = {}
    for key, value in metadata.items():
        if value is None:
            continue
        found[present(key)] = None
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | bool | int | float):
                found[facet(key, one)] = None
                found[kind(key, one)] = None
        if isinstance(value, list):  # `$ne` compares a list with values of every kind
            found.update({kind(key, sample): None for sample in ("", 0, True)})
    return list(found)


def _told(value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        return "text", value
    if isinstance(value, bool):
        return "flag", str(value)
    whole = isinstance(value, int) or value.is_integer()
    return "number", str(int(value)) if whole else repr(value)


class Facets(Language):
    """A language of expressions over the column `facets`.

    Values and their kinds are members of a list, so lists of metadata need no special case.
    """

    exact = frozenset({"equal", "unequal", "other", "exists"})

    def equal(self, key: str, operand: Scalar) -> Clause:
        return f"array_contains(facets, {facet(key, operand)})"

    def unequal(self, key: str, operand: Scalar) -> Clause:
        return f"(not {self.equal(key, operand)})"

    def other(self, key: str, operand: Scalar) -> Clause:
        return f"({self._comparable(key, operand)} and not {self.equal(key, operand)})"

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        return self._comparable(key, operand)

    def exists(self, key: str, wanted: bool) -> Clause:
        found = f"array_contains(facets, {present(key)})"
        return found if wanted else f"(not {found})"

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return f"({' and '.join(clauses)})"

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return f"({' or '.join(clauses)})"

    def _comparable(self, key: str, operand: Scalar) -> Clause:
        return f"array_contains(facets, {kind(key, operand)})"
