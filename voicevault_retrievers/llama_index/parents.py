"""Expansion of found nodes: to their parents from a docstore, or to their windows from the metadata."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

from llama_index.core.bridge.pydantic import Field, field_validator
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.storage.storage_context import StorageContext
from typing_extensions import Unpack

from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.llama_index.convert import MARKS, NodeChunk, chunk_of, document_of, restored
from voicevault_retrievers.llama_index.filters import Where, filter_of
from voicevault_retrievers.llama_index.options import CountTokens
from voicevault_retrievers.llama_index.postprocessors import StageOptions, StagePostprocessor
from voicevault_retrievers.structure import CharacterSpan, ParentExpansion, ParentStore, parent_store
from voicevault_retrievers.structure.parent_links import Kinship
from voicevault_retrievers.structure.parents import Parents
from voicevault_retrievers.structure.redis import parent_of
from voicevault_retrievers.structure.windows import Place, WindowExpansion
from voicevault_retrievers.text.tokens import estimate_tokens

Store: TypeAlias = BaseDocumentStore | StorageContext | BaseIndex[Any] | Mapping[str, BaseNode | Chunk] | Parents


class ParentExpansionOptions(StageOptions, total=False):
    """The fields of `ParentExpansionPostprocessor`, except its store."""

    levels: int | None
    use_source: bool
    min_children_ratio: float
    max_chars: int | None
    max_tokens: int | None
    count_tokens: Callable[[str], int] | None
    require: Where
    timeout: float | None
    header_key: str | None
    merge: bool


class ParentExpansionPostprocessor(StagePostprocessor):
    """Replaces each node's text by its parent's text. A parent appears once, for the best of its children.

    The node keeps its id, span and score; its own text moves to the provenance under `text`. Its metadata are the
    parent's, with its own under keys that the parent lacks, so that a citation names the text that is read. The parent
    decides which of its keys models and embeddings do not see. A node keeps its own text where the parent is missing,
    is not permitted by `require`, or does not fit into `max_chars` and `max_tokens`; where the store fails, all nodes
    do (see `structure.ParentExpansion`). A node whose own text does not fit either has an empty text, and `over_budget`
    in its provenance.

    `store` is a docstore, a StorageContext, an index, a knowledge base, a mapping of ids to nodes, chunks or JSON with
    `text` and `metadata`, or any object with `fetch(ids)`. The parent is the node's PARENT, as set by a
    HierarchicalNodeParser, or with `use_source`, where there is no PARENT, its SOURCE. `levels` above 1, or None for
    all, also tries the parents' parents and takes the highest that fits. With `min_children_ratio` a parent is used
    only where at least this share of its children was found, or replaces found descendants, as in LlamaIndex's
    AutoMergingRetriever. With `merge`, overlapping parents become one text, and so do nodes that keep their own text
    and overlap or follow one another in their document. The metadata under `header_key` may name a header, such as a
    judgment's title, which is put above the first of its texts. `timeout` is in seconds; None waits.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "docstore": "here it is `store`",
        "simple_ratio_thresh": "here it is `min_children_ratio`",
        "storage_context": "here it is `store`",
        "vector_retriever": "it takes the nodes of any retriever",
    }
    store: Any = Field(exclude=True, repr=False, description="Where the parents are.")
    levels: int | None = Field(default=1, description="How many parents up a text may be from; None has no limit.")
    use_source: bool = Field(default=False, description="Whether the source document of a node may be its parent.")
    min_children_ratio: float = Field(default=0.0, description="Which part of a parent's children has to be found.")
    max_chars: int | None = Field(default=None, description="Characters that all texts together may have.")
    max_tokens: int | None = Field(default=None, description="Tokens that all texts together may have.")
    count_tokens: CountTokens | None = Field(
        default=None, exclude=True, description="A function from a text to its number of tokens; None estimates."
    )
    require: dict[str, Any] | None = Field(default=None, description="A filter that parents have to pass.")
    timeout: float | None = Field(default=None, description="Seconds that the store may take; None waits.")
    header_key: str | None = Field(default=None, description="Where metadata names a header, if anywhere.")
    merge: bool = Field(default=True, description="Whether texts that overlap or adjoin become one.")

    def __init__(self, store: Store, **options: Unpack[ParentExpansionOptions]) -> None:
        StagePostprocessor.__init__(self, store=store, **options)

    @classmethod
    def class_name(cls) -> str:
        return "ParentExpansionPostprocessor"

    @field_validator("require", mode="before")
    @classmethod
    def _portable(cls, require: Any) -> Any:
        return None if require is None else filter_of(require) or {}

    def _build(self) -> ParentExpansion:
        return ParentExpansion(
            _store_of(self.store),
            max_chars=self.max_chars,
            max_tokens=self.max_tokens,
            count_tokens=self.count_tokens or estimate_tokens,
            require=self.require,
            timeout=self.timeout,
            header_key=self.header_key,
            merge=self.merge,
            levels=self.levels,
            min_children_ratio=self.min_children_ratio,
            kinship=_Nodes(self.use_source),
        )


class SentenceWindowPostprocessor(StagePostprocessor):
    """Replaces the text of each node of a SentenceWindowNodeParser by its window. Overlapping windows become one text.

    The joined text goes to the best of the nodes, which keeps its id, metadata, span and score; its own text moves to
    the provenance under `text`. The node gets the first of these that fits into `max_chars` and `max_tokens`: the
    joined windows, its own window, its text. Nodes without a window are unchanged. See
    `structure.windows.WindowExpansion`.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"target_metadata_key": "here it is `window_key`"}
    window_key: str = Field(default="window", description="Where metadata has the window.")
    max_chars: int | None = Field(default=None, description="Characters that all texts together may have.")
    max_tokens: int | None = Field(default=None, description="Tokens that all texts together may have.")
    count_tokens: CountTokens | None = Field(
        default=None, exclude=True, description="A function from a text to its number of tokens; None estimates."
    )

    @classmethod
    def class_name(cls) -> str:
        return "SentenceWindowPostprocessor"

    def _build(self) -> WindowExpansion:
        return WindowExpansion(
            _place_of,
            window_key=self.window_key,
            max_chars=self.max_chars,
            max_tokens=self.max_tokens,
            count_tokens=self.count_tokens or estimate_tokens,
        )


@dataclass(frozen=True)
class _Docstore:
    """A docstore as a parent store."""

    docstore: BaseDocumentStore

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        return _chunks(self.docstore.get_nodes(list(ids), raise_error=False))

    async def afetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        try:
            return _chunks(await self.docstore.aget_nodes(list(ids), raise_error=False))
        except NotImplementedError:  # some docstores have no async methods
            return await aexecute(in_thread("parents", partial(self.fetch, ids)))


@dataclass(frozen=True)
class _Mapped:
    """A mapping of ids to nodes, chunks or JSON as a parent store."""

    mapping: Mapping[str, Any]

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        found = {parent_id: self.mapping.get(parent_id) for parent_id in ids}
        chunks = {parent_id: _chunk(parent_id, value) for parent_id, value in found.items()}
        return {parent_id: chunk for parent_id, chunk in chunks.items() if chunk is not None}


@dataclass(frozen=True)
class _Nodes(Kinship):
    """The parent-child relations that nodes' relationships record."""

    use_source: bool

    def id_of(self, chunk: Chunk) -> str:
        node = _node(chunk)
        return chunk.id if node is None else node.node_id

    def parent_of(self, chunk: Chunk) -> str | None:
        node = _node(chunk)
        if node is None:
            return chunk.parent_id
        wanted = (NodeRelationship.PARENT, *((NodeRelationship.SOURCE,) if self.use_source else ()))
        return next((found.node_id for kind in wanted if (found := _related(node, kind)) is not None), None)

    def children_of(self, parent: Chunk) -> int:
        children = getattr(_node(parent), "relationships", {}).get(NodeRelationship.CHILD)
        return len(children) if isinstance(children, list) else 0

    def joined(self, chunk: Chunk, parent: Chunk, links: Container[str | None] = ()) -> Chunk:
        told, node, above = super().joined(chunk, parent, links), _node(chunk), _node(parent)
        if node is None:
            return told
        node = copy.copy(node)
        node.metadata = {key: value for key, value in told.metadata.items() if key not in MARKS}
        for unseen in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys") if above else ():
            own = [key for key in getattr(node, unseen) if key not in parent.metadata]
            setattr(node, unseen, [*own, *getattr(above, unseen)])
        return NodeChunk(told.id, told.text, told.parent_id, node.metadata, told.kb, node=node)

    def span_of(self, chunk: Chunk) -> CharacterSpan | None:
        node, place = _node(chunk), _place_of(chunk)
        if node is None or place is None:
            return super().span_of(chunk)
        end = getattr(node, "end_char_idx", None)
        if place.start is None or end != place.start + len(chunk.text):
            return None
        return CharacterSpan(place.document, place.start, end, place.id, place.next)


def _store_of(store: Store) -> ParentStore:
    if isinstance(store, StorageContext | BaseIndex):
        return _Docstore(store.docstore)
    if isinstance(store, BaseDocumentStore):
        return _Docstore(store)
    return _Mapped(store) if isinstance(store, Mapping) else parent_store(store)


def _place_of(chunk: Chunk) -> Place | None:
    node = _node(chunk)
    if node is None:
        return None
    following = _related(node, NodeRelationship.NEXT)
    start = getattr(node, "start_char_idx", None)
    return Place(node.node_id, document_of(node), start, None if following is None else following.node_id)


def _node(chunk: Chunk) -> BaseNode | None:
    """The node that a chunk was made from or stores."""
    return chunk.node if isinstance(chunk, NodeChunk) else restored(chunk).node


def _related(node: BaseNode, kind: NodeRelationship) -> RelatedNodeInfo | None:
    related = node.relationships.get(kind)
    return related if isinstance(related, RelatedNodeInfo) else None


def _chunks(nodes: Iterable[BaseNode | None]) -> dict[str, Chunk]:
    return {node.node_id: chunk_of(node) for node in nodes if node is not None}


def _chunk(parent_id: str, value: Any) -> Chunk | None:
    if isinstance(value, BaseNode):
        return chunk_of(value)
    return value if isinstance(value, Chunk) else parent_of(parent_id, value)
