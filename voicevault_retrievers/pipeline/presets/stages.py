"""The stages of a preset."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Failure, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.presets.channels import opened_graph
from voicevault_retrievers.pipeline.presets.sections import (
    MODEL_OPTIONS,
    channel_of,
    given_model,
    known_backend,
    made,
    section,
    text_model,
)
from voicevault_retrievers.rerank import (
    CALIBRATIONS,
    MMR,
    CalibratedRelevance,
    Calibration,
    CrossEncoderRerank,
    LLMRerank,
    NearDuplicates,
    PageCap,
    RecencyRerank,
    RelevanceThreshold,
    Threshold,
    WeightedRerank,
    load_scorer,
)
from voicevault_retrievers.rerank.calibration import LEAST, Confidence, any_hit
from voicevault_retrievers.rerank.cross_encoder import OPTIONS as RERANK_OPTIONS
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL
from voicevault_retrievers.structure import ParentExpansion
from voicevault_retrievers.structure.addresses import parent_store
from voicevault_retrievers.structure.graph import EmbeddedGraph, GraphExpansion, GraphStore
from voicevault_retrievers.structure.parent_links import Ancestors
from voicevault_retrievers.structure.parents import Parents


@dataclass(frozen=True)
class PresetContext:
    """What a preset's stages can use: its base, its language model, and external stores."""

    base: Any = None
    llm: TextModel | None = None
    parents: Parents | None = None
    graph: GraphStore | None = None


class Awaiting(Stage):
    """A stage that is built with the preset's pipeline, because it needs the base, a store or the language model."""

    def __init__(
        self, name: str, made: Callable[[PresetContext, Mapping[str, Any]], Stage], options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.name = name
        self.made = made
        self.options = options

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """Raise ConfigError: the preset must be built first."""
        raise ConfigError(f"the stage {self.name} is made with what a preset is over: build the preset's pipeline")

    def given(self, around: PresetContext) -> Stage:
        """The stage itself; ConfigError where the context lacks what it needs."""
        return self.made(around, self.options)

    def __repr__(self) -> str:
        return self.name


def stage(data: Any) -> Stage:
    """The stage of a name, or of a name with options."""
    entry = section("stages", {data: None} if isinstance(data, str) else data, *STAGE_CLASSES)
    if len(entry) != 1:
        raise ConfigError(f"each of the stages is one name with its options, not {sorted(map(str, entry))}")
    ((name, options),) = entry.items()
    given = dict(section(name, options, *STAGE_OPTIONS[name]))
    return _MAKERS[name](given) if name in _MAKERS else STAGE_CLASSES[name](**given)


def _rerank(options: dict[str, Any]) -> Stage:
    model, backend = options.pop("model", DEFAULT_MODEL), known_backend(options.pop("backend", "auto"))
    if isinstance(options.get("calibration"), Mapping):
        options["calibration"] = made(Calibration, options["calibration"])
    # A name is loaded at the first search, so that a model that cannot be downloaded then degrades the result.
    return CrossEncoderRerank(model if backend == "auto" else load_scorer(model, backend), **options)


def _llm_rerank(options: dict[str, Any]) -> Stage:
    served = text_model(options)
    if served is not None:
        return LLMRerank(served, **options)
    LLMRerank(CallableTextModel(str), **options)  # raises for wrong options

    return Awaiting("llm_rerank", _given_llm_rerank, options)


def _given_llm_rerank(around: PresetContext, options: Mapping[str, Any]) -> Stage:
    return LLMRerank(given_model("llm_rerank", around.llm), **options)


def _parents(options: dict[str, Any]) -> Stage:
    store, key = options.pop("store", None), {"key": options.pop("key")} if "key" in options else {}
    ParentExpansion({}, **options)
    if key and not isinstance(store, str):
        raise ConfigError("the key of parents says where they are in a Redis: name it with store: redis://...")
    if store is not None:
        waits = {} if options.get("timeout") is None else {"timeout": options["timeout"]}
        return ParentExpansion(parent_store(store, **key, **waits) if isinstance(store, str) else store, **options)

    return Awaiting("parents", _given_parents, options)


def _given_parents(around: PresetContext, options: Mapping[str, Any]) -> Stage:
    if around.parents is None:
        return _BaseParents(_from_base("parents", around), **options)
    return ParentExpansion(around.parents, **options)


@runtime_checkable
class HoldsParents(Protocol):
    """A base that can report whether it holds any parents."""

    def has_parents(self, require: Filter | None = None) -> bool:
        """Whether there is a parent that the access rights permit."""
        ...


class _BaseParents(ParentExpansion):
    """Parent expansion from a knowledge base, with a note where the base holds no parents."""

    def __init__(self, base: Any, **options: Any) -> None:
        super().__init__(base, **options)
        self._base = base

    def _expanded(self, query: Query, ranking: Ranking, known: Ancestors) -> Ranking:
        expanded = super()._expanded(query, ranking, known)
        named = not ranking or any(hit.chunk.parent_id for hit in ranking)
        if named or not isinstance(self._base, HoldsParents) or self._base.has_parents(query.require):
            return expanded
        said = "there are no parents in the knowledge base: hits are read as they are"
        return expanded.failing(Failure(self.name, "NotIndexedError", said, degrades=False))


def _graph_expansion(options: dict[str, Any]) -> Stage:
    store, given = options.get("store"), _graph_options(options)
    GraphExpansion(EmbeddedGraph(), **given)
    if store is None:
        return Awaiting("graph_expansion", _given_graph_expansion, options)
    opening = {key: value for key, value in options.items() if key != "hops"}
    return GraphExpansion(opened_graph(opening), **given)


def _given_graph_expansion(around: PresetContext, options: Mapping[str, Any]) -> Stage:
    graph = around.graph
    if graph is None:
        graph = channel_of(_from_base("graph_expansion", around, "graph"), "references", {})
    return GraphExpansion(graph, **_graph_options(options))


def _graph_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a GraphExpansion, in which `hops` is the depth."""
    return {"depth" if key == "hops" else key: value for key, value in options.items() if key != "store"}


def _from_base(stage: str, around: PresetContext, given: str = "") -> Any:
    """The base that a stage reads from; ConfigError where there is none."""
    if around.base is None:
        raise ConfigError(
            f"the stage {stage} reads from a knowledge base: give one (kb_names=, over(kb), build(channels, base=kb)), "
            f"or give {given or stage}= another store, or name its address as `store`"
        )
    return around.base


class _Weighted(WeightedRerank):
    """A weighted reranker that asks the pipeline's dense channel for missing cosines, from stored vectors."""

    def over(self, channels: Mapping[str, Channel]) -> Stage:
        twin = copy.copy(self)
        twin.dense = channels.get("dense")
        twin.blocking = twin.dense is not None
        return twin


STAGE_CLASSES: dict[str, type[Stage]] = {
    "graph_expansion": GraphExpansion,
    "llm_rerank": LLMRerank,
    "mmr": MMR,
    "near_duplicates": NearDuplicates,
    "page_cap": PageCap,
    "parents": ParentExpansion,
    "recency": RecencyRerank,
    "relevance": CalibratedRelevance,
    "relevance_threshold": RelevanceThreshold,
    "rerank": CrossEncoderRerank,
    "weighted": _Weighted,
}
_MAKERS: dict[str, Callable[[dict[str, Any]], Stage]] = {
    "graph_expansion": _graph_expansion,
    "llm_rerank": _llm_rerank,
    "parents": _parents,
    "relevance": lambda options: CalibratedRelevance(made(Calibration, options)),
    "rerank": _rerank,
}
"""The makers of stages whose options are not just their class's."""
STAGE_OPTIONS: dict[str, tuple[str, ...]] = {
    "graph_expansion": ("store", "seeds", "limit", "weight", "pool", "hops", "decay", "fan_out", "timeout"),
    "llm_rerank": (*MODEL_OPTIONS, "depth", "top_n", "max_chars", "window", "stride", "prompt", "timeout"),
    "mmr": ("lambda_mult", "by", "depth", "timeout"),
    "near_duplicates": ("threshold", "by", "timeout"),
    "parents": (
        "store",
        "key",
        "max_chars",
        "max_tokens",
        "id_key",
        "header_key",
        "merge",
        "levels",
        "min_children_ratio",
        "timeout",
    ),
    "page_cap": ("max_chunks_per_page", "max_chunks_per_document", "page_key", "source_key"),
    "recency": ("weight", "half_life_days", "date_key", "reference_date", "depth"),
    "relevance": ("slope", "intercept"),
    "relevance_threshold": ("least",),
    "rerank": ("model", "backend", "depth", *RERANK_OPTIONS),
    "weighted": ("weights", "depth", "scale_fused", "timeout", "chunk_index_key", "chunks_in_file_key"),
}


def confidence(data: Any, stages: Sequence[Stage]) -> Callable[[Ranking], Confidence]:
    """A preset's confidence function: by any hit, or by its calibrated reranker's probabilities."""
    if data is None:
        return any_hit
    options = section("confidence", data, "least")
    found = threshold(stages, options.get("least", LEAST))
    if found is None:
        raise ConfigError(
            "confidence goes by the probabilities of a reranker: have a stage rerank whose model is in "
            f"rerank.CALIBRATIONS ({', '.join(CALIBRATIONS)}), or give it a calibration"
        )
    return found


def threshold(stages: Sequence[Stage], least: float) -> Threshold | None:
    """The threshold on the first reranker's probabilities; None without a reranker or its calibration."""
    reranker = next((one for one in stages if isinstance(one, CrossEncoderRerank)), None)
    known = None if reranker is None else reranker.calibration or CALIBRATIONS.get(reranker.scorer_name)
    return None if reranker is None or known is None else Threshold(known, least, reranker.name)
