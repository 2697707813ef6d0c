"""A pipeline from options: they make a preset, which is built as one from a file is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import AdaptiveSum, Method, method_of
from voicevault_retrievers.fusion.fuse import DEPTH, OnError
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import RuleExpansion, RuleRouter, Together
from voicevault_retrievers.rerank import CrossEncoderRerank, PageCap


def compose(channels: Mapping[str, Channel], **options: Any) -> Pipeline:
    """The usual pipeline over channels: expansion, fusion, reranking, the page cap; each where it is asked for.

    `options` are those of `preset_of_options`.
    """
    return preset_of_options(channels, **options).build(channels)


def preset_of_options(
    channels: Iterable[str],
    *,
    expansion: Rewriter | Sequence[Rewriter] | bool = False,
    fusion: Method | None = None,
    weights: Mapping[str, float] | None = None,
    depth: int | Mapping[str, int] = DEPTH,
    rerank: Stage | Scorer | str | None = None,
    max_chunks_per_page: int | None = None,
    route: Rewriter | Mapping[str, Iterable[str]] | bool | None = None,
    k: int = 5,
    context: ContextBuilder | None = None,
    timeout: float | None = None,
    on_error: OnError = "skip",
) -> Preset:
    """The preset of these options, for channels of these names.

    `expansion` True is by rules; several go together. `route` True, or the channels of each route by name, is by rules
    too, see `RuleRouter`. `rerank` is a stage, a scorer or the name of a cross-encoder. Raises ConfigError for options
    that are none of these.
    """
    names = tuple(channels)
    stages = [] if rerank is None else [_reranker(rerank)]
    if max_chunks_per_page is not None:
        stages.append(PageCap(max_chunks_per_page))
    return Preset(
        name="custom",
        channels={name: {} for name in names},
        depths=depth if isinstance(depth, Mapping) else dict.fromkeys(names, depth),
        route=router_of(route),
        expansion=_rewriter(expansion),
        method=method_of(fusion) or AdaptiveSum(),
        weights=weights or {},
        stages=tuple(stages),
        context=context or ContextBuilder(),
        k=k,
        timeout=timeout,
        on_error=on_error,
    )


def _rewriter(expansion: Rewriter | Sequence[Rewriter] | bool) -> Rewriter | None:
    if isinstance(expansion, list | tuple):
        return Together(expansion) if expansion else None
    if isinstance(expansion, Rewriter):
        return expansion
    if isinstance(expansion, bool):
        return RuleExpansion() if expansion else None
    raise ConfigError(f"expansion is true, or rewriters such as RuleExpansion(3), not {expansion!r}")


def router_of(route: Rewriter | Mapping[str, Iterable[str]] | bool | None) -> Rewriter | None:
    """A router as it is, or one by rules: of routes to channel names, or True; None where it is False or None."""
    if route is None or route is False:
        return None
    if isinstance(route, Rewriter):
        return route
    if isinstance(route, Mapping | bool):
        return RuleRouter(None if isinstance(route, bool) else route)
    raise ConfigError(f"route is true, a mapping of routes to channel names, or a router, not {route!r}")


def _reranker(rerank: Stage | Scorer | str) -> Stage:
    if isinstance(rerank, Stage):
        return rerank
    if isinstance(rerank, str | Scorer):
        return CrossEncoderRerank(rerank)
    raise ConfigError(f"rerank is a stage, a scorer or the name of a cross-encoder, not a {type(rerank).__name__}")
