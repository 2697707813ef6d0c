"""Hybrid search with vectors, keywords and RRF only: cheap enough to run once per claim of an answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voicevault_retrievers.core.channel import Channel, Rewritten, Then, Through
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.filters import Filter, both, scope
from voicevault_retrievers.core.types import Query, Ranking, as_query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.fusion.fuse import Fused

KINDS = ("keyword", "semantic", "hybrid")


def hybrid_search(
    channels: Channel | Mapping[str, Channel],
    text: str | Query,
    top_k: int = 5,
    *,
    where: Filter | None = None,
    require: Filter | None = None,
    timeout: float | None = None,
) -> Ranking:
    """The `top_k` best of keyword and vector channels by RRF (k 60), without expansion, routes, graph and reranking.

    `channels` maps names to channels, or is a composition whose keyword and vector channels are used (see `bare`). Of a
    Query, its own text, vectors, filters and access rights count. A channel that fails is skipped, with a failure,
    unless the composition raises errors. `timeout` is in seconds.
    """
    return bare(channels).search(_asked(text, where, require), top_k, timeout=timeout)


async def ahybrid_search(
    channels: Channel | Mapping[str, Channel],
    text: str | Query,
    top_k: int = 5,
    *,
    where: Filter | None = None,
    require: Filter | None = None,
    timeout: float | None = None,
) -> Ranking:
    """`hybrid_search` on the running event loop; the same ranking."""
    return await bare(channels).asearch(_asked(text, where, require), top_k, timeout=timeout)


def bare(channels: Channel | Mapping[str, Channel]) -> Channel:
    """The keyword and vector channels of a composition, fused by RRF, without this package's rewriters and stages.

    Filters and access rights that the composition itself applies stay. Rewriters and stages of your own stay too, since
    they may mask queries or documents. Raises ConfigError where there is no keyword or vector channel.
    """
    found = _bared(fuse(channels) if isinstance(channels, Mapping) else channels)
    if found is None:
        raise ConfigError("hybrid_search needs a keyword channel or a vector channel, and there is none")
    return found if isinstance(found, Fused) else fuse({found.name: found}, method=RRF())


def _bared(channel: Channel) -> Channel | None:
    if isinstance(channel, Fused):
        parts = {name: part for name, one in channel.channels.items() if (part := _bared(one)) is not None}
        depth = {name: channel.depths[name] for name in parts}
        return fuse(parts, method=RRF(), depth=depth, on_error=channel.on_error) if parts else None
    if isinstance(channel, Then | Rewritten):
        below = _bared(channel.below)
        if below is None or (channel.stage if isinstance(channel, Then) else channel.rewriter).own:
            return below
        return Then(below, channel.stage) if isinstance(channel, Then) else Rewritten(channel.rewriter, below)
    if isinstance(channel, Through):
        below = _bared(channel.below)
        if below is None:
            return None
        twin = copy.copy(channel)
        twin.below = below
        return twin
    return channel if channel.kind in KINDS else None


def _asked(text: str | Query, where: Filter | None, require: Filter | None) -> Query:
    asked = as_query(text)
    narrowed = both(asked.where, where), scope(asked.require, require)
    return replace(asked, variants=(), weights=None, route=None, where=narrowed[0], require=narrowed[1])


class HybridSearch:
    """Adds `hybrid_search` to a class with the channels `bm25()` and, unless `embedder` is None, `dense()`.

    A knowledge base without an embedder is searched by keywords alone.
    """

    def hybrid_search(
        self, text: str | Query, top_k: int = 5, *, where: Filter | None = None, require: Filter | None = None
    ) -> Ranking:
        """Hybrid search with vectors, keywords and RRF only, see `hybrid.hybrid_search`."""
        return hybrid_search(self._searched(), text, top_k, where=where, require=require)

    async def ahybrid_search(
        self, text: str | Query, top_k: int = 5, *, where: Filter | None = None, require: Filter | None = None
    ) -> Ranking:
        """`hybrid_search` on the running event loop; the same ranking."""
        channels = await aexecute(self._searching())
        return await ahybrid_search(channels, text, top_k, where=where, require=require)

    def _searching(self) -> Plan[Mapping[str, Channel]]:
        """`_searched` in a worker thread, as it may load an embedder."""
        (outcome,) = yield (Call("hybrid_search", self._searched),)
        channels: Mapping[str, Channel] = value_of(outcome)
        return channels

    def _searched(self) -> Mapping[str, Channel]:
        base: Any = self
        return {"bm25": base.bm25()} | ({} if base.embedder is None else {"dense": base.dense()})
