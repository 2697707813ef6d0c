"""The objects that index nodes point to (nodes, retrievers, query engines), searched with the same query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore

from voicevault_retrievers.core.access_control import withheld
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.explanation import rights_as_data, rights_in
from voicevault_retrievers.core.filters import Filter, compile_filter, scope
from voicevault_retrievers.core.types import Failure, check_scores
from voicevault_retrievers.errors import InvalidScoreError
from voicevault_retrievers.llama_index.convert import NodeWithProvenance, chunk_of, explained, node_of, provenance

THROUGH = "through"
INDEX = "index"
"""Provenance keys: the id of the index node that led to a node, and the index node's own provenance, where the object
has given the node a provenance already."""

_OF_THE_CHUNK = frozenset({"kb", "parent_id", "text"})


@dataclass(frozen=True)
class Entrance:
    """How objects are searched.

    `retrieve` maps an object, its index node's score and the access rights that hold below it to the object's nodes.
    """

    objects: Mapping[str, Any]
    require: Filter | None
    retrieve: Callable[[Any, float | None, Filter | None], Sequence[NodeWithScore]]
    aretrieve: Callable[[Any, float | None, Filter | None], Awaitable[Sequence[NodeWithScore]]]

    def target(self, node: BaseNode) -> Any:
        """The object that a node points to; None where there is none."""
        if not isinstance(node, IndexNode):
            return None
        return self.objects.get(node.index_id) if node.obj is None else node.obj


@dataclass(frozen=True)
class Entered:
    """The nodes after index nodes were replaced by their objects' nodes, and the failures of objects."""

    nodes: tuple[NodeWithScore, ...]
    failures: tuple[Failure, ...] = ()


def entered(nodes: Sequence[NodeWithScore], entrance: Entrance) -> Plan[Entered]:
    """The nodes, with each index node replaced by the nodes of its object. All objects are searched in parallel.

    An index node whose object fails stays. Nodes are left out that `require`, or the rights under which their index
    node was found, do not permit. Each node appears once.
    """
    outcomes = yield tuple(_place(node, entrance.target(node.node), entrance) for node in nodes)
    places: list[Entered] = [value_of(outcome) for outcome in outcomes]
    failures = tuple(dict.fromkeys(chain.from_iterable(place.failures for place in places)))
    found = _once(chain.from_iterable(place.nodes for place in places))
    return Entered(tuple(_degraded(node, failures) if failures else node for node in found), failures)


def _place(node: NodeWithScore, target: Any, entrance: Entrance) -> Plan[Entered]:
    if target is None:
        return Entered((node,))
    rights = scope(entrance.require, rights_in(provenance(node) or {}))
    (outcome,) = yield (_call(node, target, entrance, rights),)
    error = outcome if isinstance(outcome, Exception) else _wrong(outcome)
    if error is not None:
        return Entered((node,), (Failure.of(_name(node), error),))
    answers = isinstance(target, BaseQueryEngine)
    reached = [_through(node, found, f"{node.node_id}/response" if answers else None, rights) for found in outcome]
    passes = compile_filter(rights)
    permitted = tuple(found for found in reached if passes(found.metadata))
    return Entered(permitted, () if len(permitted) == len(reached) else (withheld(),))


def _call(node: NodeWithScore, target: Any, entrance: Entrance, rights: Filter | None) -> Call:
    sync_only = isinstance(target, BaseRetriever) and type(target)._aretrieve is BaseRetriever._aretrieve
    return Call(
        _name(node),
        partial(entrance.retrieve, target, node.score, rights),
        None if sync_only else partial(entrance.aretrieve, target, node.score, rights),
        inline=isinstance(target, BaseNode | NodeWithScore),
    )


def _wrong(found: Sequence[NodeWithScore]) -> InvalidScoreError | None:
    """The error of an object's nodes: a score that is NaN or infinite."""
    try:
        check_scores((node.node_id, node.score) for node in found)
    except InvalidScoreError as error:
        return error
    return None


def _name(node: NodeWithScore) -> str:
    return f"object {node.node.index_id}" if isinstance(node.node, IndexNode) else node.node_id


def _through(
    index: NodeWithScore, found: NodeWithScore, node_id: str | None, rights: Filter | None
) -> NodeWithProvenance:
    """A copy of an object's node, with its own score, its access rights, and the index node that led to it."""
    outer, own = provenance(index) or {}, provenance(found)
    node = node_of(chunk_of(found.node))
    if node_id is not None:  # a response has a random id, which would make it another node in each search
        node.id_ = node_id
    if own:
        told = {**deepcopy(own), INDEX: deepcopy(outer)}
    else:
        told = {key: deepcopy(value) for key, value in outer.items() if key not in _OF_THE_CHUNK}
    if (held := scope(rights, rights_in(told))) is not None:
        told["require"] = rights_as_data(held)
    return explained(node, found.score, {**told, THROUGH: index.node_id})


def _once(nodes: Iterable[NodeWithScore]) -> Iterator[NodeWithScore]:
    """Each node once; nodes of several knowledge bases may share an id."""
    seen: set[tuple[str | None, str]] = set()
    for node in nodes:
        key = (provenance(node) or {}).get("kb"), node.node_id
        if key not in seen:
            seen.add(key)
            yield node


def _degraded(node: NodeWithScore, failures: Sequence[Failure]) -> NodeWithProvenance:
    told = provenance(node) or {}
    said = [*told.get("degraded", ()), *map(str, failures)]
    return explained(node.node, node.score, {**told, "degraded": said})
