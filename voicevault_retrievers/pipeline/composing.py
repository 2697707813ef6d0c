"""The usual pipeline, of named parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import Method, fuse
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import RuleExpansion, RuleRouter, Together
from voicevault_retrievers.rerank import CrossEncoderRerank, PageCap


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
    **options: Any,
) -> Pipeline:
    """The usual pipeline: expansion, the channels fused, reranking, the page cap; each only where it is asked for.

    `expansion` True is by rules; several go together. `route` True, or the channels of each route by name, is by rules
    too, see `RuleRouter`. `rerank` is a stage, a scorer or the name of a cross-encoder.
    `options` are those of `Pipeline`.
    """
    on_error = options.get("on_error", "skip")
    channel: Channel = fuse(channels, method=fusion, weights=weights, depth=depth, on_error=on_error)
    if expansion:
        channel = _rewriter(expansion) >> channel
    if (router := router_of(route)) is not None:
        channel = router >> channel
    if rerank is not None:
        channel = channel >> _reranker(rerank)
    if max_chunks_per_page is not None:
        channel = channel >> PageCap(max_chunks_per_page)
    return Pipeline(channel, **options)


def _rewriter(expansion: Rewriter | Sequence[Rewriter] | bool) -> Rewriter:
    if isinstance(expansion, list | tuple):
        return Together(expansion)
    if isinstance(expansion, Rewriter | bool):
        return RuleExpansion() if isinstance(expansion, bool) else expansion
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
