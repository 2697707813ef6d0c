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
expansion: {method: rules, size: 3}
fusion: {method: rrf, k: 60, depth: 100, weights: {bm25: 1.0, dense: 1.0}}
stages:                           # in this order
  - rerank: {model: ms-marco-MiniLM-L-12-v2, backend: auto, depth: 20, timeout: 5}
  - weighted: {weights: {fused: 0.4, semantic: 0.3, keyword: 0.2, position: 0.1}, depth: 100, scale_fused: false}
  - recency: {weight: 0.1, half_life_days: 30, date_key: date, reference_date: 2026-01-31, depth: 100}
  - page_cap: {max_chunks_per_page: 2, max_chunks_per_document: 5}
context: {max_tokens: 3000, max_chars: 12000, history_turns: 5, markers: source, reorder: false}
```

`${NAME}` in a text reads the environment; alone it may be a number. An unknown key is an error that names the nearest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from voicevault_retrievers.channel import Channel, Rewriter, Stage
from voicevault_retrievers.checks import flag, seconds_or_none, whole
from voicevault_retrievers.context import ContextBuilder
from voicevault_retrievers.dense.weights import BACKENDS
from voicevault_retrievers.diversity import PageCap
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.extras import require
from voicevault_retrievers.fusion import RRF, Method, fuse
from voicevault_retrievers.fusion.fuse import OnError, checked_weights
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.pipeline import Pipeline
from voicevault_retrievers.query import RuleExpansion
from voicevault_retrievers.rerank import CrossEncoderRerank, RecencyRerank, WeightedRerank, load_scorer
from voicevault_retrievers.resources import shipped
from voicevault_retrievers.types import Failure

VERSION = 1
KEYS = ("version", "name", "k", "timeout", "on_error", "channels", "expansion", "fusion", "stages", "context")
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
        fusion = _section("fusion", data.get("fusion"), "method", "k", "depth", "weights")
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
            expansion=_expansion(data.get("expansion")),
            method=_choice("fusion method", fusion.get("method", "rrf"), _METHODS)(fusion),
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
        for stage in self.stages:
            channel = channel >> stage
        return Pipeline(
            channel, k=self.k, context=self.context, timeout=self.timeout, on_error=self.on_error, notes=notes
        )


def load_preset(name: str | Path) -> Preset:
    """A shipped preset by its name, or one of your own by the path of its YAML file."""
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
    return Preset.of({"name": path.stem, **data})


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


def _expansion(data: Any) -> Rewriter | None:
    if data is None or data is False:
        return None
    options = dict(_section("expansion", data, "method", "size"))
    _choice("expansion method", options.pop("method", "rules"), {"rules": RuleExpansion})
    return _made(RuleExpansion, options)


def _rrf(fusion: Mapping[str, Any]) -> Method:
    return RRF(fusion.get("k", 60))


def _stage(data: Any) -> Stage:
    entry = _section("stages", {data: None} if isinstance(data, str) else data, *_STAGES)
    if len(entry) != 1:
        raise ConfigError(f"each of the stages is one name with its options, not {data!r}")
    ((name, options),) = entry.items()
    return _STAGES[name](dict(_section(name, options, *_STAGE_OPTIONS[name])))


def _rerank(options: dict[str, Any]) -> Stage:
    model, backend = options.pop("model", DEFAULT_RERANKER), _known_backend(options.pop("backend", "auto"))
    # By name it is looked for at the first search, where a missing model degrades the result and no more.
    return CrossEncoderRerank(model if backend == "auto" else load_scorer(model, backend), **options)


def _page_cap(options: dict[str, Any]) -> Stage:
    return PageCap(**options)


def _recency(options: dict[str, Any]) -> Stage:
    return RecencyRerank(**options)


def _weighted(options: dict[str, Any]) -> Stage:
    return WeightedRerank(**options)


_CHANNELS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"bm25": _bm25, "dense": _dense}
_CHANNEL_OPTIONS = {
    "bm25": ("formula", "k1", "b", "epsilon", "delta", "statistics", "exclude_nonpositive", "operators"),
    "dense": ("model", "backend"),
}
_METHODS: dict[str, Callable[[Mapping[str, Any]], Method]] = {"rrf": _rrf}
_STAGES: dict[str, Callable[[dict[str, Any]], Stage]] = {
    "page_cap": _page_cap,
    "recency": _recency,
    "rerank": _rerank,
    "weighted": _weighted,
}
_STAGE_OPTIONS = {
    "page_cap": ("max_chunks_per_page", "max_chunks_per_document"),
    "recency": ("weight", "half_life_days", "date_key", "reference_date", "depth"),
    "rerank": ("model", "backend", "depth", "max_chars", "timeout"),
    "weighted": ("weights", "depth", "scale_fused", "chunk_index_key", "chunks_in_file_key"),
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
