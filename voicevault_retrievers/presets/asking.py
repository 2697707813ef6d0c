"""What a preset makes of a query: its route, its wordings, and the fusion of what is found for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from voicevault_retrievers.channel import Rewriter
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import METHODS, Method, method_named, options_of
from voicevault_retrievers.presets.sections import choice, made, section
from voicevault_retrievers.query import (
    RM3,
    AcronymExpansion,
    CompoundExpansion,
    RuleExpansion,
    RuleRouter,
    SpellingExpansion,
    SynonymExpansion,
    Together,
)
from voicevault_retrievers.types import Route


def router(data: Any) -> Rewriter | None:
    """The router of a section; None without one."""
    if data is None or data is False:
        return None
    routes = tuple(route.value for route in Route)
    given = {"method": data} if isinstance(data, str) else data
    options = dict(section("route", given, "method", "simple_fallback", *routes))
    make = choice("routing method", options.pop("method", "rules"), {"rules": RuleRouter})
    return make(options, simple_fallback=options.pop("simple_fallback", False))


def expansion(data: Any) -> Rewriter | None:
    """The expansion of a section, or several together; None without one."""
    if data is None or data is False:
        return None
    if isinstance(data, list):
        return Together([part for one in data if (part := expansion(one)) is not None])
    options = dict(section("expansion", data, "method", *chain.from_iterable(_EXPANSION_OPTIONS.values())))
    method = options.pop("method", "rules")
    make = choice("expansion method", method, _EXPANSIONS)
    return made(make, section(f"expansion {method!r}", options, *_EXPANSION_OPTIONS[method]))


def _synonyms(file: str | None = None, synonyms: Any = (), size: int = 3) -> Rewriter:
    return SynonymExpansion(synonyms, size) if file is None else SynonymExpansion.from_file(file, size)


def fusion(data: Any) -> tuple[Mapping[str, Any], Method]:
    """The section, and the method that it describes: beside the keys of all methods it has its own options."""
    name = data.get("method", "standardised") if isinstance(data, Mapping) else "standardised"
    shared = ("method", "depth", "weights")
    known = (*shared, *options_of(name))
    for key in data if isinstance(data, Mapping) else ():
        owners = [method for method in METHODS if key in options_of(method)]
        if key not in known and owners:
            raise ConfigError(
                f"fusion: {key!r} is not of {name!r}, but of {', '.join(owners)}: say `method: {owners[0]}`"
            )
    fusion = section("fusion", data, *known)
    return fusion, method_named(name, {key: value for key, value in fusion.items() if key not in shared})


_EXPANSIONS: dict[str, Callable[..., Rewriter]] = {
    "acronyms": AcronymExpansion,
    "compounds": CompoundExpansion,
    "rm3": RM3,
    "rules": RuleExpansion,
    "spelling": SpellingExpansion,
    "synonyms": _synonyms,
}
_EXPANSION_OPTIONS = {
    "acronyms": ("least", "timeout"),
    "compounds": ("language", "least", "timeout"),
    "rm3": ("documents", "terms", "original"),
    "rules": ("size",),
    "spelling": ("timeout",),
    "synonyms": ("file", "synonyms", "size"),
}
