"""An immutable dict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from voicevault_retrievers.errors import ConfigError


class FrozenDict(dict[str, Any]):
    """An immutable dict that pickles, copies and compares like a dict. Nested values are not frozen."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this mapping is part of an immutable value; make a new one with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return (FrozenDict, (dict(self),))

    def __copy__(self) -> FrozenDict:
        return self

    def __hash__(self) -> int:  # type: ignore[override]  # dict sets it to None
        return hash(tuple(sorted(self)))


def positive(name: str, weights: Mapping[str, float] | None) -> FrozenDict | None:
    """Return the weights where they are finite numbers above 0, or None; ConfigError otherwise."""
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise ConfigError(f"{name} are in a mapping to their weights, not {weights!r}")
    if not all(isinstance(weight, int | float) and 0.0 < weight < math.inf for weight in weights.values()):
        raise ConfigError(f"{name} have weights above 0, not {dict(weights)!r}")
    return FrozenDict(weights)
