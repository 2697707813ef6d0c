"""Conversion between LlamaIndex's nodes and query bundles, and chunks and queries.

A node stored on disk is a chunk with two more metadata keys. `_node_content`, named as in LlamaIndex's vector stores,
has the node's other fields as JSON. `_ref_doc_id` has the document's id, for filters. Where the node's own metadata has
such a key, its value is stored in the JSON.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageDocument,
    ImageNode,
    IndexNode,
    MetadataMode,
    Node,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from voicevault_retrievers._support.checks import metadata_copy
from voicevault_retrievers._support.duplicates import ATOMS, duplicate
from voicevault_retrievers.answers.citations import LAST, citation_of, numbered_header
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.explanation import (
    PassageText,
    current,
    degraded_in,
    finite,
    of_search,
    passages_in,
    rights_in,
    sealed,
    votes_of,
)
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk, Hit, Query, Variant, as_query
from voicevault_retrievers.errors import ConfigError

KEPT = "_node_content"
REF_DOC = "_ref_doc_id"
MARKS = (KEPT, REF_DOC)
# In the node's __dict__, beside its fields: copied with the node, but not part of its hash, content or JSON.
_MARK = "_voicevault"
_NODES: Mapping[str, type[BaseNode]] = {
    cls.class_name(): cls for cls in (Document, ImageDocument, ImageNode, IndexNode, Node, TextNode)
}


@dataclass(frozen=True)
class NodeChunk(Chunk):
    """A chunk with the node it was made from, which is never written to."""

    node: BaseNode | None = field(default=None, compare=False, repr=False)


def chunk_of(node: BaseNode, metadata_mode: MetadataMode = MetadataMode.EMBED) -> NodeChunk:
    """The chunk of a node's bare text; its parent is the node's PARENT, else its SOURCE.

    Its header is the metadata that LlamaIndex embeds with the text, or those of another `metadata_mode`. A node that
    was found keeps the header that it was found with.
    """
    if not isinstance(node, BaseNode):
        raise ConfigError(f"expected a LlamaIndex node, not {type(node).__name__}")
    text, marked = node.get_content(metadata_mode=MetadataMode.NONE), node.__dict__.get(_MARK)
    told = None if marked is None else current(marked, text, node.metadata)
    return NodeChunk(
        node.node_id,
        text,
        _parent_id(node),
        metadata_copy(f"node {node.node_id!r}", node.metadata),
        header=told.get("header", "") if told is marked and told else node.get_metadata_str(mode=metadata_mode),
        node=node,
    )


def kept_chunk_of(node: BaseNode, metadata_mode: MetadataMode = MetadataMode.EMBED) -> NodeChunk:
    """`chunk_of` with a copy of the node, for an index in memory: the owner of the node may change it later."""
    chunk = chunk_of(node, metadata_mode)
    return replace(chunk, node=_copied(node, chunk.metadata))


def chunks_of(nodes: Iterable[BaseNode], metadata_mode: MetadataMode = MetadataMode.EMBED) -> list[Chunk]:
    """The chunks of nodes, with copies of the nodes, in their order; equal chunks once."""
    return list(dict.fromkeys(kept_chunk_of(node, metadata_mode) for node in nodes))


def node_of(chunk: Chunk, context: str | None = None) -> BaseNode:
    """A new node: a copy of the node that the chunk was made from or stores, else a TextNode with the chunk's fields.

    The metadata are the chunk's, which a stage may have changed. `context` replaces the text, where a model is to read
    more than was searched.
    """
    if isinstance(chunk, NodeChunk) and chunk.node is not None:
        node = _copied(chunk.node, chunk.metadata)
    elif isinstance(chunk, NodeChunk):
        node = _rebuilt(chunk)
    else:
        node = restored(chunk).node or _rebuilt(chunk)
    if context is not None:
        node.set_content(context)
    return node


def stored(chunk: Chunk) -> Chunk:
    """The chunk as it is stored on disk, for `restored`. ConfigError for a node that cannot be stored."""
    node = chunk.node if isinstance(chunk, NodeChunk) else None
    if node is None:
        return chunk
    _check_kept(node)
    body = node.to_dict(mode="json", exclude={"metadata", "embedding", "text"})
    if chunk.text and isinstance(node, Node):
        body["text_resource"]["text"] = None
    if own := {key: chunk.metadata[key] for key in MARKS if key in chunk.metadata}:
        body["metadata"] = own
    marked = {**chunk.metadata, KEPT: json.dumps(body), REF_DOC: document_of(node)}
    return Chunk(chunk.id, chunk.text, chunk.parent_id, marked, header=chunk.header)


def restored(chunk: Chunk) -> NodeChunk:
    """The chunk that was `stored`, with its own metadata and node, without the knowledge base's name.

    Any other chunk is returned without a node.
    """
    try:
        node = _kept_node(chunk)
    except (AttributeError, RecursionError, TypeError, ValueError):  # another writer's value under the same key
        node = None
    metadata = chunk.metadata if node is None else node.metadata
    return NodeChunk(chunk.id, chunk.text, chunk.parent_id, metadata, header=chunk.header, node=node)


def document_of(node: BaseNode) -> str:
    """The id of a node's document; as in LlamaIndex's pipelines, a node without a document is its own."""
    return node.ref_doc_id or node.node_id


def node_from(data: Mapping[str, Any]) -> BaseNode:
    """The node of a dict; ValueError for an unknown class."""
    name = str(data.get("class_name"))
    if name not in _NODES:
        raise ValueError(f"a node's class_name is one of {', '.join(sorted(_NODES))}, not {name!r}")
    node, target = _NODES[name].from_dict(dict(data)), data.get("obj")
    if isinstance(node, IndexNode) and isinstance(target, Mapping) and target.get("class_name") in _NODES:
        node.obj = node_from(target)  # older versions of LlamaIndex read it as a text
    return node


class _Embedded(Query):
    """A query whose own text is not searched by semantic channels, only its variants."""

    def texts_for(self, name: str, kind: str) -> tuple[Variant, ...]:
        wordings = super().texts_for(name, kind)
        return wordings if kind != "semantic" else tuple(each for each in wordings if each.text != self.text)


def query_of(asked: str | QueryBundle | Query) -> Query:
    """The query of a text or bundle. A bundle's embedding stands for its text; its embedding strings are for vectors.

    Where there are such strings and no embedding, vector channels search the bundle's text only if it is one of them.
    """
    if not isinstance(asked, QueryBundle):
        return as_query(asked)
    texts = [text for text in asked.custom_embedding_strs or () if text.strip()]
    # An array has no truth value.
    vectors = {} if asked.embedding is None or len(asked.embedding) == 0 else {ANY_EMBEDDER: np.array(asked.embedding)}
    instead = bool(texts) and asked.query_str not in texts and not vectors
    return (_Embedded if instead else Query)(
        asked.query_str,
        variants=tuple(Variant(text, channels=frozenset({"semantic"})) for text in texts),
        vectors=vectors,
    )


def check_embedding(query: Query, channels: Iterable[Channel]) -> None:
    """Raise ConfigError where a bundle's embedding has the dimension of no channel's model.

    A channel may fit where its dimension is not known, as where its model fails: then the channel reports that.
    """
    semantic = {channel.name: _dimension(channel) for channel in channels if channel.kind == "semantic"}
    size = len(query.vectors[ANY_EMBEDDER])
    if None not in semantic.values() and size not in semantic.values():
        raise ConfigError(f"the query's embedding has dimension {size}, which fits no channel: {semantic or 'none'}")


def _dimension(channel: Channel) -> int | None:
    embedder = getattr(channel, "embedder", None)
    try:
        return None if embedder is None else int(embedder.dimension)
    except Exception:  # noqa: BLE001 - the model is asked for it, and may raise anything
        return None


def _check_kept(node: BaseNode) -> None:
    target = getattr(node, "obj", None)
    if type(node) is not _NODES.get(node.class_name()) or not isinstance(target, BaseNode | None):
        raise ConfigError(
            f"node {node.node_id!r} is a {type(node).__name__}{f' for a {type(target).__name__}' if target else ''}: "
            f"what can be kept is {', '.join(sorted(_NODES))}, an IndexNode with a node or nothing as its obj"
        )
    if isinstance(node, Node):
        resources = (node.text_resource, node.image_resource, node.audio_resource, node.video_resource)
        if any(resource is not None and resource.data is not None for resource in resources):
            raise ConfigError(
                f"node {node.node_id!r} holds bytes, which cannot be kept: give it a path or a url instead"
            )


def _kept_node(chunk: Chunk) -> BaseNode | None:
    """The stored node; None where none is stored. Raises various errors where the stored value is not a node."""
    if KEPT not in chunk.metadata:
        return None
    body = json.loads(chunk.metadata[KEPT])
    own = body.pop("metadata", {})
    kept = {key: own.get(key, value) for key, value in chunk.metadata.items() if key in own or key not in MARKS}
    if chunk.text and body.get("text_resource"):
        body["text_resource"]["text"] = chunk.text
    return node_from({"text": chunk.text, **body, "metadata": duplicate(kept)})


def _parent_id(node: BaseNode) -> str | None:
    for relationship in (NodeRelationship.PARENT, NodeRelationship.SOURCE):
        related = node.relationships.get(relationship)
        if isinstance(related, RelatedNodeInfo):
            return related.node_id
    return None


def _copied(node: BaseNode, metadata: Mapping[str, Any]) -> BaseNode:
    """A deep copy with other metadata. The target of an IndexNode is shared: it may be an index or a retriever."""
    own: dict[str, Any] = {
        "metadata": duplicate(dict(metadata)),
        "embedding": None if node.embedding is None else list(node.embedding),
        "relationships": {key: _related_copy(related) for key, related in node.relationships.items()},
    }
    if type(node) is not TextNode:
        target: Any = getattr(node, "obj", None)
        return copy.deepcopy(node, {id(target): target, **{id(getattr(node, key)): own[key] for key in own}})
    twin = node.model_copy()  # most nodes are such, and this is several times as fast
    fields = twin.__dict__
    fields.update(own)
    for key, value in fields.items():
        if type(value) not in ATOMS and key not in own:
            fields[key] = duplicate(value)
    return twin


def _related_copy(related: RelatedNodeInfo | list[RelatedNodeInfo]) -> Any:
    if type(related) is not RelatedNodeInfo:
        return copy.deepcopy(related)
    twin = related.model_copy()
    twin.__dict__["metadata"] = duplicate(related.metadata)
    return twin


def _rebuilt(chunk: Chunk) -> TextNode:
    parent = {} if chunk.parent_id is None else {NodeRelationship.PARENT: RelatedNodeInfo(node_id=chunk.parent_id)}
    return TextNode(id_=chunk.id, text=chunk.text, metadata=duplicate(dict(chunk.metadata)), relationships=parent)


class NodeWithProvenance(NodeWithScore):
    """A node, its score (None where it was not scored), and how it was found.

    Unlike its base class it can be rebuilt from its own JSON; ValidationError for a node of an unknown class.
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

    A plain NodeWithScore that holds a node returned by this package has its provenance too.
    """
    own = node_with_score.provenance if isinstance(node_with_score, NodeWithProvenance) else None
    return own or node_with_score.node.__dict__.get(_MARK)


def explained(node: BaseNode, score: float | None, told: Mapping[str, Any]) -> NodeWithProvenance:
    """A node with its provenance, which is also written to the node: it must be a copy, not the caller's node."""
    told = sealed(told, node.get_content(metadata_mode=MetadataMode.NONE), node.metadata)
    return NodeWithProvenance(node=_marked(node, told), score=score, provenance=told)


def node_of_hit(hit: Hit, degraded: Sequence[str] = (), wordings: Sequence[str] = ()) -> NodeWithProvenance:
    """A hit as a new node; `degraded` are the failures of its search, `wordings` the wordings that were searched."""
    return explained(read_node(hit), hit.score, of_search(hit, degraded, wordings))


def read_node(hit: Hit) -> BaseNode:
    """A new node of a hit's chunk with the text that a model is to read; empty where that is over a budget."""
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


def passages_of(nodes: Iterable[NodeWithScore]) -> list[NodeWithScore]:
    """The nodes, those that are groups as a node for each passage (see `group_by`), as a citation needs it."""
    found: list[NodeWithScore] = []
    for group in nodes:
        told, node = provenance(group) or {}, group.node
        passages = passages_in(told, node.get_content(metadata_mode=MetadataMode.NONE), node.metadata)
        found += [_passage(node, one) for one in passages] or [group]
    return found


def _passage(node: BaseNode, passage: PassageText) -> NodeWithProvenance:
    twin = _copied(node, passage.metadata)
    twin.id_ = passage.id
    twin.set_content(passage.text)
    if isinstance(twin, TextNode):
        twin.start_char_idx = twin.end_char_idx = None
    return explained(twin, passage.score, passage.told)


def hit_of(node_with_score: NodeWithScore, chunk_id: str | None = None) -> Hit:
    """The hit from which `node_of_hit` made a node: its chunk, score, votes and wider context.

    Of another package's node, the hit has what is known. `chunk_id` replaces the node's own id. A score that is no
    finite number is dropped.
    """
    chunk = chunk_of(node_with_score.node)
    told = current(provenance(node_with_score) or {}, chunk.text, chunk.metadata)
    kb, found = told.get("kb"), told.get("text")
    over = told.get("over_budget") is True
    context = chunk.text if isinstance(found, str) and (chunk.text or not over) else None
    chunk = replace(
        chunk,
        id=chunk.id if chunk_id is None else chunk_id,
        text=found if isinstance(found, str) else chunk.text,
        kb=kb if isinstance(kb, str) else "",
    )
    score, require = finite(node_with_score.score), rights_in(told)
    return Hit(chunk, score, votes_of(told), context, over_budget=over, require=require)


def match_of(found: NodeWithScore) -> Match:
    """A node that a retriever found as a match, with what its provenance says of the search behind it."""
    told = provenance(found) or {}
    return Match(chunk_of(found.node), found.score, require=rights_in(told), degraded=degraded_in(told))


def _marked(node: BaseNode, told: Mapping[str, Any] | None) -> BaseNode:
    if told:
        node.__dict__[_MARK] = dict(told)
    return node


def text_above(hit: Hit) -> str:
    """The text above a node's text in a prompt: its metadata, or its source line where that is longer."""
    metadata = node_of(hit.chunk).get_metadata_str(mode=MetadataMode.LLM)
    return max(f"{metadata}\n", numbered_header(citation_of(LAST, hit, "")), key=len)
