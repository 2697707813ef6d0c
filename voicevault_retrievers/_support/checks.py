"""Checks of options, each with its error message."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

from voicevault_retrievers._support.duplicates import duplicate
from voicevault_retrievers.errors import ConfigError


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """Return the value where it is a whole number of at least `least`; ConfigError otherwise."""
    try:
        found = None if isinstance(value, bool) else index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise ConfigError(f"{name} is a whole number of at least {least}, not {value!r}")
    return found


def whole_or_none(name: str, value: Any, *, least: int = 1) -> int | None:
    """Return the value where it is None or a whole number of at least `least`; ConfigError otherwise."""
    return None if value is None else whole(name, value, least=least)


def number(name: str, value: Any, *, least: float = 0.0) -> float:
    """Return the value where it is a finite number of at least `least`; ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise ConfigError(f"{name} is a number of at least {least:g}, not {value!r}")
    return value


def seconds_or_none(name: str, value: Any) -> float | None:
    """Return the value where it is None or a finite number above 0; ConfigError otherwise."""
    if value is None or (number(name, value) and value > 0):
        return value  # type: ignore[no-any-return]  # `number` has checked the type
    raise ConfigError(f"{name} is a number of seconds above 0, or None, not {value!r}")


def flag(name: str, value: Any) -> bool:
    """Return the value where it is true or false; ConfigError otherwise."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is true or false, not {value!r}")
    return value


def weights_or_none(value: Any) -> Mapping[str, Any] | None:
    """Return the value where it is None or a mapping, as channels' weights are; ConfigError otherwise."""
    if not isinstance(value, Mapping | None):
        raise ConfigError(
            f"weights is a mapping of channel names to numbers, such as {{'bm25': 0.5, 'dense': 0.5}}, not {value!r}"
        )
    return value


def key_or_none(name: str, value: Any) -> str | None:
    """Return the value where it is None or a metadata key, which may be a dotted path; ConfigError otherwise."""
    if value is None or (isinstance(value, str) and all(value.split("."))):
        return value
    raise ConfigError(f"{name} is a metadata key, such as 'page', or a dotted path, or None, not {value!r}")


def header(name: str, value: Any) -> str:
    """Return the value where an HTTP header can hold it (printable ASCII, no spaces). The error does not repeat it."""
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]+", value):
        raise ConfigError(
            f"{name} is a string of printable ASCII characters without spaces: see that no line end is in it"
        )
    return value


def id_list(ids: Iterable[str]) -> list[str]:
    """The ids; ConfigError for what is no string, and for a single string, which would be taken letter by letter."""
    if isinstance(ids, str):
        raise ConfigError(f"ids is a list of strings; a single id goes in a list: [{ids!r}]")
    found = list(ids)
    for one in found:
        if not isinstance(one, str):
            raise ConfigError(f"ids are strings, not {one!r}")
    return found


def metadata_copy(whose: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of metadata; ConfigError where they hold what cannot be copied."""
    try:
        return duplicate(dict(metadata))
    except TypeError as error:  # such as a lock, or a generator
        raise ConfigError(
            f"the metadata of {whose} hold what cannot be copied, so keep it elsewhere: {error}"
        ) from error
