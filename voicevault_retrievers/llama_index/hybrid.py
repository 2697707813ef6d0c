"""Hybrid search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import BaseNode

from voicevault_retrievers.channel import Channel, Rewriter, Stage
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.dense.exact import VectorChannel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import Method, OnError
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.bm25 import analyzer_of
from voicevault_retrievers.llama_index.channels import Part, as_channel
from voicevault_retrievers.llama_index.convert import chunks_of
from voicevault_retrievers.llama_index.embedder import as_embedder
from voicevault_retrievers.llama_index.listing import nodes_of
from voicevault_retrievers.pipeline import Pipeline, compose
from voicevault_retrievers.presets import Base, Preset, load_preset
from voicevault_retrievers.protocols import Embedder, Scorer
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.types import Failure

H = TypeVar("H", bound="HybridRetriever")


class HybridRetriever(PipelineRetriever):
    """Several channels fused, then reranked and capped by page where that is asked for.

    The channels are those of the knowledge bases `kb_names`, by name under `root` or open (`bm25` and `dense`), and
    `channels`: each a channel, a LlamaIndex retriever or an index. `weights` and `depth` (hits asked of a channel) go
    by channel name. `expansion` True adds wordings by rules. `rerank` is a stage, a scorer or the name of a
    cross-encoder. `timeout` bounds a search in seconds. `on_error` "skip" (the default) leaves out a channel or stage
    that fails, and the nodes say so; "raise" raises its error. A `preset`, or its name, sets all of these from
    `weights` on; of them only `timeout` and `on_error` may be given beside it. `options` are those of
    `PipelineRetriever`: k or similarity_top_k (5), where, require, callback_manager, object_map, objects, verbose.
    """

    def __init__(
        self,
        kb_names: Sequence[str | Path | KnowledgeBase] | str = (),
        *,
        root: str | Path | None = None,
        channels: Mapping[str, Part] | None = None,
        preset: Preset | str | Path | None = None,
        weights: Mapping[str, float] | None = None,
        depth: int | Mapping[str, int] | None = None,
        fusion: Method | None = None,
        expansion: Rewriter | bool | None = None,
        rerank: Stage | Scorer | str | None = None,
        max_chunks_per_page: int | None = None,
        timeout: float | None = None,
        on_error: OnError | None = None,
        **options: Any,
    ) -> None:
        parts = {
            "weights": weights, "depth": depth, "fusion": fusion, "expansion": expansion, "rerank": rerank,
            "max_chunks_per_page": max_chunks_per_page, "timeout": timeout, "on_error": on_error,
        }  # fmt: skip
        chosen = _preset(preset)
        bases = Bases([kb_names] if isinstance(kb_names, str) else kb_names, root=root) if kb_names else None
        if not isinstance(channels or {}, Mapping):
            raise ConfigError(f"channels is a mapping of names to channels, not {type(channels).__name__}")
        given = {name: as_channel(part) for name, part in (channels or {}).items()}
        self._recipe = (bases, given, chosen, parts)
        super().__init__(self._pipeline(), **options)
        self._children = {name: part for name, part in (channels or {}).items() if isinstance(part, BaseRetriever)}

    def _pipeline(self) -> Pipeline:
        """Over the present state of the knowledge bases."""
        bases, given, chosen, parts = self._recipe
        stored = _channels(bases, _wanted(chosen)) if bases is not None else {}
        if taken := stored.keys() & given.keys():
            raise ConfigError(f"the knowledge bases have channels {sorted(taken)}; give yours other names")
        return _composed({**stored, **given}, chosen, parts, bases.notes if bases is not None else ())

    @classmethod
    def from_nodes(
        cls: type[H],
        nodes: Sequence[BaseNode],
        embed_model: BaseEmbedding | Embedder | str | None = None,
        *,
        language: str | None = "auto",
        formula: Formula | str | None = None,
        analyzer: AnyAnalyzer | None = None,
        preset: Preset | str | Path | None = None,
        **options: Any,
    ) -> H:
        """BM25 over nodes held in memory (`bm25`, "lucene" unless the `formula` or the preset says otherwise).

        Beside it is exact vector search (`dense`); the nodes' bare text is embedded now. `embed_model` None is the
        preset's model, else as `as_embedder` has it. `language` and `analyzer` as of `BM25Retriever.from_nodes`.
        """
        chosen = _preset(preset)
        base = _InMemory(nodes, analyzer_of(language, analyzer), embed_model, chosen)
        return cls(channels=_channels(base, _wanted(chosen, formula)), preset=chosen, **options)

    @classmethod
    def from_index(
        cls: type[H],
        index: VectorStoreIndex,
        *,
        language: str | None = "auto",
        formula: Formula | str | None = None,
        analyzer: AnyAnalyzer | None = None,
        preset: Preset | str | Path | None = None,
        **options: Any,
    ) -> H:
        """BM25 over the nodes of an index (`bm25`), and the index itself (`dense`). Raises as `nodes_of`."""
        chosen = _preset(preset)
        bm25 = _InMemory(nodes_of(index), analyzer_of(language, analyzer)).bm25(
            **_wanted(chosen, formula).get("bm25", {})
        )
        return cls(channels={"bm25": bm25, "dense": index}, preset=chosen, **options)

    def reload(self) -> bool:
        """See what was committed to the knowledge bases, or which were created, since; whether there was anything."""
        bases = self._recipe[0]
        changed = bases is not None and bases.reload()
        if changed:
            self.pipeline = self._pipeline()
        return changed

    def _get_prompt_modules(self) -> PromptMixinType:
        return dict(self._children)


def _preset(preset: Preset | str | Path | None) -> Preset | None:
    return preset if preset is None or isinstance(preset, Preset) else load_preset(preset)


def _wanted(preset: Preset | None, formula: Formula | str | None = None) -> dict[str, Mapping[str, Any]]:
    """The channels to be built, and the options of each."""
    if preset is None:
        return {"bm25": {"formula": formula or "lucene"}, "dense": {}}
    if formula is not None:
        raise ConfigError(f"preset {preset.name!r} says which BM25 formula; formula={formula!r} is not given beside it")
    return dict(preset.channels)


def _channels(base: Base, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, Channel]:
    return {name: getattr(base, name)(**options) for name, options in wanted.items()}


def _composed(
    channels: Mapping[str, Channel], preset: Preset | None, parts: Mapping[str, Any], notes: Sequence[Failure]
) -> Pipeline:
    given = {name: value for name, value in parts.items() if value is not None}
    if preset is None:
        return compose(channels, **given, notes=notes)
    if clash := given.keys() - {"timeout", "on_error"}:
        raise ConfigError(f"preset {preset.name!r} sets {', '.join(sorted(clash))}; give the preset or these")
    return replace(preset, **given).build(channels, notes=notes)


class _InMemory:
    """Nodes as a preset sees a knowledge base: something that makes channels."""

    def __init__(
        self,
        nodes: Sequence[BaseNode],
        analyzer: AnyAnalyzer,
        embed_model: BaseEmbedding | Embedder | str | None = None,
        preset: Preset | None = None,
    ) -> None:
        self.chunks = chunks_of(nodes)
        self.analyzer = analyzer
        self.embed_model = embed_model
        self.preset = preset

    def bm25(self, **options: Any) -> Channel:
        return BM25.from_chunks(self.chunks, self.analyzer, **options)

    def dense(self, **options: Any) -> Channel:
        return VectorChannel.from_chunks(self.chunks, self._embedder(), **options)

    def _embedder(self) -> Embedder:
        if self.embed_model is None and self.preset is not None:
            return load_embedder(self.preset.model, self.preset.backend)
        return as_embedder(self.embed_model)
