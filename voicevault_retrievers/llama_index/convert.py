"""Between LlamaIndex's nodes and query bundles, and chunks and queries.

A node that is kept on disk is a chunk with what a chunk has no field for under one more key of its metadata, the one
that LlamaIndex's vector stores have for it, as JSON.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageDocument,
    ImageNode,
    IndexNode,
    MetadataMode,
    Node,
    NodeRelationship,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.types import ANY_EMBEDDER, Chunk, Query, Variant, as_query

KEPT = "_node_content"
_NODES: Mapping[str, type[BaseNode]] = {
    cls.class_name(): cls for cls in (Document, ImageDocument, ImageNode, IndexNode, Node, TextNode)
}


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
    """A new node: a copy of the one that the chunk was made from or kept, else a TextNode with the chunk's fields.

    `context` replaces its text, where a model is to read more than was searched.
    """
    found = restored(chunk) if KEPT in chunk.metadata else chunk
    original = found.node if isinstance(found, NodeChunk) else None
    node = _rebuilt(chunk) if original is None else _copied(original)
    if context is not None:
        node.set_content(context)
    return node


def stored(chunk: Chunk) -> Chunk:
    """The chunk as it is kept on disk; `restored` makes it again. ConfigError for a node that cannot be kept."""
    node = chunk.node if isinstance(chunk, NodeChunk) else None
    if node is None:
        return chunk
    target = getattr(node, "obj", None)
    if type(node) is not _NODES.get(node.class_name()) or not isinstance(target, BaseNode | None):
        raise ConfigError(
            f"node {node.node_id!r} is a {type(node).__name__}{f' for a {type(target).__name__}' if target else ''}: "
            f"what can be kept is {', '.join(sorted(_NODES))}, an IndexNode with a node or nothing as its obj"
        )
    dropped = {"metadata", "embedding", *(("text",) if isinstance(node, TextNode) else ())}
    body = json.dumps(node.to_dict(mode="json", exclude=dropped))
    return Chunk(chunk.id, chunk.text, chunk.parent_id, {**chunk.metadata, KEPT: body})


def restored(chunk: Chunk) -> Chunk:
    """The chunk that was `stored`, without the name of the knowledge base."""
    metadata = dict(chunk.metadata)
    body = metadata.pop(KEPT, None)
    node = None if body is None else node_from({"text": chunk.text, **json.loads(body), "metadata": metadata})
    return NodeChunk(chunk.id, chunk.text, chunk.parent_id, metadata, node=node)


def node_from(data: Mapping[str, Any]) -> BaseNode:
    """The node of its dict; ValueError where it is of an unknown class."""
    name = str(data.get("class_name"))
    if name not in _NODES:
        raise ValueError(f"a node's class_name is one of {', '.join(sorted(_NODES))}, not {name!r}")
    return _NODES[name].from_dict(dict(data))


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
