"""Between LlamaIndex's nodes and query bundles, and chunks and queries."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.types import ANY_EMBEDDER, Chunk, Query, Variant, as_query


@dataclass(frozen=True)
class NodeChunk(Chunk):
    """A chunk that remembers the node it was made from, which is never written to."""

    node: BaseNode | None = field(default=None, compare=False, repr=False)


def chunk_of(node: BaseNode) -> NodeChunk:
    """A chunk of a node's bare text; its parent is the node's PARENT, else its SOURCE."""
    if not isinstance(node, BaseNode):
        raise ConfigError(f"expected a LlamaIndex node, not {type(node).__name__}")
    return NodeChunk(
        node.node_id,
        node.get_content(metadata_mode=MetadataMode.NONE),
        _parent_id(node),
        copy.deepcopy(node.metadata),
        node=node,
    )


def chunks_of(nodes: Iterable[BaseNode]) -> list[Chunk]:
    """Chunks of nodes, in their order; one given twice is one."""
    return list(dict.fromkeys(map(chunk_of, nodes)))


def node_of(chunk: Chunk, context: str | None = None) -> BaseNode:
    """A new node: a copy of the one that the chunk was made from, else a TextNode with the chunk's fields.

    `context` replaces its text, where a model is to read more than was searched.
    """
    original = chunk.node if isinstance(chunk, NodeChunk) else None
    node = _rebuilt(chunk) if original is None else _copied(original)
    if context is not None:
        node.set_content(context)
    return node


def query_of(asked: str | QueryBundle | Query) -> Query:
    """A query. A bundle's embedding stands for its text; its custom embedding strings are for vector channels."""
    if not isinstance(asked, QueryBundle):
        return as_query(asked)
    semantic = frozenset({"semantic"})
    return Query(
        asked.query_str,
        variants=tuple(Variant(text, channels=semantic) for text in asked.custom_embedding_strs or ()),
        vectors={ANY_EMBEDDER: np.array(asked.embedding, dtype=np.float32)} if asked.embedding else {},
    )


def _parent_id(node: BaseNode) -> str | None:
    for relationship in (NodeRelationship.PARENT, NodeRelationship.SOURCE):
        related = node.relationships.get(relationship)
        if isinstance(related, RelatedNodeInfo):
            return related.node_id
    return None


def _copied(node: BaseNode) -> BaseNode:
    """A deep copy, but for what an IndexNode points to: that may be an index or a retriever."""
    target: Any = getattr(node, "obj", None)
    return copy.deepcopy(node, {id(target): target})


def _rebuilt(chunk: Chunk) -> TextNode:
    parent = {} if chunk.parent_id is None else {NodeRelationship.PARENT: RelatedNodeInfo(node_id=chunk.parent_id)}
    return TextNode(id_=chunk.id, text=chunk.text, metadata=copy.deepcopy(dict(chunk.metadata)), relationships=parent)
