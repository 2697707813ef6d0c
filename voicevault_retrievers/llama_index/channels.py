"""LlamaIndex's retrievers, indexes and vector stores as channels of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides
from voicevault_retrievers.core.execution.plan import Plan, converting, in_thread
from voicevault_retrievers.core.leaf import LeafChannel, Match, degraded_below, in_given_order
from voicevault_retrievers.core.types import ANY_EMBEDDER, ChannelKind, Failure, Query, Ranking, Variant
from voicevault_retrievers.engines.foreign import filter_of
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.convert import match_of
from voicevault_retrievers.llama_index.models import LlamaIndexEmbedder
from voicevault_retrievers.llama_index.store_channels import VectorStoreChannel, awaits, brought, turns

Part: TypeAlias = Channel | BaseRetriever | BaseIndex[Any] | BasePydanticVectorStore


class RetrieverChannel(LeafChannel):
    """A channel that calls a LlamaIndex retriever, once per wording, in a worker thread.

    A retriever returns as many nodes as it is set to, an index as many as the search asks for. Their order is kept.
    Scores are kept too, where each node has one and they fall; otherwise hits have ranks only. A query's filter is not
    passed to the retriever. With a filter, the store of a plain VectorIndexRetriever is searched instead, for as many
    nodes as the retriever is set to; any other retriever raises FilterNotSupportedError. A plain one belongs to a
    vector store index, in the default mode, without its own filters, documents, store options or objects. A vector that
    the query brings is used where it fits the retriever's embed_model, or where that is not known.
    """

    each_alone = True

    @checks_options
    def __init__(
        self,
        part: BaseRetriever | BaseIndex[Any],
        kind: ChannelKind = "semantic",
        *,
        timeout: float | None = None,
        name: str = "llama_index",
    ) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.part = part
        model = getattr(part, "_embed_model", None)
        self.embedder = LlamaIndexEmbedder(model) if isinstance(model, BaseEmbedding) else None
        local = self.embedder is not None and self.embedder.aembed_queries is None
        self._alone = turns(getattr(part, "_vector_store", None)) if local else nullcontext()

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if isinstance(self.part, VectorIndexRetriever) and filter_of(query) and _is_plain(self.part):
            return (yield from self._below(self.part).plan(query, min(k, self.part.similarity_top_k)))
        return (yield from super().plan(query, k))

    def _below(self, part: VectorIndexRetriever) -> VectorStoreChannel:
        """A channel over the store of a plain retriever, restricted to the retriever's node ids."""
        ids = part._node_ids or None
        below = VectorStoreChannel(
            part._index, part._embed_model, self.kind, ids=ids, timeout=self.timeout, name=self.name
        )
        below._breaker = self._breaker
        return below

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        bundles = self._bundles(query, wordings)
        with self._alone:
            return [_matches(self._found(self._retriever(k), bundle)) if bundle else [] for bundle in bundles]

    def _found(self, retriever: BaseRetriever, bundle: QueryBundle) -> Sequence[NodeWithScore]:
        """The nodes that a retriever finds; an async search awaits a retriever that has no sync search."""
        return call_or_await(partial(retriever.retrieve, bundle), partial(retriever.aretrieve, bundle), waits=False)

    def _retriever(self, k: int) -> BaseRetriever:
        return self.part.as_retriever(similarity_top_k=k) if isinstance(self.part, BaseIndex) else self.part

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        return degraded_below(self.name, found)

    def _bundles(self, query: Query, wordings: Sequence[Variant]) -> list[QueryBundle | None]:
        """A new bundle for each wording; None for a wording with nothing to search for."""
        if filter_of(query):
            raise FilterNotSupportedError(
                f"{self.name} is searched by LlamaIndex, which is not given this search's filter, so it was skipped; "
                "set the filter on that retriever, give its index or vector store in its place, or search its nodes "
                "with BM25Retriever or VectorRetriever"
            )
        vector = self._brought(query)
        return [
            QueryBundle(wording.text, embedding=vector)
            if vector is not None and wording.text == query.text
            else (QueryBundle(wording.text) if wording.text.strip() else None)
            for wording in wordings
        ]

    def _brought(self, query: Query) -> list[float] | None:
        """The vector that a query brings, where it fits the retriever's model or that model is not known."""
        if self.embedder is not None and query.vectors:
            return brought(query, self.embedder)
        bare = query.vectors.get(ANY_EMBEDDER)
        return None if bare is None else [float(value) for value in bare]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.part).__name__}, {self.kind!r})"


class AsyncRetrieverChannel(RetrieverChannel):
    """A channel over a retriever with its own async search, which an async search awaits."""

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        making = partial(self._bundles, query, wordings)  # checking a vector's dimension may embed a text
        bundles = await aexecute(in_thread(self.name, making)) if query.vectors else making()
        found = [await self._retriever(k).aretrieve(bundle) if bundle else [] for bundle in bundles]
        count = sum(map(len, found))
        return await aexecute(converting(lambda: [_matches(nodes) for nodes in found], count))


@checks_options
def as_channel(
    part: Part,
    *,
    kind: ChannelKind | None = None,
    embed_model: BaseEmbedding | None = None,
    timeout: float | None = None,
) -> Channel:
    """A channel from a retriever, an index, or a vector store and its `embed_model`; a Channel unchanged.

    A vector store, and an index over one, are searched by a VectorStoreChannel, which applies filters. An index whose
    nodes point to other objects is searched by its retriever, which enters the objects. A retriever of this package
    joins with its own channels, under its own filters. `kind` is taken from the class's name by default: keyword,
    graph, else semantic. `timeout` is in seconds. Raises ConfigError for anything else.
    """
    if isinstance(part, Channel):
        return part
    if isinstance(part, PipelineRetriever):
        return part.channel
    if isinstance(part, BasePydanticVectorStore) or (type(part) is VectorStoreIndex and not part._object_map):
        return VectorStoreChannel(part, embed_model, kind or "semantic", timeout=timeout)
    if not isinstance(part, BaseIndex | BaseRetriever):
        raise ConfigError(
            f"a channel is a Channel, a retriever, an index or a vector store, not a {type(part).__name__}"
        )
    made = AsyncRetrieverChannel if is_async(part) else RetrieverChannel
    return made(part, kind or _kind(part), timeout=timeout)


def _is_plain(part: VectorIndexRetriever) -> bool:
    """Whether a retriever only asks its store for the nearest nodes."""
    own = part._filters, part._doc_ids, part._kwargs, part.object_map
    everywhere = not part._node_ids or not part._vector_store.stores_text  # else the ids are those of IndexNodes
    default = part._vector_store_query_mode == VectorStoreQueryMode.DEFAULT
    return type(part) is VectorIndexRetriever and default and everywhere and not any(own)


def is_async(part: BaseIndex[Any] | BaseRetriever) -> bool:
    """Whether the async search is non-blocking: False where it runs the sync search on the event loop."""
    retriever = part.as_retriever() if isinstance(part, BaseIndex) else part
    store = getattr(retriever, "_vector_store", None)
    if isinstance(store, BasePydanticVectorStore) and not awaits(store, "aquery"):
        return False
    model = getattr(retriever, "_embed_model", None)
    if isinstance(model, BaseEmbedding) and LlamaIndexEmbedder(model).aembed_queries is None:
        return False
    return overrides(retriever, BaseRetriever, "_aretrieve")


def _kind(part: object) -> ChannelKind:
    name = type(part).__name__
    if "BM25" in name or "Keyword" in name:
        return "keyword"
    return "graph" if "Graph" in name or name.startswith("KG") else "semantic"


def _matches(nodes: Sequence[NodeWithScore]) -> list[Match]:
    return in_given_order(map(match_of, nodes))
