"""Where the vectors of a HybridVectorStore are, as its nodes are added, removed and searched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.leaf import LeafChannel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index.copies import FileSystem
from voicevault_retrievers.llama_index.embedder import embeddings_of
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.reader import View

T = TypeVar("T")


@dataclass(frozen=True)
class Calling:
    """Makes a plan's calls: where they are asked for (`inline`), or apart from an event loop, which may await them."""

    inline: bool

    def __call__(self, function: Callable[[], T], coroutine: Callable[[], Awaitable[T]] | None = None) -> Plan[T]:
        (outcome,) = yield (Call("HybridVectorStore", function, coroutine, inline=self.inline),)
        returned: T = value_of(outcome)
        return returned


class Vectors(Protocol):
    """The vectors of a knowledge base's nodes. What is changed here is changed in the base by its owner.

    The changes check when they are asked for, and change when they are run: their owner asks before it changes the
    base. They raise ConfigError for what cannot be done.
    """

    fingerprint: str
    """Under which a query's embedding reaches `channel`."""

    def checked(self, nodes: Sequence[BaseNode]) -> NDArray[np.float32] | None:
        """What the base is to keep of the nodes' embeddings; ConfigError where one is missing or does not fit."""

    def channel(self, view: View) -> LeafChannel:
        """Search by vectors among the chunks of a commit."""

    def adding(self, nodes: Sequence[BaseNode], chunks: Sequence[Chunk], call: Calling) -> Plan[None]:
        """How to add nodes, run before they are in the base as these chunks; raises first what the base would raise."""

    def removing(self, ids: Sequence[str], call: Calling) -> Plan[None]:
        """How to remove nodes, run after they have gone from the base."""

    def forgetting(self, ref_doc_id: str, ids: Collection[str], call: Calling) -> Plan[None]:
        """How to remove those of a document, of which the base has these `ids`, run after they have gone from it."""

    def clearing(self, call: Calling) -> Plan[None]:
        """How to remove all, run after they have gone from the base."""

    def persist(self, fs: FileSystem, path: str) -> None:
        """Copy what the base does not hold to a path beside the base's copy."""


class OwnVectors:
    """In the base, under the same commits."""

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
