"""Clients of a collection for tests, which call its sync methods or, on the test's event loop, its async methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from numpy.typing import ArrayLike

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.server import WriteCounts
from voicevault_retrievers.errors import RetrievalError
from voicevault_retrievers.lexical.statistics import Statistics
from voicevault_retrievers.store import KnowledgeBase

Connect: TypeAlias = Callable[..., Engine]


def ended(loop: asyncio.AbstractEventLoop) -> None:
    """Close an event loop after the callbacks of what was closed on it have run."""
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


class CollectionClient:
    """A client of a collection: sync where `loop` is None, else async."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop | None) -> None:
        self.engine = engine
        self.loop = loop

    @property
    def name(self) -> str:
        """The collection's name."""
        return self.engine.name

    def _do(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self.loop is None:
            return getattr(self.engine, name)(*arguments, **options)
        return self.loop.run_until_complete(getattr(self.engine, f"a{name}")(*arguments, **options))

    def upsert(self, chunks: Iterable[Chunk], vectors: ArrayLike | None = None, **options: Any) -> WriteCounts:
        written: WriteCounts = self._do("upsert", chunks, vectors, **options)
        return written

    def delete(self, ids: Iterable[str] | None = None, *, where: Filter | None = None) -> int:
        return int(self._do("delete", ids, where=where))

    def clear(self) -> None:
        self._do("clear")

    def count(self) -> int:
        return len(self.engine) if self.loop is None else int(self._do("count"))

    def get(self, ids: Iterable[str]) -> dict[str, Chunk]:
        return dict(self._do("get", ids))

    def parents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        return dict(self._do("parents", ids))

    def hybrid(self, query: str | Query, k: int) -> Ranking:
        found: Ranking = self._do("hybrid_search", query, k)
        return found

    def bm25(self, query: str | Query, k: int, *, statistics: Statistics | None = "exact", **options: Any) -> Ranking:
        return self.search(self.engine.bm25(statistics=statistics, **options), query, k)

    def dense(self, query: str | Query, k: int) -> Ranking:
        return self.search(self.engine.dense(), query, k)

    def search(self, channel: Channel, query: str | Query, k: int) -> Ranking:
        """Search a channel."""
        if self.loop is None:
            return channel.search(query, k)
        return self.loop.run_until_complete(channel.asearch(query, k))

    def ids(self) -> list[str]:
        """The ids of all chunks, ascending, from `stored`."""
        return sorted(entry.id for entry in self.engine.stored())

    def close(self) -> None:
        """Close the engine's connections, also those of the event loop."""
        self.engine.close()
        if self.loop is not None:
            self.loop.run_until_complete(self.engine.aclose())


class Collections:
    """Opens collections with unique names; `end` removes them and closes every client."""

    def __init__(
        self, connect: Connect, loop: asyncio.AbstractEventLoop | None, folder: Path, *, alone: bool = False
    ) -> None:
        self._connect = connect
        self._alone = alone
        self._loop = loop
        self._folder = folder
        self._clients: list[CollectionClient] = []
        self._bases: list[KnowledgeBase] = []

    def __call__(self, name: str | None = None, **options: Any) -> CollectionClient:
        """A client of a new collection, or of the collection with this name. `options` are those of the engine."""
        client = CollectionClient(self._connect(name or f"conformance_{uuid4().hex[:16]}", **options), self._loop)
        self._clients.append(client)
        return client

    def again(self, client: CollectionClient, **options: Any) -> CollectionClient:
        """Another client of the same collection. The first is closed: some engines allow one client at a time."""
        client.close()
        return self(client.name, **options)

    @contextmanager
    def meanwhile(self, client: CollectionClient, **options: Any) -> Iterator[CollectionClient]:
        """A second client of the same collection; the first is closed only where one client at a time is allowed."""
        if self._alone:
            client.close()
        other = self(client.name, **options)
        yield other
        other.close()

    def base(self, chunks: Iterable[Chunk] = (), **options: Any) -> KnowledgeBase:
        """A knowledge base with these chunks."""
        base = KnowledgeBase.create(f"base_{uuid4().hex[:16]}", root=self._folder, **options)
        self._bases.append(base)
        base.add(chunks)
        return base

    def end(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Remove and close everything; `loop` is a further event loop on which clients were used."""
        for client in self._clients:
            if loop is not None:
                loop.run_until_complete(client.engine.aclose())
            client.engine.forget()
            with suppress(RetrievalError):  # a collection of another recipe, or of a stopped server
                client.clear()
            client.close()
        for base in self._bases:
            base.close()
