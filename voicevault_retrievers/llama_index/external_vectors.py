"""The vectors of a HybridVectorStore: in its knowledge base, or in another vector store beside it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from numpy.typing import NDArray

from voicevault_retrievers.core.execution.event_loop import overrides
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index import copies
from voicevault_retrievers.llama_index.convert import REF_DOC, document_of
from voicevault_retrievers.llama_index.copies import FileSystem
from voicevault_retrievers.llama_index.models import embeddings_of
from voicevault_retrievers.llama_index.store_channels import (
    REPLACING,
    StoreChannel,
    StoreQuestion,
    StoreResult,
    awaits,
    turns,
)
from voicevault_retrievers.llama_index.store_filters import CHROMA, QDRANT, RESERVED, flattened, kind_of
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.manifest import EmbedderEntry
from voicevault_retrievers.store.reader import View

T = TypeVar("T")


@dataclass(frozen=True)
class Calling:
    """Makes the calls of a plan: in the caller's thread (`inline`), or off the event loop, which may await them."""

    inline: bool

    def __call__(self, function: Callable[[], T], coroutine: Callable[[], Awaitable[T]] | None = None) -> Plan[T]:
        (outcome,) = yield (Call("HybridVectorStore", function, coroutine, inline=self.inline),)
        returned: T = value_of(outcome)
        return returned


class Vectors(Protocol):
    """Where the vectors of a knowledge base's nodes are kept. The owner makes the same changes in the base.

    The methods that change vectors return plans. They check when they are called and change when the plan runs, so that
    the owner calls them before it changes the base. They raise ConfigError for a change that is impossible.
    """

    fingerprint: str
    """The key under which a query's embedding reaches `channel`."""

    def checked(self, nodes: Sequence[BaseNode]) -> NDArray[np.float32] | None:
        """The embeddings that the base is to store; ConfigError where one is missing or does not fit."""

    def channel(self, view: View) -> LeafChannel:
        """A channel that searches the vectors of a commit's chunks."""

    def adding(self, nodes: Sequence[BaseNode], chunks: Sequence[Chunk], call: Calling) -> Plan[None]:
        """A plan that adds nodes, run before the base adds these chunks; first raises what the base would raise."""

    def removing(self, ids: Sequence[str], call: Calling) -> Plan[None]:
        """A plan that removes nodes, run after they have been removed from the base."""

    def forgetting(self, ref_doc_id: str, ids: Collection[str], call: Calling) -> Plan[None]:
        """A plan that removes a document's nodes, run after the base has removed these `ids` of them."""

    def clearing(self, call: Calling) -> Plan[None]:
        """A plan that removes all nodes, run after the base has removed them."""

    def persist(self, fs: FileSystem, path: str) -> None:
        """Copy the vectors that the base does not hold to a path beside the base's copy."""


class OwnVectors:
    """Vectors in the knowledge base, under the same commits."""

    def __init__(self, base: KnowledgeBase) -> None:
        if base.manifest.embedder is None:
            raise ConfigError(
                f"knowledge base {base.name!r} was created without an embedder and keeps no vectors: give the store "
                "that does, HybridVectorStore.open(name, dense=...), or index the documents into a new one, "
                "HybridVectorStore.open(name, embed_model=...)"
            )
        self.entry = base.manifest.embedder
        self.fingerprint = self.entry.fingerprint
        self.kb = base.name

    def checked(self, nodes: Sequence[BaseNode]) -> NDArray[np.float32]:
        return embeddings_of(nodes, self.entry, self.kb)

    def channel(self, view: View) -> LeafChannel:
        return view.dense()

    def adding(self, nodes: Sequence[BaseNode], chunks: Sequence[Chunk], call: Calling) -> Plan[None]:
        yield from ()

    def removing(self, ids: Sequence[str], call: Calling) -> Plan[None]:
        yield from ()

    def forgetting(self, ref_doc_id: str, ids: Collection[str], call: Calling) -> Plan[None]:
        yield from ()

    def clearing(self, call: Calling) -> Plan[None]:
        yield from ()

    def persist(self, fs: FileSystem, path: str) -> None:
        return


BATCH = 10_000
"""The number of nodes that one call deletes."""

_LOG = logging.getLogger(__name__)


class WrappedVectors:
    """Vectors in any other vector store. The base decides which nodes exist: others in the store are not found.

    Nodes are added to the store first and deleted from it last. An interrupted change therefore leaves too many nodes
    in the store, never too few, and repeating the change repairs it. Until then a node that was to be replaced has its
    new vector, or, in a store that adds beside existing nodes, may have none. A SimpleVectorStore cannot be searched
    while it changes, so one thread at a time calls it.
    """

    fingerprint = ANY_EMBEDDER

    def __init__(self, store: BasePydanticVectorStore, base: KnowledgeBase) -> None:
        if base.manifest.embedder is not None:
            raise ConfigError(
                f"knowledge base {base.name!r} keeps vectors of its own: open it without dense=..., or index the "
                "documents into a new one"
            )
        self.store = store
        self.base = base
        self.name = type(store).__name__
        self._alone = turns(store)
        if isinstance(store, SimpleVectorStore) and not store.data.embedding_dict and len(base):
            _LOG.warning(
                "knowledge base %r holds %d nodes, and the %s no vectors: load what it persisted, or add the nodes "
                "again; until then they are found by keywords alone", base.name, len(base), self.name,
            )  # fmt: skip

    def checked(self, nodes: Sequence[BaseNode]) -> None:
        embeddings_of(nodes, EmbedderEntry(self.name, self._dimension(nodes)), self.base.name)
        for node in nodes if kind_of(self.store) == QDRANT else ():
            if not _is_uuid(node.node_id):
                raise ConfigError(
                    f"node {node.node_id!r}: Qdrant takes no ids but UUIDs, such as "
                    f"{str(uuid.uuid5(uuid.NAMESPACE_URL, node.node_id))!r}, which is uuid5(NAMESPACE_URL, that id)"
                )

    def _dimension(self, nodes: Sequence[BaseNode]) -> int:
        """The dimension of a SimpleVectorStore's vectors, which adding does not check; else the first node's."""
        held = self.store.data.embedding_dict.values() if isinstance(self.store, SimpleVectorStore) else ()
        return len(next(iter(held), None) or next((node.embedding for node in nodes), None) or ())

    def channel(self, view: View) -> LeafChannel:
        return WrappedChannel(self.store, view, self._alone)

    def adding(self, nodes: Sequence[BaseNode], chunks: Sequence[Chunk], call: Calling) -> Plan[None]:
        ids = [node.node_id for node in nodes]
        if not ids:
            return
        yield from call(partial(self.base.hold, chunks))
        if kind_of(self.store) not in REPLACING:  # an earlier version, or what an interrupted change left
            present = ids if self._can("delete_nodes") else [*(yield from call(partial(self.base.get, ids)))]
            yield from self.removing(present, call)
        flat = getattr(self.store, "flat_metadata", False)
        slim = yield from call(lambda: [_slim(node, flat) for node in nodes])
        given = yield from self._changing(call, "add", "async_add", slim)
        if list(given) != ids:
            raise ConfigError(
                f"{self.name} keeps nodes under ids of its own, such as {given[:1]} for {ids[:1]}, so what it finds "
                "cannot be told: use a vector store that keeps the ids of nodes"
            )

    def removing(self, ids: Sequence[str], call: Calling) -> Plan[None]:
        if ids and not self._can("delete_nodes"):
            raise ConfigError(
                f"{self.name} cannot delete nodes by their ids, so {ids[0]!r} can be neither deleted nor replaced: "
                "delete its document"
            )
        return self._removing(ids, call)

    def _removing(self, ids: Sequence[str], call: Calling) -> Plan[None]:
        for start in range(0, len(ids), BATCH):
            yield from self._changing(call, "delete_nodes", "adelete_nodes", list(ids[start : start + BATCH]))

    def forgetting(self, ref_doc_id: str, ids: Collection[str], call: Calling) -> Plan[None]:
        if not len(self.base):  # some stores raise where they are empty
            return self._removing((), call)
        alone = self.removing([name for name in ids if name == ref_doc_id], call)
        return self._forgetting(ref_doc_id, alone, call)

    def _forgetting(self, ref_doc_id: str, alone: Plan[None], call: Calling) -> Plan[None]:
        """Delete a document's nodes. `alone` removes a node that is its own document, which the store does not know."""
        yield from self._changing(call, "delete", "adelete", ref_doc_id)
        yield from alone

    def clearing(self, call: Calling) -> Plan[None]:
        return self._clearing(call) if self._can("clear") else self.removing(self.base.ids(), call)

    def _clearing(self, call: Calling) -> Plan[None]:
        if kind_of(self.store) == CHROMA and not (yield from call(self.store.client.count)):
            return  # Chroma raises for an empty collection
        yield from self._changing(call, "clear", "aclear")

    def persist(self, fs: FileSystem, path: str) -> None:
        if self._can("persist"):
            with self._alone:
                copies.replace(fs, f"{path}{DENSE}", lambda new: self.store.persist(new, fs))

    def _can(self, method: str) -> bool:
        return overrides(self.store, BasePydanticVectorStore, method)

    def _changing(self, call: Calling, method: str, twin: str, *given: Any) -> Plan[Any]:
        def change() -> Any:
            with self._alone:
                return getattr(self.store, method)(*given)

        own = partial(getattr(self.store, twin), *given) if awaits(self.store, twin) else None
        return (yield from call(change, own))


class WrappedChannel(StoreChannel):
    """A channel over the vector store of a knowledge base, which decides the chunks that exist and pass a filter.

    A query brings a bare vector: this channel embeds nothing. Raises ConfigError for a vector of zeros. Searches in
    threads run within `alone`.
    """

    def __init__(
        self,
        store: BasePydanticVectorStore,
        view: View,
        alone: AbstractContextManager[None],
        *,
        ids: Collection[str] | None = None,
    ) -> None:
        super().__init__(store, "dense", ids=ids)
        self.view = view
        self._alone = alone

    def among(self, ids: Iterable[str]) -> WrappedChannel:
        """This channel restricted to the chunks with these ids."""
        held = {name for part in self.view.parts for name in part.rows.places(ids)}
        twin = WrappedChannel(self.store, self.view, self._alone, ids=held)
        twin.guard = self.guard
        return twin

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        with self._alone:
            return super().find(query, wordings, k)

    def _asked(self, query: Query, wording: Variant) -> StoreQuestion | None:
        vector = query.vectors.get(ANY_EMBEDDER)
        if vector is None or not len(self.view.snapshot) or (self.ids is not None and not self.ids):
            return None
        if not vector.any():
            raise ConfigError("the query's vector is all zeros, which points nowhere")
        return StoreQuestion(wording.text, [float(value) for value in vector])

    def _passing(self, entries: Mapping[str, StoreResult], where: Filter | None) -> Mapping[str, Callable[[], Chunk]]:
        places = ((part.rows.chunks, part.rows.places(entries, where)) for part in self.view.parts)
        return {name: partial(chunks.__getitem__, at) for chunks, found in places for name, at in found.items()}


DENSE = ".dense"
"""The suffix that a base copy's path gets for the copy of the vector store beside it."""


def _slim(node: BaseNode, flat: bool) -> BaseNode:
    """A node as the store gets it: with the metadata that the store can hold and the base filters by."""
    metadata = {key: value for key, value in node.metadata.items() if key not in RESERVED}
    metadata[REF_DOC] = document_of(node)
    return node.model_copy(update={"metadata": flattened(metadata) if flat else metadata})


def _is_uuid(node_id: str) -> bool:
    """Whether an id is a UUID in the form that Qdrant returns."""
    try:
        return str(uuid.UUID(node_id)) == node_id
    except ValueError:
        return False
