"""The query sections of a preset: route, expansion and fusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Query, Route
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import METHODS, Method, method_named, options_of
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.presets.sections import (
    MODEL_OPTIONS,
    choice,
    given_model,
    made,
    section,
    text_model,
)
from voicevault_retrievers.query import (
    RM3,
    AcronymExpansion,
    CompoundExpansion,
    FollowUp,
    HyDE,
    ModelExpansion,
    ModelFollowUp,
    ModelRouter,
    RuleExpansion,
    RuleRouter,
    SpellingExpansion,
    SynonymExpansion,
    Together,
)


class PresetModelRewriter(Rewriter):
    """A rewriter that uses the language model that its preset is given."""

    def __init__(self, name: str, made: Callable[[TextModel], Rewriter], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.name = name
        self.made = made
        self.options = options
        made(CallableTextModel(str))  # raises for wrong options

    def rewrite(self, query: Query) -> Query:
        """Raise ConfigError: the preset must be built first."""
        given_model(self.name, None)
        return query

    def __repr__(self) -> str:
        return self.name


def asked(rewriter: Rewriter | None, llm: TextModel | None) -> Rewriter | None:
    """A preset's rewriter with its language model; ConfigError where it needs one and none is given."""
    if isinstance(rewriter, Together):
        return Together([one for part in rewriter.rewriters if (one := asked(part, llm)) is not None])
    return rewriter.made(given_model(rewriter.name, llm)) if isinstance(rewriter, PresetModelRewriter) else rewriter


def asks(rewriter: Rewriter | None) -> bool:
    """Whether a preset's rewriter uses the language model that the preset is given."""
    if isinstance(rewriter, Together):
        return any(map(asks, rewriter.rewriters))
    return isinstance(rewriter, PresetModelRewriter)


def router(data: Any) -> Rewriter | None:
    """The router of a section; None without one."""
    if data is None or data is False:
        return None
    routes = tuple(route.value for route in Route)
    given = {"method": data} if isinstance(data, str) else data
    known = ("method", "simple_fallback", "timeout", "prompt", *MODEL_OPTIONS, *routes)
    options = dict(section("route", given, *known))
    method = choice("routing method", options.pop("method", "rules"), {"rules": "rules", "model": "model"})
    named = {route: options.pop(route) for route in routes if route in options}
    options["routes"] = named
    return made(RuleRouter, options) if method == "rules" else _asking("route", ModelRouter, options)


def expansion(data: Any) -> Rewriter | None:
    """The expansion of a section, several combined into one; None without one."""
    if data is None or data is False:
        return None
    if isinstance(data, list):
        return Together([part for one in data if (part := expansion(one)) is not None])
    options = dict(section("expansion", data, "method", *chain.from_iterable(EXPANSION_OPTIONS.values())))
    method = options.pop("method", "rules")
    make = choice("expansion method", method, EXPANSIONS)
    options = dict(section(f"expansion {method!r}", options, *EXPANSION_OPTIONS[method]))
    if "file" in options:
        make, options["path"] = SynonymExpansion.from_file, options.pop("file")
    return _asking(method, make, options) if method in _ASKING else made(make, options)


def _asking(name: str, make: Callable[..., Rewriter], options: dict[str, Any]) -> Rewriter:
    served = text_model(options)
    asking = PresetModelRewriter(name, lambda llm: made(make, {"model": llm, **options}), options)
    return asking if served is None else asking.made(served)


def fusion(data: Any) -> tuple[Mapping[str, Any], Method]:
    """The section, and the fusion method that it describes, with the method's own options."""
    name = data.get("method", "adaptive_sum") if isinstance(data, Mapping) else "adaptive_sum"
    shared = ("method", "depth", "weights")
    known = (*shared, *options_of(name))
    for key in data if isinstance(data, Mapping) else ():
        owners = [method for method in METHODS if key in options_of(method) and method != "engine"]
        if key not in known and owners:
            raise ConfigError(
                f"fusion: {key!r} is not of {name!r}, but of {', '.join(owners)}: say `method: {owners[0]}`"
            )
    fusion = section("fusion", data, *known)
    return fusion, method_named(name, {key: value for key, value in fusion.items() if key not in shared})


EXPANSIONS: dict[str, Callable[..., Rewriter]] = {
    "acronyms": AcronymExpansion,
    "compounds": CompoundExpansion,
    "follow_up": FollowUp,
    "hyde": HyDE,
    "model": ModelExpansion,
    "model_follow_up": ModelFollowUp,
    "rm3": RM3,
    "rules": RuleExpansion,
    "spelling": SpellingExpansion,
    "synonyms": SynonymExpansion,
}
_ASKING = ("hyde", "model", "model_follow_up")
"""The expansions that use a language model."""
EXPANSION_OPTIONS = {
    "acronyms": ("least", "timeout"),
    "compounds": ("language", "least", "timeout"),
    "follow_up": ("turns",),
    "hyde": ("weight", "prompt", "timeout", *MODEL_OPTIONS),
    "model": ("size", "prompt", "timeout", *MODEL_OPTIONS),
    "model_follow_up": ("turns", "prompt", "timeout", *MODEL_OPTIONS),
    "rm3": ("documents", "terms", "original"),
    "rules": ("size",),
    "spelling": ("timeout",),
    "synonyms": ("file", "synonyms", "size"),
}
