"""Questions and the graph as channels of a retriever, beside those of words and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.structure.graph import GraphChannel, GraphStore, ReferenceReader


def structural(questions: Any, graph: Any, *, based: bool) -> tuple[dict[str, Channel], dict[str, Mapping[str, Any]]]:
    """Of `questions` and `graph` those that are given as channels, and the options of those that a base is to make.

    A graph store is neither (see `store_of`). Raises ConfigError for what asks for nothing of these, and where one is
    to be made and nothing is `based` on a base.
    """
    given: dict[str, Channel] = {}
    made: dict[str, Mapping[str, Any]] = {}
    for name, asked in (("questions", questions), ("graph", None if store_of(graph) else graph)):
        if isinstance(asked, Channel):
            given[name] = asked.named(name)
        elif (options := _options(name, asked)) is not None:
            if not based:
                raise ConfigError(f"{name} is made of knowledge bases: give kb_names, or a channel as {name}")
            made[name] = options
    return given, made


def store_of(graph: Any) -> GraphStore | None:
    """The graph store that is given as `graph`; None where something else is."""
    return graph if isinstance(graph, GraphStore) else None


def graph_over(store: GraphStore, base: Any, *, hops: int = 2, **options: Any) -> GraphChannel:
    """The channel over a graph that is kept elsewhere; `options` are those of `KnowledgeBase.graph`.

    References are read out of a query as a base's own graph reads them, which knows the laws that its chunks declare;
    without a base by rules alone.
    """
    references = getattr(base, "references", None)
    reader = references() if callable(references) else None
    known = reader if isinstance(reader, ReferenceReader) else None
    return GraphChannel(store, reader=known, depth=hops, **options)


def _options(name: str, given: Any) -> Mapping[str, Any] | None:
    """The options of a channel that is asked for; None where it is not, ConfigError for what asks for none."""
    if given is None or given is False:
        return None
    if given is True:
        return {}
    if isinstance(given, Mapping):
        return given
    store = ", a graph store" if name == "graph" else ""
    raise ConfigError(f"{name} is true, a mapping of options{store}, or a channel, not a {type(given).__name__}")
