"""Nodes that say why they were found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, NodeWithScore

from voicevault_retrievers.core.explanation import finite, of_search, votes_of
from voicevault_retrievers.core.types import Hit
from voicevault_retrievers.llama_index.convert import chunk_of, node_from, node_of

# Kept in the node's __dict__ beside its fields: it is copied with the node, but is no part of its hash, its content
# or its serialised form.
_MARK = "_voicevault"


class NodeWithProvenance(NodeWithScore):
    """A node, its score (None where it was not scored), and how it was found.

    Unlike its base it can be rebuilt from its own JSON; ValidationError where the node is of an unknown class.
    """

    provenance: dict[str, Any] = Field(
        default_factory=dict, description="How the node was found: channels, ranks, scores and their contributions."
    )

    @model_validator(mode="before")
    @classmethod
    def _rebuild_node(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("node"), Mapping):
            return data
        return {**data, "node": _marked(node_from(data["node"]), data.get("provenance"))}

    @classmethod
    def class_name(cls) -> str:
        return "NodeWithProvenance"


def provenance(node_with_score: NodeWithScore) -> dict[str, Any] | None:
    """How a node was found; None where nothing is known.

    It is also found on a plain NodeWithScore that holds a node returned by this package.
    """
    own = node_with_score.provenance if isinstance(node_with_score, NodeWithProvenance) else None
    return own or node_with_score.node.__dict__.get(_MARK)


def explained(node: BaseNode, score: float | None, told: Mapping[str, Any]) -> NodeWithProvenance:
    """A node with its provenance, which is also put on the node: it must be one of ours, not the caller's."""
    return NodeWithProvenance(node=_marked(node, told), score=score, provenance=dict(told))


def node_of_hit(hit: Hit, degraded: Sequence[str] = (), wordings: Sequence[str] = ()) -> NodeWithProvenance:
    """A hit as a new node; `degraded` says what was skipped in the search that found it, `wordings` what was asked."""
    return explained(read_node(hit), hit.score, of_search(hit, degraded, wordings))


def read_node(hit: Hit) -> BaseNode:
    """A new node of a hit's chunk with the text that a model is to read: none where that is over a budget."""
    if hit.context is not None or not hit.over_budget:
        return node_of(hit.chunk, hit.context)
    node = node_of(hit.chunk, "")
    node.excluded_llm_metadata_keys = list(node.metadata)
    return node


def nodes_of_hits(
    hits: Iterable[Hit], degraded: Sequence[str] = (), wordings: Sequence[str] = ()
) -> list[NodeWithScore]:
    """`node_of_hit` of each."""
    return [node_of_hit(hit, degraded, wordings) for hit in hits]


def hit_of(node_with_score: NodeWithScore, chunk_id: str | None = None) -> Hit:
    """The hit that a node was made of (see `node_of_hit`): its chunk, score, votes and wider context.

    Of anybody's node, what is known of it. `chunk_id` takes the place of the node's own id. A score that is no finite
    number is left out.
    """
    chunk, told = chunk_of(node_with_score.node), provenance(node_with_score) or {}
    kb, found = told.get("kb"), told.get("text")
    over = told.get("over_budget") is True
    context = chunk.text if isinstance(found, str) and (chunk.text or not over) else None
    chunk = replace(
        chunk,
        id=chunk.id if chunk_id is None else chunk_id,
        text=found if isinstance(found, str) else chunk.text,
        kb=kb if isinstance(kb, str) else "",
    )
    return Hit(chunk, finite(node_with_score.score), votes_of(told), context, over_budget=over)


def _marked(node: BaseNode, told: Mapping[str, Any] | None) -> BaseNode:
    if told:
        node.__dict__[_MARK] = dict(told)
    return node
