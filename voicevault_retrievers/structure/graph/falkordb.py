"""FalkorDB as a graph store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from voicevault_retrievers._support.checks import number, seconds_or_none
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.errors import ConfigError, SearchError, SearchNotAvailableError, SearchTimeoutError
from voicevault_retrievers.structure.graph.cypher import Cypher, CypherStatement, CypherStore, Rows

_INDEXES = ("CREATE INDEX FOR (n:VVNode) ON (n.id)", "CREATE INDEX FOR (n:VVNode) ON (n.name)")


class FalkorDBGraph(CypherStore):
    """A graph store in a FalkorDB, sync and async: the graph of this name on a server.

    `timeout` is in seconds, for each statement and for connecting; None waits. After a lost connection, reconnects
    once. Connects at the first statement. Raises SearchNotAvailableError where the server cannot be reached or refuses
    the user, SearchTimeoutError where it is too slow, SearchError for any other failure.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str = "localhost",
        port: int = 6379,
        username: str | None = None,
        password: str | None = None,
        ssl: bool = False,
        timeout: float | None = 5.0,
    ) -> None:
        super().__init__(Cypher())
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a graph's name is a string that is not empty, not {name!r}")
        self.name = name
        self.host = host
        self.port = int(number("port", port, least=1))
        self.timeout = seconds_or_none("timeout", timeout)
        self._options = {"host": host, "port": self.port, "username": username, "password": password, "ssl": ssl}
        self._indexed = False
        self._lock = Mutex()
        self._of_loop: PerLoop[Any] = PerLoop(self._async_graph, lambda graph: graph.client.aclose())

    def ask(self, statement: CypherStatement) -> Rows:
        """The rows of a statement."""
        graph = self._graph
        if statement.writes:
            self._index()
        ask = graph.query if statement.writes else partial(graph.ro_query, timeout=self._milliseconds)
        with self._errors(statement) as rows:
            rows.extend(ask(statement.text, dict(statement.parameters)).result_set)
        return rows

    async def aask(self, statement: CypherStatement) -> Rows:
        """`ask` on the running event loop, with a connection of that loop."""
        if statement.writes:
            raise ConfigError("FalkorDBGraph writes with put and delete, which are not async: call them in a thread")
        graph = await self._of_loop.get()
        with self._errors(statement) as rows:
            asked = graph.ro_query(statement.text, dict(statement.parameters), timeout=self._milliseconds)
            rows.extend((await asked).result_set)
        return rows

    def close(self) -> None:
        """Close the connections of threads; the next statement opens them again."""
        with self._lock:
            client = self.__dict__.pop("_client", None)
            self.__dict__.pop("_graph", None)
            self._indexed = False
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._of_loop.aclose()

    @cached_property
    def _client(self) -> Any:
        redis, retry = require("redis", extra="graph"), require("redis.retry", extra="graph")
        return redis.Redis(**self._connection(redis), retry=self._once(retry.Retry, redis))

    @cached_property
    def _graph(self) -> Any:
        return require("falkordb.graph", extra="graph").Graph(self._client, self.name)

    @property
    def _milliseconds(self) -> int | None:
        """The server's own time limit for a search, so that abandoned searches end."""
        return None if self.timeout is None else max(1, int(1000 * self.timeout))

    async def _async_graph(self) -> Any:
        redis, client = require("redis", extra="graph"), require("redis.asyncio", extra="graph")
        retry = require("redis.asyncio.retry", extra="graph")
        connected = client.Redis(**self._connection(redis), retry=self._once(retry.Retry, redis))
        return require("falkordb.asyncio.graph", extra="graph").AsyncGraph(connected, self.name)

    def _connection(self, redis: Any) -> dict[str, Any]:
        limits = {"socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}
        return {**self._options, **limits, "decode_responses": True, "protocol": 2}

    def _once(self, retry: Any, redis: Any) -> Any:
        """The retry policy: once after a lost connection, never where the server is slow or refuses the user."""
        backoff = require("redis.backoff", extra="graph").NoBackoff()
        return retry(backoff, 1, supported_errors=(redis.exceptions.ConnectionError,))

    def _index(self) -> None:
        """Create missing indexes, which the statements need."""
        if self._indexed:
            return
        exceptions = require("redis.exceptions", extra="graph")
        for text in _INDEXES:
            with self._errors(CypherStatement(text, {}, writes=True)):
                try:
                    self._graph.query(text)
                except exceptions.ResponseError as error:
                    if "already indexed" not in str(error):
                        raise
        self._indexed = True

    @contextmanager
    def _errors(self, statement: CypherStatement) -> Iterator[Rows]:
        exceptions = require("redis.exceptions", extra="graph")
        place = f"FalkorDB at {self.host}:{self.port}"
        try:
            yield []
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise SearchNotAvailableError(f"{place} refuses the user or the password: {error}") from error
        except (exceptions.TimeoutError, TimeoutError) as error:
            raise SearchTimeoutError(f"{place} did not answer within {self.timeout} s") from error
        except (exceptions.ConnectionError, OSError) as error:
            self._indexed = False  # a restarted server may have lost the indexes
            raise SearchNotAvailableError(f"{place} cannot be reached: {error}") from error
        except exceptions.ResponseError as error:
            if not statement.writes and "empty key" in str(error):
                return  # a graph without entries does not exist yet
            if "timed out" in str(error):
                raise SearchTimeoutError(f"{place} did not answer within {self.timeout} s") from error
            raise SearchError(f"{place} refused a statement: {error}") from error

    def __repr__(self) -> str:
        return f"FalkorDBGraph({self.name!r}, host={self.host!r}, port={self.port}, timeout={self.timeout})"
