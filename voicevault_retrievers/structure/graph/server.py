"""A graph store over a server that speaks Cypher; a subclass says how one statement is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from voicevault_retrievers.core.execution.steps import Steps, arun, run
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.structure.graph.cypher import Cypher, CypherStatement, Rows
from voicevault_retrievers.structure.graph.store import Edge, Entry, GraphStats

T = TypeVar("T")


class CypherStore(ABC):
    """A graph store whose statements are those of `Cypher`, sync and async."""

    def __init__(self, cypher: Cypher) -> None:
        self._cypher = cypher

    @abstractmethod
    def ask(self, statement: CypherStatement) -> Rows:
        """The rows that a statement gives."""

    @abstractmethod
    async def aask(self, statement: CypherStatement) -> Rows:
        """`ask` on the running event loop."""

    def put(self, entries: Sequence[Entry]) -> None:
        """Add chunks with all that they state, in place of what those of the same ids stated."""
        self._run(self._cypher.put(entries))

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks with all that only they state."""
        self._run(self._cypher.delete(chunk_ids))

    def find(self, names: Sequence[str]) -> dict[str, list[str]]:
        """For each name the keys with it, ascending."""
        return self._run(self._cypher.find(names))

    async def afind(self, names: Sequence[str]) -> dict[str, list[str]]:
        """`find` on the running event loop."""
        return await self._arun(self._cypher.find(names))

    def edges(self, nodes: Sequence[str]) -> list[Edge]:
        """All edges at these nodes, each once."""
        return self._run(self._cypher.edges(nodes))

    async def aedges(self, nodes: Sequence[str]) -> list[Edge]:
        """`edges` on the running event loop."""
        return await self._arun(self._cypher.edges(nodes))

    def chunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """Those of the given chunks that are here."""
        return self._run(self._cypher.chunks(ids))

    async def achunks(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """`chunks` on the running event loop."""
        return await self._arun(self._cypher.chunks(ids))

    def stats(self) -> GraphStats:
        """How much there is."""
        return self._run(self._cypher.stats())

    def _run(self, statements: Steps[T]) -> T:
        return run(statements, self.ask)

    async def _arun(self, statements: Steps[T]) -> T:
        return await arun(statements, self.aask)
