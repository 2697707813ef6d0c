"""Deep copies of data that JSON can hold."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

T = TypeVar("T")

ATOMS = frozenset({str, int, float, bool, type(None)})
"""The types of values that never change, and need no copy."""


def duplicate(value: T) -> T:
    """`copy.deepcopy`, several times as fast for dicts and lists of strings, numbers and the like. Keys are shared."""
    try:
        return _copied(value)  # type: ignore[no-any-return]
    except RecursionError:  # a value that holds itself
        return copy.deepcopy(value)


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return {key: one if type(one) in ATOMS else _copied(one) for key, one in value.items()}
    if kind is list:
        return [one if type(one) in ATOMS else _copied(one) for one in value]
    return copy.deepcopy(value)
