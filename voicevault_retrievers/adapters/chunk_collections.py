"""Chunks in memory, in a knowledge base or in an engine: changed, looked up, and searched by keywords and vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from voicevault_retrievers.adapters import changes
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import MemoryVectors
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.store import KnowledgeBase, embedding

CHANNELS = ("bm25", "dense")


class ChunkCollection(ABC):
    """Chunks with a keyword channel `bm25`, and a vector channel `dense` that finds the nearest whatever their cosines.

    The async methods run in a worker thread where there is nothing to await.
    """

    @property
    def ready(self) -> bool:
        """Whether `channels` returns without reading files."""
        return True

    @abstractmethod
    def channels(self) -> Mapping[str, Channel]:
        """The channels over the present chunks."""

    @abstractmethod
    def add(self, chunks: Sequence[Chunk]) -> None:
        """Add chunks of distinct ids; a chunk replaces the one with the same id."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete chunks; unknown ids are ignored."""

    @abstractmethod
    def get(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """The given chunks that exist, by id."""

    async def aadd(self, chunks: Sequence[Chunk]) -> None:
        """`add` off the event loop."""
        await aexecute(in_thread("add", partial(self.add, chunks)))

    async def adelete(self, ids: Sequence[str]) -> None:
        """`delete` off the event loop."""
        await aexecute(in_thread("delete", partial(self.delete, ids)))

    async def aget(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """`get` off the event loop."""
        return await aexecute(in_thread("get", partial(self.get, ids)))


class MemoryCollection(ChunkCollection):
    """Chunks in memory."""

    def __init__(self, embedder: Embedder, analyzer: AnyAnalyzer) -> None:
        self._bm25 = BM25.from_chunks((), analyzer)
        self._dense = VectorChannel(MemoryVectors.build((), embedder), embedder, exclude_nonpositive=False)

    def channels(self) -> Mapping[str, Channel]:
        return {"bm25": self._bm25, "dense": self._dense}

    def add(self, chunks: Sequence[Chunk]) -> None:
        changes.add(fuse(self.channels()), chunks)

    def delete(self, ids: Sequence[str]) -> None:
        changes.delete(fuse(self.channels()), ids)

    def get(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        found = map(self._bm25.index.get, ids)
        return {chunk.id: chunk for chunk in found if chunk is not None}


class BaseCollection(ChunkCollection):
    """The chunks of a knowledge base. Raises IncompatibleIndexError where its vectors are not those of `embedder`."""

    def __init__(self, kb: KnowledgeBase, embedder: Embedder | None = None) -> None:
        if kb.manifest.embedder is None:
            raise ConfigError(
                f"knowledge base {kb.name!r} was created without an embedder and keeps no vectors: search it with a "
                "HybridIndex, or add the documents to a new one that is created with an embedder"
            )
        if embedder is not None:
            embedding.check(kb.manifest.embedder, embedder, kb.name)
        self._kb = kb
        self._made: tuple[object, Mapping[str, Channel]] = (None, {})

    @property
    def ready(self) -> bool:
        return self._made[0] is self._kb.view().snapshot

    def channels(self) -> Mapping[str, Channel]:
        view, made = self._kb.view(), self._made
        if made[0] is not view.snapshot:
            made = self._made = view.snapshot, {"bm25": view.bm25(), "dense": view.dense(exclude_nonpositive=False)}
        return made[1]

    def add(self, chunks: Sequence[Chunk]) -> None:
        self._kb.add(chunks)

    def delete(self, ids: Sequence[str]) -> None:
        self._kb.delete(ids)

    def get(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        return self._kb.get(ids)

    def __reduce__(self) -> tuple[type[BaseCollection], tuple[KnowledgeBase]]:
        return BaseCollection, (self._kb,)


class EngineCollection(ChunkCollection):
    """The chunks of an engine's collection.

    Adding raises ConfigError where the collection keeps no vectors, and IncompatibleIndexError where these are not
    those of `embedder`.
    """

    def __init__(self, engine: Engine, embedder: Embedder | None = None) -> None:
        self._engine = engine
        self._embedder = embedder

    def channels(self) -> Mapping[str, Channel]:
        return {"bm25": self._engine.bm25(), "dense": self._engine.dense(exclude_nonpositive=False)}

    def add(self, chunks: Sequence[Chunk]) -> None:
        self._check(self._engine.embedder)
        self._engine.upsert(chunks)

    def delete(self, ids: Sequence[str]) -> None:
        self._engine.delete(ids)

    def get(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        return self._engine.get(ids)

    async def aadd(self, chunks: Sequence[Chunk]) -> None:
        own = await self._engine.arun(self._engine.embedding())
        await aexecute(in_thread("check", partial(self._check, own)))
        await self._engine.aupsert(chunks)

    async def adelete(self, ids: Sequence[str]) -> None:
        await self._engine.adelete(ids)

    async def aget(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        return await self._engine.aget(ids)

    def _check(self, own: Embedder | None) -> None:
        name = self._engine.name
        if own is None:
            raise ConfigError(f"collection {name!r} keeps no vectors: open a new one with embedder=...")
        if self._embedder is not None:
            embedding.check(embedding.describe(own), self._embedder, name)


def latest(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The last chunk of each id."""
    return list({chunk.id: chunk for chunk in chunks}.values())
