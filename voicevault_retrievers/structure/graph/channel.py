"""The graph as a channel: finds the chunks around the references in a query."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from voicevault_retrievers._support.checks import number, whole
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import Filter, compile_filter, scope
from voicevault_retrievers.core.leaf import LeafChannel, Match, guarding
from voicevault_retrievers.core.types import Failure, Query, Variant, as_query
from voicevault_retrievers.errors import ConfigError, RetrievalError, safe_message
from voicevault_retrievers.structure.graph.embedded import EmbeddedGraph
from voicevault_retrievers.structure.graph.store import GraphStore
from voicevault_retrievers.structure.graph.walk import Reached, Walk, arun, direct, run, starts
from voicevault_retrievers.text.references.reference import Reference, ReferenceReader
from voicevault_retrievers.text.references.rules import RuleReferences

T = TypeVar("T")

_AT_ONCE = 64
_log = logging.getLogger(__name__)


class GraphChannel(LeafChannel):
    """Finds the chunks around the references that a query names; scores are those of `walk`, higher is nearer.

    `depth` is the length of paths, in chunks; `decay` is the factor on a score for each chunk, in (0, 1]; `fan_out` is
    how many neighbours of one node are followed. Each hit's vote has its path in `via`. A query without a reference, or
    with one that the graph does not know, finds nothing, without a failure; where no chunk of a graph in memory refers
    to anything, a note says so. `timeout` is in seconds; None waits. Raises ConfigError for an object that is no store
    or no reader.
    """

    def __init__(
        self,
        store: GraphStore,
        *,
        reader: ReferenceReader | None = None,
        depth: int = 2,
        decay: float = 0.5,
        fan_out: int = 50,
        timeout: float | None = None,
        name: str = "graph",
    ) -> None:
        super().__init__(name, "graph", timeout=timeout)
        self.store = checked_store(store)
        self.reader = RuleReferences() if reader is None else reader
        if not isinstance(self.reader, ReferenceReader):
            raise ConfigError(f"a reader of references has read(text), which a {type(reader).__name__} does not")
        self.depth = whole("depth", depth)
        self.decay = checked_decay(decay)
        self.fan_out = whole("fan_out", fan_out)
        self._awaits = _waits_for_nobody(self.store, "aedges") and _waits_for_nobody(self.reader, "aread")

    @property
    def afind(self) -> Callable[[Query, Sequence[Variant], int], Any] | None:  # type: ignore[override]  # not kept
        """`find` that awaits the store and the reader; None where one of them has no async methods but blocks."""
        return self._afind if self._awaits else None

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """For each wording at most k chunks, best first."""
        store, reader = seen(self.store, query), seen(self.reader, query)
        return [run(store, self._matches(query, reader.read(w.text), k)) for w in wordings]

    async def _afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [await self._run(query, self._matches(query, await self._read(query, w.text), k)) for w in wordings]

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        if not any(isinstance(one, _Unreferred) for one in found):
            return ()
        said = "no chunk refers to anything: nothing is found by references"
        return (Failure(self.name, "NotIndexedError", said, degrades=False),)

    def direct(self, query: str | Query, *, timeout: float | None = None) -> dict[str, Any] | None:
        """The graph's entry for the first reference in a query that it knows; None where it knows none.

        The dict has `reference` (as written in the query), `key`, `chunk_id`, `text`, `metadata`, and `neighbours`, the
        chunks around it, each with `chunk_id`, `score` and `path`, nearest first. `timeout` is in seconds. Raises
        SearchError where the graph cannot be queried.
        """
        return execute(self._direct_plan(as_query(query)), timeout=timeout)

    async def adirect(self, query: str | Query, *, timeout: float | None = None) -> dict[str, Any] | None:
        """`direct` on the running event loop."""
        return await aexecute(self._direct_plan(as_query(query)), timeout=timeout)

    def kg_direct_query(self, text: str | Query, *, require: Filter | None = None) -> dict[str, Any] | None:
        """As `direct`, but also None where the graph cannot be queried, which is logged as a warning.

        `require` are access rights beside those of the query.
        """
        try:
            return self.direct(_asked(text, require))
        except RetrievalError as error:
            _log.warning("%s could not be asked: %s", self.name, safe_message(error))
            return None

    async def akg_direct_query(self, text: str | Query, *, require: Filter | None = None) -> dict[str, Any] | None:
        """`kg_direct_query` on the running event loop."""
        try:
            return await self.adirect(_asked(text, require))
        except RetrievalError as error:
            _log.warning("%s could not be asked: %s", self.name, safe_message(error))
            return None

    def _direct_plan(self, query: Query) -> Plan[dict[str, Any] | None]:
        query, _ = yield from guarding(self.name, self.guard, query)
        call = Call(
            self.name,
            partial(self._direct, query),
            partial(self._adirect, query) if self.afind else None,
            timeout=self.timeout,
            breaker=self._breaker,
            kind="channel",
            texts=(query.text,),
        )
        (outcome,) = yield (call,)
        found: dict[str, Any] | None = value_of(outcome)
        return found

    def _direct(self, query: Query) -> Any:
        references = seen(self.reader, query).read(query.text)
        return run(seen(self.store, query), direct(self._walk(query), query, references))

    async def _adirect(self, query: Query) -> Any:
        return await self._run(query, direct(self._walk(query), query, await self._read(query, query.text)))

    def _walk(self, query: Query) -> Walk:
        permits = None if query.require is None else compile_filter(query.require)
        return Walk(self.depth, self.decay, self.fan_out, permits, query.blocked)

    def _matches(self, query: Query, references: Sequence[Reference], k: int) -> Steps[list[Match]]:
        walk = self._walk(query)
        begun = yield from starts(walk, references)
        reached = (yield from walk.from_(begun)) if begun else {}
        words = tuple(dict.fromkeys(reference.text for reference in references if reference.text))
        found = yield from matches(walk, query, reached, k, words)
        stating = None if found or query.blocked else getattr(seen(self.store, query), "stating", None)
        return _Unreferred() if stating and stating(walk.permits) is False else found

    async def _read(self, query: Query, text: str) -> Sequence[Reference]:
        reader = seen(self.reader, query)
        aread: Callable[[str], Awaitable[Sequence[Reference]]] | None = getattr(reader, "aread", None)
        return reader.read(text) if aread is None else await aread(text)

    async def _run(self, query: Query, walk: Steps[T]) -> T:
        store = seen(self.store, query)
        found: T = await arun(store, walk) if hasattr(store, "aedges") else run(store, walk)
        return found

    def __repr__(self) -> str:
        return (
            f"GraphChannel({self.store!r}, reader={self.reader!r}, depth={self.depth}, decay={self.decay}, "
            f"fan_out={self.fan_out}, timeout={self.timeout}, name={self.name!r})"
        )


class _Unreferred(list[Match]):
    """No matches, because no chunk refers to anything."""


def matches(
    walk: Walk, query: Query, reached: dict[str, Reached], k: int, terms: tuple[str, ...] = ()
) -> Steps[list[Match]]:
    """The k best reached chunks that pass the query's filter, by falling score, ties by ascending id."""
    passes, kept = compile_filter(query.where), list[Match]()
    order = iter(sorted(reached, key=lambda one: (-reached[one].score, one)))
    while len(kept) < k and (ids := list(islice(order, max(k, _AT_ONCE)))):
        held = yield from walk.looked_up(ids)
        for one in ids:
            if one in held and passes(held[one].metadata):
                kept.append(Match(held[one], reached[one].score, terms, reached[one].path))
    return kept[:k]


def seen(part: T, query: Query) -> T:
    """A store or a reader as restricted to the access rights of a query.

    Uses its method `seen_by(require)` where it has one.
    """
    seen_by: Callable[[Filter], T] | None = getattr(part, "seen_by", None)
    return part if query.require is None or seen_by is None else seen_by(query.require)


def _waits_for_nobody(part: object, method: str) -> bool:
    """Whether the part does not block an event loop: it has an async method, or waits for neither server nor model."""
    return hasattr(part, method) or isinstance(part, EmbeddedGraph | RuleReferences)


def checked_store(store: GraphStore) -> GraphStore:
    """The store; ConfigError where it is not a GraphStore."""
    if not isinstance(store, GraphStore):
        raise ConfigError(
            f"a graph store has put, delete, find, edges, chunks and stats, which a {type(store).__name__} has not: "
            "use EmbeddedGraph, FalkorDBGraph, Neo4jGraph or PropertyGraph"
        )
    return store


def checked_decay(decay: float) -> float:
    """The decay; ConfigError unless it is above 0 and at most 1."""
    if not 0.0 < number("decay", decay) <= 1.0:
        raise ConfigError(f"decay is what is left of a score after a step, above 0 and at most 1, not {decay!r}")
    return decay


def _asked(text: str | Query, require: Filter | None) -> Query:
    asked = as_query(text)
    return replace(asked, require=scope(asked.require, require))
