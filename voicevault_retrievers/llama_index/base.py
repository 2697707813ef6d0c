"""What the retrievers share: a pipeline behind LlamaIndex's interface."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index_instrumentation import get_dispatcher

from voicevault_retrievers.calls import Call, Plan, value_of
from voicevault_retrievers.channel import Channel, check_k
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import Filter, both, scope
from voicevault_retrievers.llama_index.convert import query_of
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.llama_index.node import node_of_hit
from voicevault_retrievers.pipeline import Pipeline
from voicevault_retrievers.types import Query, Result

T = TypeVar("T")
R = TypeVar("R", bound="PipelineRetriever")
Where = Filter | MetadataFilters | None

_LOG = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)


@dataclass(frozen=True)
class Narrowing:
    """Filters to be added to those of a query, and weights over its own."""

    where: Filter | None = None
    require: Filter | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    def of(self, query: Query) -> Query:
        """The narrowed query."""
        return replace(
            query,
            where=both(self.where, query.where),
            require=scope(self.require, query.require),
            weights={**(query.weights or {}), **self.weights} or None,
        )


class PipelineRetriever(BaseRetriever):
    """A pipeline as a retriever. A node's score is what the last scoring stage ordered by; None where none did.

    `k`, or `similarity_top_k`, is how many nodes a query gives. `where` narrows every search, `require` is the caller's
    access rights: each the portable filter or MetadataFilters. Nodes are copies with their provenance; where a channel
    or stage was skipped, it says so under `degraded`, and a warning is logged.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        k: int | None = None,
        similarity_top_k: int | None = None,
        where: Where = None,
        require: Where = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)
        self.pipeline = pipeline
        self.k = _top_k(k, similarity_top_k, pipeline.k)
        self.narrowing = Narrowing(filter_of(where), scope(None if require is None else filter_of(require) or {}))

    @property
    def similarity_top_k(self) -> int:
        """`k` under LlamaIndex's name for it."""
        return self.k

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self.k = check_k(k)

    @property
    def channel(self) -> Channel:
        """What is searched, under this retriever's filters: a channel for another pipeline."""
        return self.pipeline.narrowed(self.narrowing.where, self.narrowing.require)

    def search(
        self,
        query: str | QueryBundle | Query,
        k: int | None = None,
        *,
        where: Where = None,
        weights: Mapping[str, float] | None = None,
    ) -> Result:
        """The whole result of a search: hits, errors, timings, context. Options as of `with_options`."""
        chosen = self.with_options(k=k, where=where, weights=weights)
        return self.pipeline.search(chosen.narrowing.of(query_of(query)), chosen.k)

    async def asearch(
        self,
        query: str | QueryBundle | Query,
        k: int | None = None,
        *,
        where: Where = None,
        weights: Mapping[str, float] | None = None,
    ) -> Result:
        """`search` on the running event loop; the same result but for the timings."""
        chosen = self.with_options(k=k, where=where, weights=weights)
        return await self.pipeline.asearch(chosen.narrowing.of(query_of(query)), chosen.k)

    def with_options(
        self: R, *, k: int | None = None, where: Where = None, weights: Mapping[str, float] | None = None
    ) -> R:
        """A copy with other options that shares what it searches.

        `where` is added to the retriever's own filter, never put in its place; `weights` override by channel name.
        """
        twin = copy.copy(self)
        twin.k = self.k if k is None else check_k(k)
        twin.narrowing = Narrowing(
            both(self.narrowing.where, filter_of(where)),
            self.narrowing.require,
            {**self.narrowing.weights, **(weights or {})},
        )
        return twin

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(self.search(query_bundle))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(await self.asearch(query_bundle))

    def _nodes(self, result: Result) -> list[NodeWithScore]:
        if result.errors:
            said = "gave a degraded result" if result.degraded else "notes"
            _LOG.warning("%s %s: %s", type(self).__name__, said, "; ".join(map(str, result.errors)))
        return [node_of_hit(hit, result.skipped) for hit in result.hits]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pipeline!r}, k={self.k})"


def in_thread(name: str, function: Callable[[], T]) -> Plan[T]:
    """A call that an event loop must not wait for."""
    (outcome,) = yield (Call(name, function),)
    returned: T = value_of(outcome)
    return returned


def _top_k(k: int | None, similarity_top_k: int | None, default: int) -> int:
    if k is not None and similarity_top_k is not None and k != similarity_top_k:
        raise ConfigError(f"k={k!r} and similarity_top_k={similarity_top_k!r} are the same option; give one of them")
    return check_k(next((given for given in (k, similarity_top_k) if given is not None), default))
