"""LangChain's retrievers and vector stores as channels."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever

from voicevault_retrievers.calls import Call, Plan
from voicevault_retrievers.channel import MAX_DEPTH, Channel
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.filters import Filter, both, compile_filter
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.convert import chunk_of
from voicevault_retrievers.langchain.models import bound_of
from voicevault_retrievers.langchain.store_filters import nothing_passes, pushed
from voicevault_retrievers.langchain.stores import id_key_of, identified
from voicevault_retrievers.leaf import Leaf, Match, in_given_order
from voicevault_retrievers.types import ChannelKind, Failure, Query, Ranking, Variant

_Given: TypeAlias = tuple[Document, float | None]
_CUT = (
    f"of the nearest {MAX_DEPTH} fewer pass the filter than were wanted, and more may lie below: set a filter on that "
    "part itself too"
)


class _Matches(list[Match]):
    """What passes the filter, and where that may not be all that was wanted, why."""

    failure: Failure | None = None


class _Foreign(Leaf):
    """A channel over a part of LangChain.

    With a filter each document found is checked, and while fewer than k pass and the part gave all it was asked for,
    it is asked for twice as many, up to `MAX_DEPTH`; a ranking that ends there says so. Where a deeper ask fails the
    answer to the one before it stands, with the failure beside it. Where `awaits` is false the part is called in a
    worker thread even by an async search: its own would run the sync one in asyncio's threads, which are joined at
    exit. The id of a document is `metadata[id_key]` where there is an `id_key`.
    """

    each_alone = True
    awaits = True

    def __init__(self, name: str, kind: ChannelKind, *, timeout: float | None, id_key: str | None) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.id_key = id_key

    @abstractmethod
    def _search(self, text: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        """At most k documents, best first; `narrowed` is what `_narrowed` made of the filter."""

    @abstractmethod
    async def _asearch(self, text: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        """`_search`, awaited."""

    @abstractmethod
    def _narrowed(self, where: Filter | None) -> Mapping[str, Any]:
        """What the part is given of a filter; whatever passes the filter passes that."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        where = _filter_of(query)
        narrowed = self._narrowed(where)
        return [self._passing(wording.text, _Deepening(where, k), narrowed) for wording in wordings]

    def _passing(self, text: str, asked: _Deepening, narrowed: Mapping[str, Any]) -> _Matches:
        while text.strip() and not asked.done:
            try:
                asked.take(self._search(text, asked.depth, narrowed))
            except Exception as error:  # noqa: BLE001 - raised again where there is no answer yet
                asked.fail(error)
        return self._matches(asked)

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        where = _filter_of(query)
        narrowed = self._narrowed(where)
        return [await self._apassing(wording.text, _Deepening(where, k), narrowed) for wording in wordings]

    async def _apassing(self, text: str, asked: _Deepening, narrowed: Mapping[str, Any]) -> _Matches:
        while text.strip() and not asked.done:
            try:
                asked.take(await self._asearch(text, asked.depth, narrowed))
            except Exception as error:  # noqa: BLE001 - raised again where there is no answer yet
                asked.fail(error)
        return self._matches(asked)

    def _matches(self, asked: _Deepening) -> _Matches:
        chunks = ((chunk_of(identified(document, self.id_key)), score) for document, score in asked.found or ())
        matches = _Matches(
            in_given_order(Match(chunk, None if score is None else float(score)) for chunk, score in chunks)
        )
        if asked.error is not None:
            matches.failure = Failure.of(self.name, asked.error)
        elif asked.cut:
            matches.failure = Failure(self.name, "FilterDepth", _CUT)
        return matches

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if nothing_passes(_filter_of(query)):
            return Ranking()
        return (yield from super().plan(query, k))

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        failures = (matches.failure for matches in found if isinstance(matches, _Matches))
        return [failure for failure in failures if failure is not None]

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        call = super()._call(query, wordings, k)
        return call if self.awaits else replace(call, coroutine=None)


class _Deepening:
    """How deep to search until k documents pass a filter."""

    def __init__(self, where: Filter | None, k: int) -> None:
        self.passes = compile_filter(where) if where else None
        self.k = self.depth = k
        self.found: list[_Given] | None = None
        self.done = self.cut = False
        self.error: Exception | None = None

    def take(self, given: Sequence[_Given]) -> None:
        """Note what a search of `depth` gave, and how deep the next one is to go."""
        passing = [entry for entry in given if self.passes is None or self.passes(entry[0].metadata)]
        self.found = passing[: self.k]
        more = len(passing) < self.k and len(given) >= self.depth
        self.cut = more and self.depth >= MAX_DEPTH
        self.done = not more or self.cut
        self.depth = min(2 * self.depth, MAX_DEPTH)

    def fail(self, error: Exception) -> None:
        """Note that a search failed; raises its error where it was the first."""
        if self.found is None:
            raise error
        self.error, self.done = error, True


class RetrieverChannel(_Foreign):
    """Invokes a LangChain retriever, or any runnable from a question to documents, once for each wording.

    Ranks only: documents have no scores. A retriever whose search takes `k` is asked for as many as are wanted; any
    other gives what it is set to. It runs below the caller's run, with its callbacks and configurable values, and is
    awaited where it has an async search of its own.

    With a filter a search that takes `k` is asked deeper until enough documents pass, and a store's similarity search
    without a filter of its own is given what its store can say of it (see `store_filters`). A retriever that takes no
    `k` raises FilterNotSupportedError. Under `require` its runs are not told to callbacks, for they have what is then
    left out. `id_key` names the metadata that is a document's id, where `Document.id` is not; a document that lacks it
    raises ConfigError.
    """

    quiet = False

    def __init__(
        self,
        retriever: Runnable[str, list[Document]],
        kind: ChannelKind = "semantic",
        *,
        timeout: float | None = None,
        name: str = "retriever",
        id_key: str | None = None,
    ) -> None:
        store = retriever.vectorstore if isinstance(retriever, VectorStoreRetriever) else None
        super().__init__(name, kind, timeout=timeout, id_key=id_key or id_key_of(store))
        self.retriever = retriever
        self.awaits = _awaits(bound_of(retriever))
        self._takes_k = _takes_k(retriever)

    def _search(self, text: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        return _unscored(self.retriever.invoke(text, self._config(), **self._options(k), **narrowed))

    async def _asearch(self, text: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        return _unscored(await self.retriever.ainvoke(text, self._config(), **self._options(k), **narrowed))

    def _narrowed(self, where: Filter | None) -> Mapping[str, Any]:
        part = self.retriever
        if not isinstance(part, VectorStoreRetriever) or type(part) is not VectorStoreRetriever:
            return {}
        plain = part.search_type == "similarity" and "filter" not in part.search_kwargs
        return pushed(part.vectorstore, where) if plain else {}

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        searched = copy.copy(self)
        searched.quiet = query.require is not None
        if _filter_of(query):  # one that is configured has a k of its own, but a filter is to be looked behind
            searched._takes_k = _takes_k(bound_of(self.retriever))
        if _filter_of(query) and not searched._takes_k:
            raise FilterNotSupportedError(
                f"{self.name} is searched by LangChain, which is not given this search's filter and takes no k to look "
                "deeper for what passes it, so it was skipped; set it on that part itself, or give its documents to "
                "BM25Retriever or VectorRetriever.from_documents"
            )
        return super(RetrieverChannel, searched)._call(query, wordings, k)

    def _config(self) -> RunnableConfig:
        config: RunnableConfig = {"tags": [f"channel:{self.name}"]}
        return ensure_config({**config, "callbacks": []} if self.quiet else config)

    def _options(self, k: int) -> dict[str, Any]:
        return {"k": k} if self._takes_k else {}

    def __repr__(self) -> str:
        return f"RetrieverChannel({type(self.retriever).__name__}, {self.kind!r})"


class VectorStoreChannel(_Foreign):
    """Searches a LangChain vector store, in its order.

    Scores are the store's relevance scores, higher is better, where it defines them and they fall with its order; else
    ranks only, for `similarity_search_with_score` gives distances in one store and similarities in the next.

    With a filter the hits are the first k in the store's order that pass it, whatever the store's own filters mean: it
    is given what its language can say of the filter (see `store_filters`), what it finds is checked, and while fewer
    than k pass it is asked for more. `id_key` names the metadata that is a document's id, where `Document.id` is not
    (Qdrant's `_id` need not be named); a document that lacks it raises ConfigError.
    """

    def __init__(
        self,
        store: VectorStore,
        *,
        timeout: float | None = None,
        name: str = "vectorstore",
        id_key: str | None = None,
    ) -> None:
        super().__init__(name, "semantic", timeout=timeout, id_key=id_key or id_key_of(store))
        self.store = store
        self.awaits = _awaits_store(store)

    def _search(self, text: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        if type(self.store) is InMemoryVectorStore:  # which defines no relevance: its scores are cosines
            return self.store.similarity_search_with_score(text, k=k, **narrowed)
        if not _has_relevance(self.store):
            return _unscored(self.store.similarity_search(text, k=k, **narrowed))
        # Not the public method: it warns of every score outside [0, 1], and Chroma's default metric has such.
        return self.store._similarity_search_with_relevance_scores(text, k=k, **narrowed)

    async def _asearch(self, text: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        if type(self.store) is InMemoryVectorStore:
            return await self.store.asimilarity_search_with_score(text, k=k, **narrowed)
        if not _has_relevance(self.store):
            return _unscored(await self.store.asimilarity_search(text, k=k, **narrowed))
        return await self.store._asimilarity_search_with_relevance_scores(text, k=k, **narrowed)

    def _narrowed(self, where: Filter | None) -> Mapping[str, Any]:
        return pushed(self.store, where)

    def __repr__(self) -> str:
        return f"VectorStoreChannel({type(self.store).__name__})"


def as_channel(part: Any, *, timeout: float | None = None, id_key: str | None = None) -> Channel:
    """A channel from a retriever, a runnable or function that gives documents, or a vector store; a channel as it is.

    A retriever of this package joins with its own channels, under its own filters. `timeout`, in seconds, and `id_key`,
    the metadata that is a document's id, are for the others.
    """
    if isinstance(part, Channel):
        return part
    if isinstance(part, PipelineRetriever):
        return part.channel
    if isinstance(part, VectorStore):
        return VectorStoreChannel(part, timeout=timeout, id_key=id_key)
    if callable(part) and not isinstance(part, type | Runnable):
        part = RunnableLambda(part)
    if isinstance(part, Runnable):
        kind: ChannelKind = "keyword" if "BM25" in type(part).__name__ else "semantic"
        return RetrieverChannel(part, kind, timeout=timeout, id_key=id_key)
    raise ConfigError(f"a channel is a Channel, a retriever, a function or a vector store, not a {type(part).__name__}")


def _takes_k(retriever: Any) -> bool:
    search = getattr(type(retriever), "_get_relevant_documents", None)
    return isinstance(retriever, VectorStoreRetriever) or (
        search is not None and "k" in inspect.signature(search).parameters
    )


def _filter_of(query: Query) -> Filter | None:
    return both(query.require, query.where)


def _unscored(documents: Sequence[Document]) -> list[_Given]:
    return [(document, None) for document in documents]


def _has_relevance(store: VectorStore) -> bool:
    """Whether it defines relevance scores, for the metric that it is set to."""
    try:
        store._select_relevance_score_fn()
    except NotImplementedError:
        base = VectorStore._similarity_search_with_relevance_scores
        return type(store)._similarity_search_with_relevance_scores is not base
    except ValueError:
        return False
    return True


def _awaits(retriever: Runnable[str, list[Document]]) -> bool:
    """Whether it has an async search of its own."""
    if isinstance(retriever, VectorStoreRetriever):
        return _awaits_store(retriever.vectorstore)
    if isinstance(retriever, RunnableLambda):
        return hasattr(retriever, "afunc")
    return (
        not isinstance(retriever, BaseRetriever)
        or type(retriever)._aget_relevant_documents is not BaseRetriever._aget_relevant_documents
    )


def _awaits_store(store: VectorStore) -> bool:
    own = type(store).asimilarity_search is not VectorStore.asimilarity_search
    return own and getattr(store, "async_mode", True)  # PGVector has both, and each engine serves one of them
