"""A pipeline from options: they make a preset, which is built as one from a file is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.access_control import Access
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Failure, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import AdaptiveSum, Method, method_of
from voicevault_retrievers.fusion.fuse import DEPTH, OnError
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Base, Preset
from voicevault_retrievers.query import RuleExpansion, RuleRouter, Together
from voicevault_retrievers.rerank import CrossEncoderRerank, PageCap
from voicevault_retrievers.rerank.calibration import Confidence, any_hit
from voicevault_retrievers.structure.graph import GraphStore


def compose(
    channels: Mapping[str, Channel],
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
    confidence: Callable[[Ranking], Confidence] = any_hit,
    access: Access = "optional",
    flare: Flare | None = None,
    notes: Iterable[Failure] = (),
    graph: GraphStore | None = None,
    base: Base | None = None,
) -> Pipeline:
    """The usual pipeline: expansion, the channels fused, reranking, the page cap; each only where it is asked for.

    `expansion` True is by rules; several go together. `route` True, or the channels of each route by name, is by rules
    too, see `RuleRouter`. `rerank` is a stage, a scorer or the name of a cross-encoder. `graph` is searched as a
    channel of that name, with the references that `base` knows. The others are options of `Pipeline`. Raises
    ConfigError for what is none of these.
    """
    stages = [] if rerank is None else [_reranker(rerank)]
    if max_chunks_per_page is not None:
        stages.append(PageCap(max_chunks_per_page))
    names = [*channels, *(() if graph is None else ("graph",))]
    preset = Preset(
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
        confidence=confidence,
        access=access,
    )
    pipeline = preset.build(channels, notes=notes, base=base, graph=graph)
    return pipeline if flare is None else pipeline.flaring(flare)


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
