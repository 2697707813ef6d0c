"""Whole pipelines as YAML.

```yaml
version: 1
name: voicevault                  # any name
k: 5                              # results of a search that asks for no other number
timeout: 30                       # seconds for a whole search; none unless given
on_error: skip                    # or raise
channels:                         # any of these; `{}` for the defaults
  bm25: {formula: okapi, k1: 1.5, b: 0.75, statistics: collection, depth: 100, timeout: 5}
  dense: {model: all-MiniLM-L6-v2, backend: auto, depth: 100, timeout: 5}
route: {method: rules, simple: [bm25]}  # the channels of a route; all on those not named. Or `route: rules`
expansion: {method: rules, size: 3}   # or a list of such: rules, acronyms, compounds, synonyms, spelling, rm3
fusion: {method: rrf, k: 60, depth: 100, weights: {bm25: 1.0, dense: 1.0}}
stages:                           # in this order
  - rerank: {model: ms-marco-MiniLM-L-12-v2, backend: auto, depth: 20, timeout: 5}
  - weighted: {weights: {fused: 0.4, semantic: 0.3, keyword: 0.2, position: 0.1}, depth: 100, scale_fused: false}
  - recency: {weight: 0.1, half_life_days: 30, date_key: date, reference_date: 2026-01-31, depth: 100}
  - near_duplicates: {threshold: 0.8, by: shingles, timeout: 5}
  - mmr: {lambda_mult: 0.7, by: vectors, depth: 100, timeout: 5}
  - page_cap: {max_chunks_per_page: 2, max_chunks_per_document: 5}
context: {max_tokens: 3000, max_chars: 12000, history_turns: 5, markers: source, reorder: false}
```

Which keys `fusion` has beside `method`, `depth` and `weights` depends on the method: `{method: convex, alpha: 0.5}`.
`${NAME}` in a text reads the environment; alone it may be a number. An unknown key is an error that names the nearest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from voicevault_retrievers.channel import Channel, Rewriter, Stage
from voicevault_retrievers.checks import flag, seconds_or_none, whole
from voicevault_retrievers.context import ContextBuilder
from voicevault_retrievers.dense.weights import BACKENDS
from voicevault_retrievers.diversity import MMR, NearDuplicates, PageCap
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.extras import require
from voicevault_retrievers.fusion import METHODS, Method, fuse, method_named, options_of
from voicevault_retrievers.fusion.fuse import OnError, checked_weights
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.pipeline import Pipeline
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
from voicevault_retrievers.rerank import Calibration, CrossEncoderRerank, RecencyRerank, WeightedRerank, load_scorer
from voicevault_retrievers.rerank.cross_encoder import OPTIONS as RERANK_OPTIONS
from voicevault_retrievers.resources import shipped
from voicevault_retrievers.types import Failure, Route

VERSION = 1
KEYS = ("version", "name", "k", "timeout", "on_error", "channels", "route", "expansion", "fusion", "stages", "context")
DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_RERANKER = "ms-marco-MiniLM-L-12-v2"
_VARIABLE = re.compile(r"\$\{(\w+)\}")

T = TypeVar("T")


class Base(Protocol):
    """What a preset searches: a knowledge base, several, or anything with these two channels."""

    def bm25(self, **options: Any) -> Channel: ...

    def dense(self, **options: Any) -> Channel: ...


@dataclass(frozen=True)
class Preset:
    """A pipeline but for the channels' contents. `channels` are the options of each channel's constructor.

    `model` and `backend` name the embedder for what is indexed with this preset; a knowledge base keeps its own.
    """

    name: str
    channels: Mapping[str, Mapping[str, Any]]
    depths: Mapping[str, int]
    model: str
    backend: str
    route: Rewriter | None
    expansion: Rewriter | None
    method: Method
    weights: Mapping[str, float]
    stages: tuple[Stage, ...]
    context: ContextBuilder
    k: int
    timeout: float | None
    on_error: OnError

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Preset:
        """A preset from plain data; ConfigError for what is unknown or malformed."""
        data = _filled(_section("preset", data, *KEYS))
        if data.get("version") != VERSION or isinstance(data["version"], bool):
            raise ConfigError(f"a preset says `version: {VERSION}`; this one has {data.get('version')!r}")
        channels = {
            name: _section(name, options, *_CHANNEL_OPTIONS.get(name, ()), "depth", "timeout")
            for name, options in _section(
                "channels", data.get("channels", {"bm25": {}, "dense": {}}), *_CHANNELS
            ).items()
        }
        fusion, method = _fusion(data.get("fusion"))
        dense = channels.get("dense", {})
        return cls(
            name=str(data.get("name", "custom")),
            channels={name: _CHANNELS[name](options) for name, options in channels.items()},
            depths={
                name: whole(f"the depth of {name!r}", options.get("depth", fusion.get("depth", 100)))
                for name, options in channels.items()
            },
            model=dense.get("model", DEFAULT_MODEL),
            backend=_known_backend(dense.get("backend", "auto")),
            route=_router(data.get("route")),
            expansion=_expansion(data.get("expansion")),
            method=method,
            weights=checked_weights(_section("weights", fusion.get("weights"), *channels), channels),
            stages=tuple(_stage(stage) for stage in _listed(data.get("stages"))),
            context=_made(ContextBuilder, _section("context", data.get("context"), *_CONTEXT_OPTIONS)),
            k=whole("k", data.get("k", 5), least=0),
            timeout=seconds_or_none("timeout", data.get("timeout")),
            on_error=_choice("on_error", data.get("on_error", "skip"), _ON_ERROR),
        )

    def over(self, base: Base) -> Pipeline:
        """The pipeline over a knowledge base, or several."""
        channels = {name: getattr(base, name)(**options) for name, options in self.channels.items()}
        return self.build(channels, notes=getattr(base, "notes", ()))

    def build(self, channels: Mapping[str, Channel], *, notes: Iterable[Failure] = ()) -> Pipeline:
        """The pipeline over channels of the names that the preset has."""
        if set(channels) != set(self.channels):
            raise ConfigError(
                f"preset {self.name!r} has the channels {sorted(self.channels)}, given {sorted(channels)}"
            )
        channel: Channel = fuse(
            channels, method=self.method, weights=self.weights, depth=self.depths, on_error=self.on_error
        )
        if self.expansion is not None:
            channel = self.expansion >> channel
        if self.route is not None:
            channel = self.route >> channel
        for stage in self.stages:
            channel = channel >> stage.over(channels)
        return Pipeline(
            channel, k=self.k, context=self.context, timeout=self.timeout, on_error=self.on_error, notes=notes
        )


def load_preset(name: str | Path) -> Preset:
    """A shipped preset by its name, or one of your own by the path of its YAML file."""
    return Preset.of(preset_data(name))


def preset_data(name: str | Path) -> dict[str, Any]:
    """What `load_preset` makes the preset of: the YAML as it is, each `${NAME}` as it stands there."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = shipped("presets") / f"{name}.yaml"
        if not path.is_file():
            raise unknown("preset", str(name), preset_names())
    if not path.is_file():
        raise ConfigError(f"there is no preset file {path}")
    yaml = require("yaml", extra="cli")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} holds a {type(data).__name__}, not a mapping of options")
    return {"name": path.stem, **data}


def save_preset(data: Mapping[str, Any], path: str | Path) -> None:
    """Write a preset's data as a YAML file that `load_preset` reads; ConfigError for what is no preset."""
    file = preset_file(path)
    Preset.of(data)
    text = require("yaml", extra="cli").safe_dump(dict(data), sort_keys=False, allow_unicode=True)
    file.write_text(text, encoding="utf-8")


def preset_file(path: str | Path) -> Path:
    """The path of a preset's file; ConfigError where `load_preset` would take it for a shipped preset's name."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"a preset's file ends in .yaml or .yml, not as {file.name!r} does")
    return file


def preset_names() -> list[str]:
    """The names of the shipped presets."""
    return sorted(path.stem for path in shipped("presets").glob("*.yaml"))


def _bm25(options: Mapping[str, Any]) -> dict[str, Any]:
    constants = {key: options[key] for key in ("k1", "b", "epsilon", "delta") if key in options}
    formula = _choice("BM25 formula", options.get("formula", "lucene"), FORMULAS)
    others = {
        key: options[key] for key in ("statistics", "exclude_nonpositive", "operators", "timeout") if key in options
    }
    flag("exclude_nonpositive", options.get("exclude_nonpositive", False))
    flag("operators", options.get("operators", False))
    _choice("statistics", options.get("statistics", "collection"), {"collection": 0, "filtered": 0})
    seconds_or_none("timeout", options.get("timeout"))
    return {"formula": _made(formula, constants), **others}


def _dense(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"timeout": seconds_or_none("timeout", options.get("timeout"))}


def _router(data: Any) -> Rewriter | None:
    if data is None or data is False:
        return None
    routes = tuple(route.value for route in Route)
    options = dict(_section("route", {"method": data} if isinstance(data, str) else data, "method", *routes))
    make = _choice("routing method", options.pop("method", "rules"), {"rules": RuleRouter})
    return make(options)


def _expansion(data: Any) -> Rewriter | None:
    if data is None or data is False:
        return None
    if isinstance(data, list):
        return Together([made for one in data if (made := _expansion(one)) is not None])
    options = dict(_section("expansion", data, "method", *chain.from_iterable(_EXPANSION_OPTIONS.values())))
    method = options.pop("method", "rules")
    make = _choice("expansion method", method, _EXPANSIONS)
    return _made(make, _section(f"expansion {method!r}", options, *_EXPANSION_OPTIONS[method]))


def _synonyms(file: str | None = None, synonyms: Any = (), size: int = 3) -> Rewriter:
    return SynonymExpansion(synonyms, size) if file is None else SynonymExpansion.from_file(file, size)


def _fusion(data: Any) -> tuple[Mapping[str, Any], Method]:
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
    fusion = _section("fusion", data, *known)
    return fusion, method_named(name, {key: value for key, value in fusion.items() if key not in shared})


def _stage(data: Any) -> Stage:
    entry = _section("stages", {data: None} if isinstance(data, str) else data, *_STAGES)
    if len(entry) != 1:
        raise ConfigError(f"each of the stages is one name with its options, not {data!r}")
    ((name, options),) = entry.items()
    return _STAGES[name](dict(_section(name, options, *_STAGE_OPTIONS[name])))


def _rerank(options: dict[str, Any]) -> Stage:
    model, backend = options.pop("model", DEFAULT_RERANKER), _known_backend(options.pop("backend", "auto"))
    if isinstance(options.get("calibration"), Mapping):
        options["calibration"] = _made(Calibration, options["calibration"])
    # By name it is looked for at the first search, where a missing model degrades the result and no more.
    return CrossEncoderRerank(model if backend == "auto" else load_scorer(model, backend), **options)


def _page_cap(options: dict[str, Any]) -> Stage:
    return PageCap(**options)


def _mmr(options: dict[str, Any]) -> Stage:
    return MMR(**options)


def _near_duplicates(options: dict[str, Any]) -> Stage:
    return NearDuplicates(**options)


def _recency(options: dict[str, Any]) -> Stage:
    return RecencyRerank(**options)


def _weighted(options: dict[str, Any]) -> Stage:
    return WeightedRerank(**options)


_CHANNELS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"bm25": _bm25, "dense": _dense}
_CHANNEL_OPTIONS = {
    "bm25": ("formula", "k1", "b", "epsilon", "delta", "statistics", "exclude_nonpositive", "operators"),
    "dense": ("model", "backend"),
}
_STAGES: dict[str, Callable[[dict[str, Any]], Stage]] = {
    "mmr": _mmr,
    "near_duplicates": _near_duplicates,
    "page_cap": _page_cap,
    "recency": _recency,
    "rerank": _rerank,
    "weighted": _weighted,
}
_STAGE_OPTIONS = {
    "mmr": ("lambda_mult", "by", "depth", "timeout"),
    "near_duplicates": ("threshold", "by", "timeout"),
    "page_cap": ("max_chunks_per_page", "max_chunks_per_document"),
    "recency": ("weight", "half_life_days", "date_key", "reference_date", "depth"),
    "rerank": ("model", "backend", "depth", *RERANK_OPTIONS),
    "weighted": ("weights", "depth", "scale_fused", "chunk_index_key", "chunks_in_file_key"),
}
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
_ON_ERROR: dict[str, OnError] = {"skip": "skip", "raise": "raise"}
_CONTEXT_OPTIONS = tuple(option.name for option in fields(ContextBuilder) if option.name != "count_tokens")


def _section(kind: str, data: Any, *known: str) -> Mapping[str, Any]:
    """A mapping with none but known keys; None is an empty one."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{kind} is a mapping of options, not {data!r}")
    for key in data:
        if key not in known:
            raise unknown(f"key in {kind}", key, known)
    return data


def _listed(data: Any) -> list[Any]:
    if data is not None and not isinstance(data, list):
        raise ConfigError(f"stages is a list, each entry a name with its options, not {data!r}")
    return data or []


def _known_backend(name: Any) -> str:
    return _choice("backend", name, {backend: backend for backend in ("auto", *BACKENDS)})


def _choice(kind: str, name: Any, choices: Mapping[str, T]) -> T:
    if not isinstance(name, str) or name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


def _made(make: Callable[..., T], options: Mapping[str, Any]) -> T:
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"{make.__name__} does not take {dict(options)}: {error}") from error


def _filled(value: Any) -> Any:
    """The value with `${NAME}` in its texts replaced from the environment."""
    if isinstance(value, str):
        filled = _VARIABLE.sub(_variable, value)
        whole_value = _VARIABLE.fullmatch(value) is not None
        return require("yaml", extra="cli").safe_load(filled) if whole_value else filled
    if isinstance(value, Mapping):
        return {key: _filled(item) for key, item in value.items()}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise ConfigError(f"the environment has no {match[1]}, which the preset refers to")
    return os.environ[match[1]]
