"""An immutable dict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from voicevault_retrievers.errors import ConfigError


class FrozenDict(dict[str, Any]):
    """An immutable dict that pickles and copies like a dict. Nested values are not frozen.

    It equals mappings of equal values, where an array is equal as a whole, and NaN equals NaN.
    """

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this mapping is part of an immutable value; make a new one with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return (FrozenDict, (dict(self),))

    def __copy__(self) -> FrozenDict:
        return self

    def __eq__(self, other: object) -> bool:
        return _same(self, other) if isinstance(other, Mapping) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]  # dict sets it to None
        return hash(frozenset(self))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and _same(one.tolist(), other.tolist())
    try:
        return bool(one == other or (one != one and other != other))
    except (TypeError, ValueError):  # it has no single truth value, such as an array beside a number
        return False


def positive(name: str, weights: Mapping[str, float] | None) -> FrozenDict | None:
    """Return the weights where they are finite numbers above 0, or None; ConfigError otherwise."""
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise ConfigError(f"{name} are in a mapping to their weights, not {weights!r}")
    if not all(isinstance(weight, int | float) and 0.0 < weight < math.inf for weight in weights.values()):
        raise ConfigError(f"{name} have weights above 0, not {dict(weights)!r}")
    return FrozenDict(weights)
