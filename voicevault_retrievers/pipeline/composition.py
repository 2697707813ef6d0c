"""What a pipeline needs to know of the parts of its channel."""

from __future__ import annotations

from voicevault_retrievers.core.channel import Channel, Rewritten, Then, Through
from voicevault_retrievers.core.types import ANY_EMBEDDER, Query, Result, Route
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.fuse import Fused
from voicevault_retrievers.structure.graph import GraphChannel


def graph_of(channel: Channel, query: Query) -> tuple[GraphChannel, Query] | None:
    """The first graph channel below a channel, and the query as it reaches that channel, with all filters above it."""
    if isinstance(channel, GraphChannel):
        return channel, query
    if isinstance(channel, Then) and not channel.stage.own:
        return None  # a stage of another package sees the graph's hits and may mask them
    if isinstance(channel, Through):
        query = channel.asked(query)
    parts = channel.children().values()
    return next((found for one in parts if (found := graph_of(one, query)) is not None), None)


def answers_directly(result: Result) -> bool:
    """Whether a graph answers the question itself: a SIMPLE one for which something was found."""
    return result.route is Route.SIMPLE and bool(result.hits)


def reads_history(channel: Channel) -> bool:
    """Whether a rewriter of a channel may read the conversation."""
    if isinstance(channel, Rewritten) and channel.rewriter.reads_history():
        return True
    return any(map(reads_history, channel.children().values()))


def check_weights(query: Query, channel: Channel) -> None:
    """Raise ConfigError where a query's weights name what is no fused channel."""
    names = _fused_names(channel) if query.weights else ()
    for name in query.weights or ():
        if name not in names:
            raise unknown("channel in weights", name, names)


def _fused_names(channel: Channel) -> set[str]:
    """The names of all fused channels below a channel."""
    children = channel.children()
    own = children if isinstance(channel, Fused) else ()
    return {*own, *(name for child in children.values() for name in _fused_names(child))}


def check_vector(query: Query, channel: Channel) -> None:
    """Raise ConfigError where a bare vector fits no channel. Channels of unknown dimension may fit."""
    bare = query.vectors.get(ANY_EMBEDDER)
    if bare is None:  # avoids asking a server for a dimension
        return
    semantic = [leaf for leaf in channel.leaves() if leaf.kind == "semantic"]
    known = {leaf.name: leaf.embedder.dimension for leaf in semantic if isinstance(leaf, VectorChannel)}
    if len(known) == len(semantic) and len(bare) not in known.values():
        raise ConfigError(f"the query's vector has dimension {len(bare)}, which fits no channel: {known or 'none'}")
