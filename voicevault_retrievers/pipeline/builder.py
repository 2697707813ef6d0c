"""A pipeline from options, built as a plain preset with these options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.access_control import Access
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage, check_named
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Failure, Ranking
from voicevault_retrievers.fusion import Method
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.rerank.calibration import Confidence, any_hit


def compose(
    channels: Mapping[str, Channel],
    *,
    expansion: Expand | Rewriter | list[Rewriter] | bool | None = None,
    fusion: Fusion | Method | str | None = None,
    rerank: Rerank | Stage | Scorer | str | bool | None = None,
    k: int = 5,
    timeout: float | None = None,
    context: ContextBuilder | None = None,
    confidence: Callable[[Ranking], Confidence] = any_hit,
    access: Access = "optional",
    notes: Iterable[Failure] = (),
) -> Pipeline:
    """Build the usual pipeline: expansion, fused channels, reranking, page cap, each only where it is asked for.

    For `expansion`, `fusion` and `rerank` see `Expand`, `Fusion` and `Rerank`; the others are options of `Pipeline`.
    Raises ConfigError for other values.
    """
    check_named(channels)
    preset = replace(
        Preset.plain(channels),
        k=k,
        timeout=timeout,
        context=context or ContextBuilder(),
        confidence=confidence,
        access=access,
    )
    varied = preset.with_options(Expand.of(expansion), Fusion.of(fusion), Rerank.of(rerank))
    return varied.build(channels, notes=notes)
