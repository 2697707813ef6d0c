"""Neo4j, and other servers with its protocol, as a graph store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.core.execution.steps import Steps, run
from voicevault_retrievers.errors import ConfigError, SearchError, SearchNotAvailableError, SearchTimeoutError
from voicevault_retrievers.structure.graph.cypher import Cypher, CypherStatement, CypherStore, Rows

T = TypeVar("T")

_INDEXES = (
    "CREATE CONSTRAINT vv_node_id IF NOT EXISTS FOR (n:VVNode) REQUIRE n.id IS UNIQUE",
    "CREATE INDEX vv_node_name IF NOT EXISTS FOR (n:VVNode) ON (n.name)",
)


class Neo4jGraph(CypherStore):
    """A graph store in a Neo4j, sync and async, with Neo4j's driver.

    Several graphs share a `database`: the ids of each begin with its `name`. One `put` or `delete` is one transaction.
    `timeout` is in seconds, for each statement and for connecting; None leaves it to the driver and the server.
    Connects at the first statement. Raises as `FalkorDBGraph` does.
    """

    def __init__(
        self,
        name: str,
        *,
        uri: str = "bolt://localhost:7687",
        auth: tuple[str, str] | None = None,
        database: str | None = None,
        timeout: float | None = 5.0,
    ) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"a graph's name is a string that is not empty and has no slash, not {name!r}")
        super().__init__(Cypher(f"{name}/"))
        self.name = name
        self.uri = uri
        self.database = database
        self.timeout = seconds_or_none("timeout", timeout)
        self._auth = auth
        self._indexed = False
        self._of_loop: PerLoop[Any] = PerLoop(self._async_driver, lambda driver: driver.close())
        reset_in_child(self, Neo4jGraph._forked)

    def ask(self, statement: CypherStatement) -> Rows:
        """The rows of a statement, in a transaction of its own."""
        with self._errors(), self._driver.session(**self._session()) as session:
            return [
                tuple(record.values()) for record in session.run(self._query(statement), dict(statement.parameters))
            ]

    async def aask(self, statement: CypherStatement) -> Rows:
        """`ask` on the running event loop, with a connection of that loop."""
        with self._errors():
            async with (await self._of_loop.get()).session(**self._session()) as session:
                given = await session.run(self._query(statement), dict(statement.parameters))
                return [tuple(record.values()) async for record in given]

    def put(self, entries: Sequence[Any]) -> None:
        """Add chunks with their links, in one transaction."""
        self._written(lambda: self._cypher.put(entries))

    def delete(self, chunk_ids: Sequence[str]) -> None:
        """Remove chunks, and references that no other chunk states, in one transaction."""
        self._written(lambda: self._cypher.delete(chunk_ids))

    def close(self) -> None:
        """Close the connections of threads; the next statement opens them again."""
        driver = self.__dict__.pop("_driver", None)
        if driver is not None:
            driver.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._of_loop.aclose()

    def _forked(self) -> None:
        leave_to_parent(self.__dict__.pop("_driver", None))

    def _written(self, statements: Any) -> None:
        self._index()
        with self._errors(), self._driver.session(**self._session()) as session:
            session.execute_write(lambda transaction: _all(transaction, statements()))

    def _index(self) -> None:
        if not self._indexed:
            for text in _INDEXES:
                self.ask(CypherStatement(text, {}, writes=True))
            self._indexed = True

    def _query(self, statement: CypherStatement) -> Any:
        return require("neo4j", extra="graph").Query(statement.text, timeout=self.timeout)

    def _session(self) -> dict[str, Any]:
        return {} if self.database is None else {"database": self.database}

    @cached_property
    def _driver(self) -> Any:
        return require("neo4j", extra="graph").GraphDatabase.driver(self.uri, auth=self._auth, **self._limits())

    async def _async_driver(self) -> Any:
        return require("neo4j", extra="graph").AsyncGraphDatabase.driver(self.uri, auth=self._auth, **self._limits())

    def _limits(self) -> dict[str, Any]:
        if self.timeout is None:
            return {}
        return {
            "connection_timeout": self.timeout,
            "connection_acquisition_timeout": 2 * self.timeout,
            "max_transaction_retry_time": self.timeout,
        }

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = require("neo4j.exceptions", extra="graph")
        place = f"Neo4j at {mask_credentials(self.uri)}"
        try:
            yield
        except (errors.AuthError, errors.AuthConfigurationError) as error:
            raise SearchNotAvailableError(f"{place} refuses the user or the password: {error}") from error
        except errors.ConnectionAcquisitionTimeoutError as error:
            raise SearchTimeoutError(f"{place} gave no connection within {self.timeout} s") from error
        except (errors.ServiceUnavailable, errors.SessionExpired, errors.TransientError, OSError) as error:
            raise SearchNotAvailableError(f"{place} cannot be reached: {error}") from error
        except errors.Neo4jError as error:
            late = "TransactionTimedOut" in str(error.code)
            kind = SearchTimeoutError if late else SearchError
            raise kind(f"{place} refused a statement: {error.message}") from error

    def __repr__(self) -> str:
        uri = mask_credentials(self.uri)
        return f"Neo4jGraph({self.name!r}, uri={uri!r}, database={self.database!r}, timeout={self.timeout})"


def _all(transaction: Any, statements: Steps[T]) -> T:
    """The result of the statements, in one transaction."""

    def ask(statement: CypherStatement) -> Rows:
        return [tuple(record.values()) for record in transaction.run(statement.text, dict(statement.parameters))]

    return run(statements, ask)
