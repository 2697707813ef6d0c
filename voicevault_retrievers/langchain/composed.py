"""What searches several channels as one: fused, reranked, capped by page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import InstanceOf

from voicevault_retrievers.channel import Channel, Stage
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.pipeline import Pipeline, compose
from voicevault_retrievers.presets import Base, Preset, load_preset
from voicevault_retrievers.rerank import CrossEncoderRerank


class ComposedRetriever(PipelineRetriever):
    """Several channels fused, then reranked and capped by page where that is asked for.

    `weights` and `depth` (hits asked of a channel) go by channel name. `expansion` True adds wordings by rules.
    `rerank` is a stage, a scorer or the name of a cross-encoder. A `preset` says all of this itself, and `k`, `timeout`
    and `on_error` unless they are given.
    """

    preset: str | Path | InstanceOf[Preset] | None = None
    weights: dict[str, float] | None = None
    depth: int | dict[str, int] = DEPTH
    fusion: Any = None
    expansion: Any = False
    rerank: Any = None
    max_chunks_per_page: int | None = None

    def _check(self) -> None:
        super()._check()
        if self.preset is not None:
            fields = {name: type(self).model_fields[name].get_default() for name in _COMPOSED}
            taken = [name for name, default in fields.items() if getattr(self, name) != default]
            if taken:
                raise ConfigError(
                    f"the preset {self.preset!r} has its own {', '.join(taken)}: leave out one or the other"
                )
            if "k" not in self.model_fields_set:
                self.k = self._preset().k
        if self.rerank is not None and not isinstance(self.rerank, Stage):
            # One stage for good: LangChain makes a retriever anew for each call with a configured field.
            self.rerank = CrossEncoderRerank(self.rerank)

    def _preset(self) -> Preset:
        """The preset, with this retriever's timeout and on_error where they are given."""
        preset = self.preset if isinstance(self.preset, Preset) else load_preset(self.preset or "")
        given = {name: getattr(self, name) for name in ("timeout", "on_error") if name in self.model_fields_set}
        return replace(preset, **given)

    def _over_base(self, base: Base) -> Pipeline:
        if self.preset is not None:
            return self._preset().over(base)
        return self._over({"bm25": base.bm25(), "dense": base.dense()}, notes=getattr(base, "notes", ()))

    def _over(self, channels: Mapping[str, Channel], **options: Any) -> Pipeline:
        if self.preset is not None:
            return self._preset().build(channels)
        composed = {name: getattr(self, name) for name in _COMPOSED}
        return compose(channels, **composed, timeout=self.timeout, on_error=self.on_error, **options)


_COMPOSED = ("weights", "depth", "fusion", "expansion", "rerank", "max_chunks_per_page")
