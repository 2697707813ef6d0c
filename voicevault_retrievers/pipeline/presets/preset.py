"""A preset: a pipeline but for what its channels search; the shipped ones, and YAML files of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from voicevault_retrievers._support.checks import flag, seconds_or_none, whole
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.access_control import Access
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Failure, Ranking
from voicevault_retrievers.errors import ConfigError, NotIndexedError, unknown
from voicevault_retrievers.fusion import Method, fuse
from voicevault_retrievers.fusion.fuse import OnError, checked_weights
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets.channels import CHANNEL_OPTIONS, CHANNELS
from voicevault_retrievers.pipeline.presets.missing_parts import (
    AbsentFlare,
    AbsentStage,
    channel_if_there,
    channels_there,
)
from voicevault_retrievers.pipeline.presets.query_sections import asked, asks, expansion, fusion, router
from voicevault_retrievers.pipeline.presets.sections import (
    MODEL_OPTIONS,
    choice,
    filled,
    given_model,
    known_backend,
    listed,
    made,
    section,
    text_model,
)
from voicevault_retrievers.pipeline.presets.stages import Awaiting, PresetContext, confidence, stage, threshold
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.rerank import CrossEncoderRerank, LLMRerank
from voicevault_retrievers.rerank.calibration import Confidence, Threshold, any_hit
from voicevault_retrievers.structure.graph import GraphStore
from voicevault_retrievers.structure.parents import Parents

VERSION = 1
KEYS = (
    "version", "name", "k", "timeout", "on_error", "llm", "channels", "route", "expansion", "fusion", "stages",
    "context", "flare", "confidence", "access",
)  # fmt: skip
DEFAULT_MODEL = "all-MiniLM-L6-v2"
AUTO = "auto"
"""FLARE where there is a language model; without one a note on the results that it would answer."""

_ACCESS: dict[str, Access] = {"optional": "optional", "mandatory": "mandatory"}
_ON_ERROR: dict[str, OnError] = {"skip": "skip", "raise": "raise"}
_CONTEXT_OPTIONS = tuple(option.name for option in fields(ContextBuilder) if option.name != "count_tokens")


class Base(Protocol):
    """What a preset searches: a knowledge base, several, or anything with these two channels."""

    def bm25(self, **options: Any) -> Channel: ...

    def dense(self, **options: Any) -> Channel: ...


@dataclass(frozen=True)
class Preset:
    """A pipeline but for the channels' contents. `channels` are the options of each channel's constructor.

    `model` and `backend` name the embedder for what is indexed with this preset; a knowledge base keeps its own. `llm`
    is the language model for what asks one and names none of its own.
    """

    name: str
    channels: Mapping[str, Mapping[str, Any]]
    depths: Mapping[str, int]
    route: Rewriter | None
    expansion: Rewriter | None
    method: Method
    weights: Mapping[str, float]
    stages: tuple[Stage, ...]
    context: ContextBuilder
    k: int
    timeout: float | None
    on_error: OnError
    model: str = DEFAULT_MODEL
    backend: str = AUTO
    llm: TextModel | None = None
    flare: Mapping[str, Any] = field(default_factory=dict, repr=False)
    confidence: Callable[[Ranking], Confidence] = any_hit
    access: Access = "optional"

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Preset:
        """A preset from plain data; ConfigError for what is unknown or malformed."""
        data = filled(section("preset", data, *KEYS))
        if data.get("version") != VERSION or isinstance(data["version"], bool):
            raise ConfigError(f"a preset says `version: {VERSION}`; this one has {data.get('version')!r}")
        channels = {
            name: section(name, options, *CHANNEL_OPTIONS.get(name, ()), "depth", "timeout")
            for name, options in section("channels", data.get("channels", {"bm25": {}, "dense": {}}), *CHANNELS).items()
        }
        fused, method = fusion(data.get("fusion"))
        dense = channels.get("dense", {})
        stages = tuple(stage(one) for one in listed(data.get("stages")))
        return cls(
            name=str(data.get("name", "custom")),
            channels={name: CHANNELS[name](options) for name, options in channels.items()},
            depths={
                name: whole(f"the depth of {name!r}", options.get("depth", fused.get("depth", 100)))
                for name, options in channels.items()
            },
            model=dense.get("model", DEFAULT_MODEL),
            backend=known_backend(dense.get("backend", "auto")),
            route=router(data.get("route")),
            expansion=expansion(data.get("expansion")),
            method=method,
            weights=checked_weights(section("weights", fused.get("weights"), *channels), channels),
            stages=stages,
            context=made(ContextBuilder, section("context", data.get("context"), *_CONTEXT_OPTIONS)),
            k=whole("k", data.get("k", 5), least=0),
            timeout=seconds_or_none("timeout", data.get("timeout")),
            on_error=choice("on_error", data.get("on_error", "skip"), _ON_ERROR),
            llm=text_model(dict(section("llm", data.get("llm"), *MODEL_OPTIONS))),
            flare=_flare(data.get("flare")),
            confidence=confidence(data.get("confidence"), stages),
            access=choice("access", data.get("access", "optional"), _ACCESS),
        )

    def over(
        self,
        base: Base,
        *,
        llm: TextModel | None = None,
        parents: Parents | None = None,
        graph: GraphStore | None = None,
    ) -> Pipeline:
        """The pipeline over a knowledge base, or several; `llm` goes before the preset's.

        A channel that the base was indexed without is left out of each search that would ask it, and the result is
        degraded.

        `parents` and `graph` are read in place of the base's own, but for what names its `store` in the preset. Raises
        ConfigError where nothing would read them.
        """
        made = {name: options for name, options in self.channels.items() if name != "graph" or not self._apart(graph)}
        channels = channels_there(base, made)
        notes = getattr(base, "notes", ())
        return self.build(channels, notes=notes, base=base, llm=llm, parents=parents, graph=graph)

    def build(
        self,
        channels: Mapping[str, Channel],
        *,
        notes: Iterable[Failure] = (),
        base: Base | None = None,
        llm: TextModel | None = None,
        parents: Parents | None = None,
        graph: GraphStore | None = None,
    ) -> Pipeline:
        """The pipeline over channels of the names that the preset has; `base` is for stages that read from one.

        A channel `graph` that is not among them is made over the store that the preset names, or over `graph`. The
        other options are those of `over`.
        """
        self.refuse_unused(parents, graph, llm)
        llm = self.llm if llm is None else llm
        channels = {**self._graph(base, graph), **channels}
        if set(channels) != set(self.channels):
            raise ConfigError(
                f"preset {self.name!r} has the channels {sorted(self.channels)}, given {sorted(channels)}"
            )
        around = PresetContext(base, llm, parents, graph)
        channel: Channel = fuse(
            channels, method=self.method, weights=self.weights, depth=self.depths, on_error=self.on_error
        )
        for rewriter in (self.expansion, self.route):
            if (asking := asked(rewriter, llm)) is not None:
                channel = asking >> channel
        for one in self.stages:
            channel = channel >> _given(one, around).over(channels)
        return Pipeline(
            channel,
            k=self.k,
            context=self.context,
            timeout=self.timeout,
            on_error=self.on_error,
            notes=notes,
            flare=self._flare(llm),
            confidence=self.confidence,
            access=self.access,
        )

    def refuse_unused(self, parents: Parents | None, graph: GraphStore | None, llm: TextModel | None) -> None:
        """Raises ConfigError for a store or a model that nothing of the preset would use: it names its own, or none."""
        reading = self._awaiting
        if parents is not None and "parents" not in reading:
            raise ConfigError(
                f"preset {self.name!r} has no stage parents without a store of its own: parents= would not be used"
            )
        if graph is not None and "graph_expansion" not in reading and not self._apart(graph):
            raise ConfigError(
                f"preset {self.name!r} has neither a channel graph nor a stage graph_expansion without a store of its "
                "own: graph= would not be used"
            )
        if llm is not None and not self.asks:
            raise ConfigError(
                f"preset {self.name!r} has nothing that asks a language model, or names its own there: llm= would not "
                "be used"
            )

    @property
    def asks(self) -> bool:
        """Whether anything asks the language model that the preset is given."""
        own = bool(self.flare.get("enabled")) and text_model(dict(self.flare)) is None
        return own or any(map(asks, (self.route, self.expansion))) or "llm_rerank" in self._awaiting

    @property
    def _awaiting(self) -> set[str]:
        return {one.name for one in self.stages if isinstance(one, Awaiting)}

    def _graph(self, base: Base | None, graph: GraphStore | None) -> dict[str, Channel]:
        """The channel of a graph that is not the base's, where the preset has one."""
        options = self.channels.get("graph", {})
        if self._apart(graph):
            options = {**options, "store": graph}
        return {"graph": channel_if_there(base, "graph", options)} if "store" in options else {}

    def _apart(self, graph: GraphStore | None) -> bool:
        """Whether the channel graph is over this store."""
        return graph is not None and "store" not in self.channels.get("graph", {"store": None})

    def with_reranker(self, reranker: Stage | None) -> Preset:
        """With another reranker in the place of its cross-encoder or language model, or first; None is without one."""
        kept = [one for one in self.stages if not _reranks(one)]
        at = next((at for at, one in enumerate(self.stages) if _reranks(one)), 0)
        return self.with_stages([*kept[:at], *([] if reranker is None else [reranker]), *kept[at:]])

    def with_stages(self, stages: Iterable[Stage]) -> Preset:
        """With other stages; what was judged by the calibration of a reranker that is gone, is so by a hit."""
        kept = tuple(stages)
        confidence = self.confidence
        if isinstance(confidence, Threshold):
            confidence = threshold(kept, confidence.least) or any_hit
        return replace(self, stages=kept, confidence=confidence)

    @property
    def flare_options(self) -> dict[str, Any]:
        """How a model is to search while it answers, whichever it is."""
        return {key: value for key, value in self.flare.items() if key not in ("enabled", *MODEL_OPTIONS)}

    def _flare(self, llm: TextModel | None) -> Flare | None:
        options = dict(self.flare)
        enabled = options.pop("enabled", False)
        writer = text_model(options) or llm
        if not enabled:
            return None
        if enabled == AUTO and writer is None:
            return AbsentFlare()
        return Flare(given_model("flare", writer), **options)


def _given(stage: Stage, around: PresetContext) -> Stage:
    try:
        return stage.given(around) if isinstance(stage, Awaiting) else stage
    except NotIndexedError as error:
        return AbsentStage(stage.name, error)


def _reranks(stage: Stage) -> bool:
    return isinstance(stage, CrossEncoderRerank | LLMRerank) or (
        isinstance(stage, Awaiting) and stage.name == "llm_rerank"
    )


def _flare(data: Any) -> dict[str, Any]:
    options = dict(section("flare", data, "enabled", "max_retrievals", "threshold", "top_k", "timeout", *MODEL_OPTIONS))
    if options.get("enabled") != AUTO:
        flag("enabled", options.get("enabled", False))
    own = {key: value for key, value in options.items() if key != "enabled"}
    Flare(text_model(own) or CallableTextModel(str), **own)  # says now what is wrong with them
    return options


def load_preset(name: str | Path) -> Preset:
    """A shipped preset by its name, or one of your own by the path of its YAML file.

    Raises ConfigError for a name or a file that is not there, a key that is unknown (and names the nearest), and a
    `${NAME}` that the environment does not have; MissingExtraError without a reader of YAML (extra `cli`).
    """
    return Preset.of(preset_data(name))


def preset_data(name: str | Path) -> dict[str, Any]:
    """What `load_preset` makes the preset of: the YAML as it is, each `${NAME}` as it stands there.

    Raises ConfigError for a name or a file that is not there, or is no mapping.
    """
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
