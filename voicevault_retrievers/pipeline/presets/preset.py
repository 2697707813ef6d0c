"""Presets: pipelines without the contents of their channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, cast

from voicevault_retrievers._support.checks import flag, seconds_or_none, weights_or_none, whole
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.access_control import Access
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Failure, Ranking
from voicevault_retrievers.errors import ConfigError, NotIndexedError
from voicevault_retrievers.fusion import AdaptiveSum, Method, method_of
from voicevault_retrievers.fusion.fuse import DEPTH, OnError, checked_weights
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets.channels import CHANNEL_OPTIONS, CHANNELS
from voicevault_retrievers.pipeline.presets.fusing import fused
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
from voicevault_retrievers.rerank import CrossEncoderRerank, GroupBy, LLMRerank, PageCap
from voicevault_retrievers.rerank.calibration import Confidence, Threshold, any_hit
from voicevault_retrievers.store.live_curation import CurationSource
from voicevault_retrievers.structure import parent_store
from voicevault_retrievers.structure.graph import GraphStore
from voicevault_retrievers.structure.parents import Parents

VERSION = 1
KEYS = (
    "version", "name", "k", "timeout", "on_error", "llm", "channels", "route", "expansion", "fusion", "stages",
    "context", "flare", "confidence", "access",
    "group_by",
)  # fmt: skip
DEFAULT_MODEL = "all-MiniLM-L6-v2"
AUTO = "auto"
"""FLARE where there is a language model; otherwise a note on the results that FLARE would extend."""

_ACCESS: dict[str, Access] = {"optional": "optional", "mandatory": "mandatory"}
_ON_ERROR: dict[str, OnError] = {"skip": "skip", "raise": "raise"}
_CONTEXT_OPTIONS = tuple(option.name for option in fields(ContextBuilder) if option.name != "count_tokens")


class Base(Protocol):
    """What a preset searches: a knowledge base, several, or any object with these two channels."""

    def bm25(self, **options: Any) -> Channel: ...

    def dense(self, **options: Any) -> Channel: ...


@dataclass(frozen=True)
class Preset:
    """A pipeline without the contents of its channels. `channels` are the options of each channel's constructor.

    `model` and `backend` name the embedder for bases that are indexed with this preset; an existing knowledge base
    keeps its own. `llm` is the language model for parts that use one and name none themselves. `parents` and `graph`
    replace those of the searched base, except in parts that name their own `store`.
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
    llm: object = None
    flare: Mapping[str, Any] | Flare = field(default_factory=dict, repr=False)
    confidence: Callable[[Ranking], Confidence] = any_hit
    access: Access = "optional"
    parents: Parents | None = None
    graph: GraphStore | None = None
    group_by: GroupBy | None = None

    @classmethod
    def plain(cls, channels: Iterable[str]) -> Preset:
        """A preset that fuses channels of these names by default settings, without any stages."""
        names = list(channels)
        return cls(
            name="custom",
            channels={name: {} for name in names},
            depths=dict.fromkeys(names, DEPTH),
            route=None,
            expansion=None,
            method=AdaptiveSum(),
            weights={},
            stages=(),
            context=ContextBuilder(),
            k=5,
            timeout=None,
            on_error="skip",
        )

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Preset:
        """A preset from plain data; ConfigError for unknown or malformed data."""
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
            weights=checked_weights(section("weights", weights_or_none(fused.get("weights")), *channels), channels),
            stages=stages,
            context=made(ContextBuilder, section("context", data.get("context"), *_CONTEXT_OPTIONS)),
            k=whole("k", data.get("k", 5), least=0),
            timeout=seconds_or_none("timeout", data.get("timeout")),
            on_error=choice("on_error", data.get("on_error", "skip"), _ON_ERROR),
            llm=text_model(dict(section("llm", data.get("llm"), *MODEL_OPTIONS))),
            flare=_flare(data.get("flare")),
            confidence=confidence(data.get("confidence"), stages),
            access=choice("access", data.get("access", "optional"), _ACCESS),
            group_by=GroupBy.of(data.get("group_by")),
        )

    def given(self, *, llm: object = None, parents: Parents | None = None, graph: GraphStore | None = None) -> Preset:
        """A copy with another language model, and with parents and a graph that replace the base's.

        `llm` is a model of this package, or in a framework's retriever one of the framework; `parents` are
        RedisParents, a mapping, or an object with `fetch(ids)`. Raises ConfigError where no part would use them.
        """
        reading = self._awaiting
        if parents is not None and "parents" not in reading:
            raise ConfigError(
                f"preset {self.name!r} has no stage parents without a store of its own: parents= would not be used"
            )
        if graph is not None and "graph_expansion" not in reading and not self._reads(graph):
            raise ConfigError(
                f"preset {self.name!r} has neither a channel graph nor a stage graph_expansion without a store of its "
                "own: graph= would not be used"
            )
        if llm is not None and not self._asks:
            raise ConfigError(
                f"preset {self.name!r} has nothing that asks a language model, or names its own there: llm= would not "
                "be used"
            )
        return replace(
            self,
            llm=self.llm if llm is None else llm,
            parents=self.parents if parents is None else parent_store(parents),
            graph=self.graph if graph is None else graph,
        )

    def with_options(
        self, expand: Expand | None = None, fusion: Fusion | None = None, rerank: Rerank | None = None
    ) -> Preset:
        """A copy in which these options replace its own, where they are given."""
        expand, fusion, rerank = expand or Expand(), fusion or Fusion(), rerank or Rerank()
        reranker = rerank.stage
        varied = replace(
            self,
            expansion=self.expansion if expand.rewriters is None else expand.rewriter,
            route=self.route if expand.route is None else expand.router,
            flare=self._flared(expand.flare),
            method=method_of(fusion.method) or self.method,
            weights={**self.weights, **(fusion.weights or {})},
            depths=fusion.depths(self.depths),
            on_error=fusion.on_error or self.on_error,
        )
        varied = varied if rerank.model is None else varied.with_reranker(reranker)
        return varied if rerank.max_chunks_per_page is None else varied.with_page_cap(rerank.max_chunks_per_page)

    def over(self, base: Base) -> Pipeline:
        """The pipeline over a knowledge base, or several.

        A channel that the base was indexed without is left out of each search, and the result is degraded.
        """
        made = {name: options for name, options in self.channels.items() if not (name == "graph" and self._apart)}
        return self.build(channels_there(base, made), notes=getattr(base, "notes", ()), base=base)

    def build(
        self, channels: Mapping[str, Channel], *, notes: Iterable[Failure] = (), base: Base | None = None
    ) -> Pipeline:
        """The pipeline over channels with the preset's names; `base` is for stages that read from a base.

        A channel `graph` that is not given is built over the store that the preset names, or over its `graph`.
        """
        llm = self._model
        channels = {**self._graph(base), **channels}
        if set(channels) != set(self.channels):
            raise ConfigError(
                f"preset {self.name!r} has the channels {sorted(self.channels)}, given {sorted(channels)}"
            )
        around = PresetContext(base, llm, self.parents, self.graph)
        channel = fused(channels, self.method, self.weights, self.depths, self.on_error)
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
            group_by=self.group_by,
            curation=base if isinstance(base, CurationSource) else None,
        )

    @property
    def _asks(self) -> bool:
        """Whether any part uses the language model that the preset is given."""
        flare = {} if isinstance(self.flare, Flare) else self.flare
        own = bool(flare.get("enabled")) and text_model(dict(flare)) is None
        return own or any(map(asks, (self.route, self.expansion))) or "llm_rerank" in self._awaiting

    @property
    def _model(self) -> TextModel | None:
        if not isinstance(self.llm, TextModel | None):
            raise ConfigError(
                f"a {type(self.llm).__name__} is asked in its framework's HybridRetriever(preset=...); here llm= is a "
                "model of this package's, or any with a name and complete(prompt)"
            )
        return self.llm

    @property
    def _awaiting(self) -> set[str]:
        return {one.name for one in self.stages if isinstance(one, Awaiting)}

    def _graph(self, base: Base | None) -> dict[str, Channel]:
        """The graph channel over a store that is not the base's, where the preset has one."""
        options = self.channels.get("graph", {})
        if self._apart:
            options = {**options, "store": self.graph}
        return {"graph": channel_if_there(base, "graph", options)} if "store" in options else {}

    @property
    def _apart(self) -> bool:
        return self._reads(self.graph)

    def _reads(self, graph: GraphStore | None) -> bool:
        """Whether the channel `graph` is over this store."""
        return graph is not None and "store" not in self.channels.get("graph", {"store": None})

    def with_reranker(self, reranker: Stage | None) -> Preset:
        """A copy whose cross-encoder or LLM reranker is replaced, or with a reranker first; None removes rerankers."""
        kept = [one for one in self.stages if not _reranks(one)]
        at = next((at for at, one in enumerate(self.stages) if _reranks(one)), 0)
        return self.with_stages([*kept[:at], *([] if reranker is None else [reranker]), *kept[at:]])

    def with_page_cap(self, max_chunks_per_page: int) -> Preset:
        """A copy with this page cap, which replaces its own or follows all other stages."""
        capped = [one for one in self.stages if isinstance(one, PageCap)]
        names = ("max_chunks_per_document", "page_key", "source_key")
        caps = [PageCap(max_chunks_per_page, **{name: getattr(one, name) for name in names}) for one in capped]
        changed = dict(zip(map(id, capped), caps, strict=True))
        kept = [changed.get(id(one), one) for one in self.stages]
        return self.with_stages(kept if capped else [*kept, PageCap(max_chunks_per_page)])

    def guarded(self, require: Filter | None) -> Preset:
        """A copy whose `access` is mandatory, where there are access rights: a preset does not keep them."""
        return self if require is None else replace(self, access="mandatory")

    def with_stages(self, stages: Iterable[Stage]) -> Preset:
        """A copy with other stages. A confidence threshold uses the first reranker's calibration, else `any_hit`."""
        kept = tuple(stages)
        confidence = self.confidence
        if isinstance(confidence, Threshold):
            confidence = threshold(kept, confidence.least) or any_hit
        return replace(self, stages=kept, confidence=confidence)

    @property
    def flare_options(self) -> dict[str, Any]:
        """The options of FLARE that do not name its model."""
        own = {} if isinstance(self.flare, Flare) else self.flare
        return {key: value for key, value in own.items() if key not in ("enabled", *MODEL_OPTIONS)}

    def _flared(self, given: object) -> Mapping[str, Any] | Flare:
        if given is None or given is False:
            return self.flare if given is None else {}
        return given if isinstance(given, Flare) else Flare(cast(TextModel, given), **self.flare_options)

    def _flare(self, llm: TextModel | None) -> Flare | None:
        if isinstance(self.flare, Flare):
            return self.flare
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
    Flare(text_model(own) or CallableTextModel(str), **own)  # raises for wrong options
    return options
