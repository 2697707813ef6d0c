"""What the sections of a preset share: known keys, choices by name, and `${NAME}`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError, NotIndexedError, unknown
from voicevault_retrievers.models.weights import BACKENDS
from voicevault_retrievers.pipeline.presets.structure import graph_over

T = TypeVar("T")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def section(kind: str, data: Any, *known: str) -> Mapping[str, Any]:
    """A mapping with none but known keys; None is an empty one."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{kind} is a mapping of options, not a {type(data).__name__}")  # which may hold a password
    for key in data:
        if key not in known:
            raise unknown(f"key in {kind}", key, known)
    return data


def listed(data: Any) -> list[Any]:
    """The stages as a list; None is an empty one."""
    if data is not None and not isinstance(data, list):
        raise ConfigError(f"stages is a list, each entry a name with its options, not a {type(data).__name__}")
    return data or []


def known_backend(name: Any) -> str:
    """A backend by name, or "auto"."""
    return choice("backend", name, {backend: backend for backend in ("auto", *BACKENDS)})


def choice(kind: str, name: Any, choices: Mapping[str, T]) -> T:
    """One of some choices by its name; an error names the nearest."""
    if not isinstance(name, str) or name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


def made(make: Callable[..., T], options: Mapping[str, Any]) -> T:
    """What is made with these options; ConfigError where it does not take one."""
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"{make.__name__} does not take {sorted(map(str, options))}: {error}") from error


def channel_of(base: Any, name: str, options: Mapping[str, Any]) -> Any:
    """The channel of a base by its name, the graph's over a `store` where that is among the options.

    Raises NotIndexedError where the base has none such, and ConfigError where it does not take the options.
    """
    make = partial(graph_over, base=base) if name == "graph" and "store" in options else getattr(base, name, None)
    if make is None:
        found = f"{name} is made of a knowledge base, which a {type(base).__name__} is not"
        if name in ("graph", "references"):
            raise NotIndexedError(f"{found}: give graph= a graph store, or name its address as `store` in the preset")
        raise NotIndexedError(f"{found}: search a knowledge base")
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"{name} does not take {sorted(options)}: {error}") from error


def filled(value: Any) -> Any:
    """The value with `${NAME}` in its texts replaced from the environment."""
    if isinstance(value, str):
        text = _VARIABLE.sub(_variable, value)
        whole_value = _VARIABLE.fullmatch(value) is not None
        return require("yaml", extra="cli").safe_load(text) if whole_value else text
    if isinstance(value, Mapping):
        return {key: filled(item) for key, item in value.items()}
    return [filled(item) for item in value] if isinstance(value, list) else value


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise ConfigError(f"{match[0]} is in the configuration, and the environment has no {match[1]}")
    return os.environ[match[1]]
