"""A dict that cannot be changed."""

from __future__ import annotations

from typing import Any


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed; it pickles, copies and compares as a dict. Nested values are not frozen."""

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
