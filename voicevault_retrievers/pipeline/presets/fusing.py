"""The fusion of a pipeline: here, or by the engine that is searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.engines.channels import EngineBM25, EngineDense
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import RRF, EngineRRF, Method, fuse
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.pipeline.presets.missing_parts import NotOpenChannel


def fused(
    channels: Mapping[str, Channel],
    method: Method,
    weights: Mapping[str, float],
    depths: Mapping[str, int],
    on_error: OnError,
) -> Channel:
    """The channels, fused by the method.

    `EngineRRF` becomes one request to the engine, which fails or succeeds as a whole. It raises ConfigError where the
    channels are not `bm25` and `dense` of one collection of an engine that can fuse, have weights or different depths,
    or where `dense` has options, which the request would not have.
    """
    if not isinstance(method, EngineRRF):
        return fuse(channels, method=method, weights=weights, depth=depths, on_error=on_error)
    if set(channels) != {"bm25", "dense"} or set(weights.values()) - {1.0}:
        raise ConfigError("the fusion 'engine' fuses the channels bm25 and dense, without weights")
    if any(isinstance(one, NotOpenChannel) for one in channels.values()):
        return fuse(channels, method=RRF(method.k), depth=depths)  # never searched
    bm25, dense = channels["bm25"], channels["dense"]
    if not isinstance(bm25, EngineBM25) or not isinstance(dense, EngineDense) or dense.engine is not bm25.engine:
        raise ConfigError("the fusion 'engine' is for one collection of an engine: other channels are fused by 'rrf'")
    engine = cast(Engine, bm25.engine)
    if dense.has_options or len(set(depths.values())) > 1:
        raise ConfigError("the fusion 'engine' takes one depth, and no options of dense: fuse by 'rrf'")
    return engine.fused(k=method.k, depth=depths["bm25"], **bm25.options)
