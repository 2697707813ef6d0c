"""Batch search: many queries, searched together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from voicevault_retrievers.core import telemetry
from voicevault_retrievers.core.access_control import found_under
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute, aexecute_all, execute_all
from voicevault_retrievers.core.execution.plan import Plan, Span, aoutcome_of, in_thread, outcome_of, value_of
from voicevault_retrievers.core.execution.run import ABREAST
from voicevault_retrievers.core.types import Failure, Query, Ranking, Result, as_query
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.query_file import File, FileQuery, read_queries

TOGETHER = 32
"""The number of queries that a batch searches together."""
STAGE = "query"
"""The stage name in the failure of a query that could not be searched at all."""


Asked: TypeAlias = tuple[Query, int | None] | Exception
"""A query and its number of hits (None for the default), or the error of an invalid query."""


class Batched(ABC):
    """The base class of searchers that take single queries and batches."""

    channel: Channel
    timeout: float | None
    on_error: Literal["skip", "raise"]

    @abstractmethod
    def search(self, query: str | Query, k: int | None = None) -> Result:
        """Return the result of one query."""

    @abstractmethod
    async def asearch(self, query: str | Query, k: int | None = None) -> Result:
        """`search` on the running event loop."""

    @abstractmethod
    def _plan(self, asked: Asked) -> Plan[tuple[Query, Ranking]]:
        """A plan that returns the query as it was searched, and its ranking. Raises the error of an invalid query."""

    @abstractmethod
    def _ended(self, found: tuple[Query, Ranking] | Exception, spans: Sequence[Span]) -> Result:
        """The result of a search from its ranking, or raises its error."""

    @abstractmethod
    async def _aended(self, found: tuple[Query, Ranking] | Exception, spans: Sequence[Span]) -> Result:
        """`_ended` on the running event loop."""

    def search_many(self, queries: Iterable[str | Query], k: int | None = None) -> list[Result]:
        """Return the result of each query, in the queries' order, the same as `search` returns.

        The queries are searched together: their texts are embedded in one batch, and each pass over the vectors serves
        many queries. Queries that wait for a server or a reranker run four at a time. Where the application records
        spans or metrics, queries are searched one after the other, each with its own spans. Raises the first error that
        a `search` would raise.
        """
        return [value_of(found) for found in self.search_each([(query, k) for query in _as_queries(queries)])]

    async def asearch_many(self, queries: Iterable[str | Query], k: int | None = None) -> list[Result]:
        """`search_many` on the running event loop; the same results."""
        return [value_of(found) for found in await self.asearch_each([(query, k) for query in _as_queries(queries)])]

    def run(
        self,
        queries: Iterable[str | Query] | None = None,
        queries_file: File | None = None,
        *,
        k: int | None = None,
    ) -> list[Result]:
        """Return the results of `queries`, then of the queries in a file (see `read_queries`), in their order.

        A query that fails does not stop the others: its result has no hits, is degraded and holds the error; with
        `on_error` "raise" the error is raised. `k` applies to queries without a number of their own. Raises ConfigError
        where neither is given, and where the file holds no queries.
        """
        gathered = _gathered(queries, queries_file)
        return self._settled(gathered, self.search_each([_asked(one, k) for one in gathered]))

    async def arun(
        self,
        queries: Iterable[str | Query] | None = None,
        queries_file: File | None = None,
        *,
        k: int | None = None,
    ) -> list[Result]:
        """`run` on the running event loop; the same results."""
        gathered = _gathered(queries, queries_file)
        return self._settled(gathered, await self.asearch_each([_asked(one, k) for one in gathered]))

    def search_each(self, asked: Sequence[Asked]) -> list[Result | Exception]:
        """Return for each query, with its own k, the result, or the error that `search` would raise."""
        if telemetry.records():  # spans are recorded per search
            return [one if isinstance(one, Exception) else outcome_of(partial(self.search, *one)) for one in asked]
        results: list[Result | Exception] = []
        for group in self._groups(asked):
            spans = [list[Span]() for _ in group]
            found = execute_all(zip(map(self._plan, group), spans, strict=True), timeout=self.timeout)
            results += [outcome_of(partial(self._ended, *one)) for one in zip(_read(found), spans, strict=True)]
        return results

    async def asearch_each(self, asked: Sequence[Asked]) -> list[Result | Exception]:
        """`search_each` on the running event loop."""
        if telemetry.records():
            return [one if isinstance(one, Exception) else await aoutcome_of(self.asearch(*one)) for one in asked]
        results: list[Result | Exception] = []
        for group in self._groups(asked):
            spans = [list[Span]() for _ in group]
            found = await aexecute_all(zip(map(self._plan, group), spans, strict=True), timeout=self.timeout)
            read = await aexecute(in_thread("read", partial(_read, found)))
            results += [await aoutcome_of(self._aended(*one)) for one in zip(read, spans, strict=True)]
        return results

    def _groups(self, asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
        size = TOGETHER if self.timeout is None else ABREAST
        return (asked[at : at + size] for at in range(0, len(asked), size))

    def _settled(self, gathered: Sequence[FileQuery], searched: Iterable[Result | Exception]) -> list[Result]:
        results = []
        for asked, result in zip(gathered, searched, strict=True):
            if isinstance(result, Exception) and self.on_error == "raise":
                raise result
            results.append(_failing(asked, result) if isinstance(result, Exception) else result)
        return results


def _read(found: Iterable[Any]) -> list[Any]:
    """The query and the permitted, loaded hits of each outcome; errors unchanged."""

    def read(one: Any) -> tuple[Query, Ranking]:
        query, ranking = value_of(one)
        return query, found_under(ranking.read(), query.require)

    return [outcome_of(partial(read, one)) for one in found]


def answer(
    search: Callable[[Query, int | None], Result], asked: FileQuery, k: int | None
) -> tuple[Result, Exception | None]:
    """The result of a query and None; for a failing query a result without hits that holds the error, and the error."""
    given = _asked(asked, k)
    result = given if isinstance(given, Exception) else outcome_of(partial(search, *given))
    return (_failing(asked, result), result) if isinstance(result, Exception) else (result, None)


def _gathered(queries: Iterable[str | Query] | None, file: File | None) -> list[FileQuery]:
    if queries is None and file is None:
        raise ConfigError("give queries, or a queries_file")
    given = [FileQuery(query) for query in _as_queries(queries or ())]
    return given if file is None else [*given, *read_queries(file)]


def _as_queries(queries: Iterable[str | Query]) -> list[Query]:
    if isinstance(queries, str | Query | Mapping):
        raise ConfigError(f"queries is a list of queries, not a {type(queries).__name__}: use search for one")
    return [as_query(query) for query in queries]


def _asked(asked: FileQuery, k: int | None) -> Asked:
    return asked.error or (asked.query, k if asked.k is None else asked.k)


def _failing(asked: FileQuery, error: Exception) -> Result:
    return Result(asked.query, Ranking((), (Failure.recorded(STAGE, error),)))
