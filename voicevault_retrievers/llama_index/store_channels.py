"""LlamaIndex's vector stores as channels of a pipeline."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode, ObjectType
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryResult

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import ANY_EMBEDDER, ChannelKind, Chunk, Query, Variant
from voicevault_retrievers.engines.foreign import Foreign, filter_of
from voicevault_retrievers.errors import ConfigError, EmbeddingError
from voicevault_retrievers.llama_index.convert import chunk_of, node_of
from voicevault_retrievers.llama_index.models import LlamaIndexEmbedder, documents_embedded, query_embedded
from voicevault_retrievers.llama_index.store_filters import (
    CHROMA,
    QDRANT,
    SIMPLE,
    Pushed,
    effort,
    kind_of,
    pushed,
    reach_of,
)

REPLACING = (QDRANT, SIMPLE)
"""Stores in which an added node replaces the node with the same id."""


class StoreQuestion(NamedTuple):
    """A query in the form that a store takes."""

    text: str
    vector: list[float] | None


class StoreResult(NamedTuple):
    """An entry that a store found; the node is None where the store returns ids alone."""

    id: str
    node: BaseNode | None
    score: float | None


class StoreChannel(Foreign[StoreQuestion, Pushed, StoreResult]):
    """A channel that searches a vector store by vectors; with `ids`, among these nodes alone.

    The store gets the part of a filter that its language can express (see `store_filters`). Scores are the store's,
    those of Chroma as cosines, where each hit has one and they fall with its order; otherwise hits have ranks only.
    """

    def __init__(
        self,
        store: BasePydanticVectorStore,
        name: str,
        kind: ChannelKind = "semantic",
        *,
        ids: Collection[str] | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.store = store
        self.ids = None if ids is None else frozenset(ids)
        self._alone = turns(store)
        self.awaits = awaits(store, "aquery")
        self.reach = reach_of(store)

    @abstractmethod
    def _passing(self, entries: Mapping[str, StoreResult], where: Filter | None) -> Mapping[str, Callable[[], Chunk]]:
        """Functions that return the chunks of those entries that exist and pass a filter, by id."""

    def _search(self, asked: StoreQuestion, k: int, narrowed: Pushed) -> Sequence[StoreResult]:
        with self._alone:
            found = self.store.query(_query(asked, k, narrowed), **narrowed.options, **effort(self.store, k))
            return self._entries(found)

    async def _asearch(self, asked: StoreQuestion, k: int, narrowed: Pushed) -> Sequence[StoreResult]:
        options = {**narrowed.options, **effort(self.store, k)}
        return self._entries(await self.store.aquery(_query(asked, k, narrowed), **options))

    def _entries(self, result: VectorStoreQueryResult) -> list[StoreResult]:
        nodes: Sequence[BaseNode] = result.nodes or ()
        ids = [node.node_id for node in nodes] or result.ids or []
        scores = (result.similarities or [])[: len(ids)]
        found = zip_longest(ids, nodes, scores)
        return [StoreResult(name, node, None if one is None else self._score(one)) for name, node, one in found]

    def _score(self, given: float) -> float:
        """A score of the store; of Chroma, which gives exp(-distance), the cosine of that distance of unit vectors."""
        store: Any = self.store
        if kind_of(store) != CHROMA:
            return float(given)
        space = (store._collection.configuration_json.get("hnsw") or {}).get("space", "l2")
        return 1 + math.log(max(given, sys.float_info.min)) / (2 if space == "l2" else 1)

    def _narrowed(self, query: Query) -> Pushed:
        return pushed(self.store, filter_of(query), self.ids)

    def _kept(self, found: Sequence[StoreResult], where: Filter | None, k: int) -> Sequence[Match]:
        first: dict[str, StoreResult] = {}  # a store may hold a node twice
        for entry in found:
            if self.ids is None or entry.id in self.ids:
                first.setdefault(entry.id, entry)
        chunks = {name: chunk for name, chunk in self._passing(first, where).items() if not chunk().is_parent}
        kept = islice((entry for entry in first.values() if entry.id in chunks), k)
        return [Match(chunks[entry.id](), entry.score) for entry in kept]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.store).__name__})"


class VectorStoreChannel(StoreChannel):
    """A channel that searches a LlamaIndex vector store, or an index's, in its order; for scores see StoreChannel.

    A query is embedded by the `embed_model` (None is the index's), or brings its vector: one under the model's
    fingerprint, or a bare one of its dimension.

    With a filter the hits are the first k in the store's order that pass it, whatever the store's own filters mean:
    found nodes are checked, and the store is asked for more while fewer than k pass. Nodes come from the index's
    docstore where the store holds none; nodes that neither has are left out. Raises ConfigError where there is no
    embed_model, and for a store without texts and without an index.
    """

    @checks_options
    def __init__(
        self,
        source: VectorStoreIndex | BasePydanticVectorStore,
        embed_model: BaseEmbedding | None = None,
        kind: ChannelKind = "semantic",
        *,
        ids: Collection[str] | None = None,
        timeout: float | None = None,
        name: str = "vectorstore",
    ) -> None:
        self.index = source if isinstance(source, VectorStoreIndex) else None
        store = source.vector_store if isinstance(source, VectorStoreIndex) else source
        model = embed_model if self.index is None or embed_model is not None else self.index._embed_model
        if model is None:
            raise ConfigError(
                f"{type(store).__name__} is searched by vector: say by whose with as_channel(store, embed_model=...)"
            )
        if self.index is None and not store.stores_text:
            raise ConfigError(f"{type(store).__name__} holds no texts: give its index, which has a docstore that does")
        super().__init__(store, name, kind, ids=ids, timeout=timeout)
        self.embedder = LlamaIndexEmbedder(model)
        self._embeds = self.embedder.aembed_queries is not None

    def adding(self, chunks: Sequence[Chunk]) -> Callable[[], object]:
        """Embed nodes, and return a function that adds them; they replace nodes with the same ids."""
        nodes = [node_of(chunk) for chunk in chunks]
        rows = documents_embedded(self.embedder.model, [node.get_content(MetadataMode.EMBED) for node in nodes])
        embedded = [node.model_copy(update={"embedding": row}) for node, row in zip(nodes, rows, strict=True)]
        return partial(self._add, embedded)

    def deleting(self, ids: Sequence[str]) -> Callable[[], object]:
        """A function that deletes nodes from the store; ConfigError where the store cannot delete by id."""
        if not self._can_delete():
            raise ConfigError(f"channel {self.name!r}: {type(self.store).__name__} cannot delete nodes by id")
        return partial(self._delete, ids)

    def _add(self, nodes: Sequence[BaseNode]) -> None:
        if kind_of(self.store) not in REPLACING and self._can_delete():
            self._delete([node.node_id for node in nodes])
        if self.index is not None:
            self._change(self.index.insert_nodes, self.index.ainsert_nodes, "async_add", list(nodes))
        else:
            self._change(self.store.add, self.store.async_add, "async_add", list(nodes))

    def _delete(self, ids: Sequence[str]) -> None:
        noted = None if self.index is None or self.store.stores_text else self.index.index_struct.nodes_dict
        wanted = [one for one in ids if noted is None or one in noted]
        if not wanted:
            return
        if self.index is not None:
            delete = partial(self.index.delete_nodes, delete_from_docstore=True)
            self._change(delete, partial(self.index.adelete_nodes, delete_from_docstore=True), "adelete_nodes", wanted)
        else:
            self._change(self.store.delete_nodes, self.store.adelete_nodes, "adelete_nodes", wanted)

    def _can_delete(self) -> bool:
        return overrides(self.store, BasePydanticVectorStore, "delete_nodes")

    def _change(self, function: Callable[[Any], Any], coroutine: Callable[[Any], Any], twin: str, given: Any) -> None:
        """Change the store; awaited where an async search uses a store with its own async method."""
        own = partial(coroutine, given) if awaits(self.store, twin) else None
        with self._alone:
            call_or_await(partial(function, given), own)

    def _asked(self, query: Query, wording: Variant) -> StoreQuestion | None:
        text = wording.text
        if not self.store.is_embedding_query:
            return StoreQuestion(text, None) if text.strip() else None
        vector = brought(query, self.embedder) if text == query.text else None
        if vector is None and text.strip():
            vector = self._pointing(query_embedded(self.embedder.model, text))
        return None if vector is None else StoreQuestion(text, vector)

    async def _aasked(self, query: Query, wording: Variant) -> StoreQuestion | None:
        text = wording.text
        if text.strip() and self.store.is_embedding_query and not query.vectors and self._embeds:
            return StoreQuestion(text, self._pointing(await self.embedder.model.aget_query_embedding(text)))
        return await aexecute(in_thread(self.name, partial(self._asked, query, wording)))

    def _pointing(self, vector: list[float]) -> list[float]:
        """The query's vector, checked; EmbeddingError where it is all zeros or not finite."""
        if not (all(map(math.isfinite, vector)) and any(vector)):
            raise EmbeddingError(f"{self.embedder!r} gave the question a vector that is zero or not finite")
        return vector

    def _search(self, asked: StoreQuestion, k: int, narrowed: Pushed) -> Sequence[StoreResult]:
        found = super()._search(asked, k, narrowed)
        names = self._elsewhere(found)
        if self.index is None or not names:
            return found
        return _filled(found, names, self.index.docstore.get_nodes([*names.values()], raise_error=False))

    async def _asearch(self, asked: StoreQuestion, k: int, narrowed: Pushed) -> Sequence[StoreResult]:
        found = await super()._asearch(asked, k, narrowed)
        names = self._elsewhere(found)
        if self.index is None or not names:
            return found
        return _filled(found, names, await self.index.docstore.aget_nodes([*names.values()], raise_error=False))

    def _elsewhere(self, found: Sequence[StoreResult]) -> dict[str, str]:
        """The docstore ids of entries whose nodes the store lacks or holds only in part, by the entries' ids."""
        known = {} if self.index is None else self.index.index_struct.nodes_dict
        return {entry.id: known.get(entry.id, entry.id) for entry in found if not _is_whole(entry.node)}

    def _passing(self, entries: Mapping[str, StoreResult], where: Filter | None) -> Mapping[str, Callable[[], Chunk]]:
        passes = compile_filter(where)
        nodes = ((name, entry.node) for name, entry in entries.items())
        return {name: partial(chunk_of, node) for name, node in nodes if node is not None and passes(node.metadata)}


def brought(query: Query, embedder: LlamaIndexEmbedder) -> list[float] | None:
    """The vector that a query brings for an embedder: one under its fingerprint, or a bare one of its dimension."""
    if not query.vectors:  # computing a fingerprint may use the model
        return None
    own, bare = query.vectors.get(embedder.fingerprint), query.vectors.get(ANY_EMBEDDER)
    if own is None and bare is not None and len(bare) == embedder.dimension:
        own = bare
    return None if own is None else [float(value) for value in own]


def awaits(store: BasePydanticVectorStore, method: str) -> bool:
    """Whether a store has its own async method: the defaults run the sync method on the event loop and block it."""
    own = overrides(store, BasePydanticVectorStore, method)
    return own and getattr(store, "_aclient", store) is not None  # Qdrant's needs an async client, which is optional


def turns(store: object) -> AbstractContextManager[None]:
    """A lock for stores that search in a Python loop: concurrent threads would take several times as long there."""
    return Mutex() if isinstance(store, SimpleVectorStore) else nullcontext()


def _query(asked: StoreQuestion, k: int, narrowed: Pushed) -> VectorStoreQuery:
    return VectorStoreQuery(asked.vector, k, query_str=asked.text, **narrowed.fields)


def _is_whole(node: BaseNode | None) -> bool:
    """Whether a store returned all of a node; as in LlamaIndex's own retriever, text nodes are complete."""
    return node is not None and node.as_related_node_info().node_type == ObjectType.TEXT


def _filled(found: Sequence[StoreResult], names: Mapping[str, str], nodes: Sequence[BaseNode]) -> list[StoreResult]:
    """The entries, with nodes from a docstore where it has them."""
    held = {node.node_id: node for node in nodes}
    fetched = ((entry, held.get(names.get(entry.id, ""))) for entry in found)
    return [entry if node is None else StoreResult(node.node_id, node, entry.score) for entry, node in fetched]
