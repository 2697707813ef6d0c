"""LangChain's retrievers and vector stores as channels."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever

from voicevault_retrievers.core.channel import MAX_DEPTH, Channel, Over
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides, waits
from voicevault_retrievers.core.execution.plan import Call, Plan
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import PARENT_TYPE, ChannelKind, Chunk, Hit, Query, Ranking, Variant, ranked
from voicevault_retrievers.engines.foreign import Foreign, filter_of
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.convert import chunk_of, kept_document
from voicevault_retrievers.langchain.models import bound_of
from voicevault_retrievers.langchain.stores import id_in, id_key_of, identified, pushed

_Given: TypeAlias = tuple[Document, float | None]


class _Documents(Foreign[str, Mapping[str, Any], _Given]):
    """A channel over a part of LangChain, which is asked with a text.

    The id of a document is `metadata[id_key]` where there is an `id_key`. A part without an async search of its own is
    not awaited: LangChain's would run the sync one in asyncio's threads, which are joined at exit.
    """

    def __init__(self, name: str, kind: ChannelKind, *, timeout: float | None, id_key: str | None) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.id_key = id_key

    def _asked(self, query: Query, wording: Variant) -> str | None:
        return wording.text if wording.text.strip() else None

    def _kept(self, found: Sequence[_Given], where: Filter | None, k: int) -> Sequence[Match]:
        passes = compile_filter(where)
        passing = (entry for entry in found if not where or passes(entry[0].metadata))
        return [
            Match(chunk_of(identified(document, self.id_key)), None if score is None else float(score))
            for document, score in islice(passing, k)
        ]


class RetrieverChannel(_Documents):
    """Invokes a LangChain retriever, or any runnable from a question to documents, once for each wording.

    Ranks only: documents have no scores. A retriever whose search takes `k` is asked for as many as are wanted; any
    other gives what it is set to, and so does a vector store's that has a `k` of its own, or searches by "mmr". It runs
    below the caller's run, with its callbacks and configurable values, and is awaited where it has an async search of
    its own.

    With a filter a search that takes `k` is asked deeper until enough documents pass, or as many as it is set to, and a
    store's similarity search without a filter of its own is given what its store can say of it (see `store_filters`). A
    retriever that takes no `k` raises FilterNotSupportedError. Under `require` its runs are not told to callbacks, for
    they have what is then left out. `id_key` names the metadata that is a document's id, where `Document.id` is not; a
    document that lacks it raises ConfigError.
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
        self._takes_k = asks_for_k(retriever)

    def _search(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        return _unscored(self.retriever.invoke(asked, self._config(), **self._options(k), **narrowed))

    async def _asearch(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        return _unscored(await self.retriever.ainvoke(asked, self._config(), **self._options(k), **narrowed))

    def _narrowed(self, where: Filter | None) -> Mapping[str, Any]:
        part = self.retriever
        if not isinstance(part, VectorStoreRetriever) or type(part) is not VectorStoreRetriever:
            return {}
        plain = part.search_type == "similarity" and "filter" not in part.search_kwargs
        return pushed(part.vectorstore, where) if plain else {}

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        searched = copy.copy(self)
        searched.quiet = query.require is not None
        if filter_of(query):  # one that has a k of its own is looked behind as well
            searched._takes_k = takes_k(bound_of(self.retriever))
            k = min(k, _own_k(self.retriever))
        if filter_of(query) and not searched._takes_k:
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


class VectorStoreChannel(_Documents):
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
        self.awaits = _awaits_store(store, *(_SCORED if _scores(store) else ()))

    def _search(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        if type(self.store) is InMemoryVectorStore:
            return self.store.similarity_search_with_score(asked, k=k, **narrowed)
        if not _has_relevance(self.store):
            return _unscored(self.store.similarity_search(asked, k=k, **narrowed))
        # Not the public method: it warns of every score outside [0, 1], and Chroma's default metric has such.
        return self.store._similarity_search_with_relevance_scores(asked, k=k, **narrowed)

    async def _asearch(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        if type(self.store) is InMemoryVectorStore:
            return await self.store.asimilarity_search_with_score(asked, k=k, **narrowed)
        if not _has_relevance(self.store):
            return _unscored(await self.store.asimilarity_search(asked, k=k, **narrowed))
        return await self.store._asimilarity_search_with_relevance_scores(asked, k=k, **narrowed)

    def _narrowed(self, where: Filter | None) -> Mapping[str, Any]:
        return pushed(self.store, where)

    def _kept(self, found: Sequence[_Given], where: Filter | None, k: int) -> Sequence[Match]:
        searched = [entry for entry in found if PARENT_TYPE not in entry[0].metadata.items()]
        return super()._kept(searched, where, k)

    def adding(self, chunks: Sequence[Chunk]) -> Callable[[], object]:
        """How to add chunks to the store, which embeds them; one whose id is there takes the place that it gives it."""
        documents, ids = [kept_document(chunk) for chunk in chunks], [chunk.id for chunk in chunks]
        return self._changing("add_documents", documents, also="aadd_texts", ids=ids)

    def deleting(self, ids: Sequence[str]) -> Callable[[], object]:
        """How to delete documents from the store; ConfigError where it cannot."""
        if not overrides(self.store, VectorStore, "delete") and not overrides(self.store, VectorStore, "adelete"):
            raise ConfigError(f"channel {self.name!r}: {type(self.store).__name__} cannot delete documents by id")
        return self._changing("delete", list(ids))

    def _changing(self, method: str, *given: Any, also: str = "", **options: Any) -> Callable[[], object]:
        """A change of the store; awaited where an async search asks a store with an async change of its own."""
        own = any(overrides(self.store, VectorStore, name) for name in (f"a{method}", also) if name)
        twin = getattr(self.store, f"a{method}")
        coroutine = partial(twin, *given, **options) if own and getattr(self.store, "async_mode", True) else None
        function = partial(getattr(self.store, method), *given, **options)
        return partial(call_or_await, function, coroutine, waits=waits(getattr(type(self.store), f"a{method}")))

    def __repr__(self) -> str:
        return f"VectorStoreChannel({type(self.store).__name__})"


class _Keyed(Over):
    """A channel whose chunks have the ids that `metadata[id_key]` names; of several with one id the best.

    It tells no exact scores: those are had by the ids that the channel below knows.
    """

    def __init__(self, below: Channel, id_key: str) -> None:
        super().__init__(below)
        self.id_key = id_key

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        ranking = yield from self.below.plan(query, k)
        hits: dict[str, Hit] = {}
        for hit in ranking:
            key = id_in(hit.chunk.metadata, self.id_key)
            hits.setdefault(key, replace(hit, chunk=replace(hit.chunk, id=key)))
        return replace(ranking, hits=ranked(hits.values()))

    def __repr__(self) -> str:
        return f"{self.below!r} by {self.id_key!r}"


def as_channel(part: Any, *, timeout: float | None = None, id_key: str | None = None) -> Channel:
    """A channel from a retriever, a runnable or function that gives documents, or a vector store; a channel as it is.

    A retriever of this package joins with its own channels, under its own filters. `id_key` is the metadata that is a
    document's id, of any retriever or store; `timeout`, in seconds, is for those of others. Raises ConfigError for what
    is none of these.
    """
    if isinstance(part, Channel):
        return part
    if isinstance(part, PipelineRetriever):
        return part.channel if id_key is None else _Keyed(part.channel, id_key)
    if isinstance(part, VectorStore):
        return VectorStoreChannel(part, timeout=timeout, id_key=id_key)
    if callable(part) and not isinstance(part, type | Runnable):
        part = RunnableLambda(part)
    if isinstance(part, Runnable):
        kind: ChannelKind = "keyword" if "BM25" in type(part).__name__ else "semantic"
        return RetrieverChannel(part, kind, timeout=timeout, id_key=id_key)
    raise ConfigError(f"a channel is a Channel, a retriever, a function or a vector store, not a {type(part).__name__}")


def asks_for_k(retriever: Any) -> bool:
    """Whether a retriever is asked for as many documents as are wanted: it takes `k`, and nobody has given it one."""
    if isinstance(retriever, VectorStoreRetriever):
        return retriever.search_type != "mmr" and "k" not in retriever.search_kwargs
    return takes_k(retriever)


def _own_k(retriever: Any) -> int:
    """How many documents the owner of a vector store's retriever has set; of any other it is not known."""
    k = retriever.search_kwargs.get("k") if isinstance(retriever, VectorStoreRetriever) else None
    return MAX_DEPTH if k is None else int(k)


def takes_k(retriever: Any) -> bool:
    """Whether the search of a retriever takes `k`."""
    search = getattr(type(retriever), "_get_relevant_documents", None)
    return isinstance(retriever, VectorStoreRetriever) or (
        search is not None and "k" in inspect.signature(search).parameters
    )


def _unscored(documents: Sequence[Document]) -> list[_Given]:
    return [(document, None) for document in documents]


_SCORED = ("asimilarity_search_with_score", "_asimilarity_search_with_relevance_scores")


def _scores(store: VectorStore) -> bool:
    """Whether it is asked for scores; an InMemoryVectorStore defines no relevance, but its scores are cosines."""
    return type(store) is InMemoryVectorStore or _has_relevance(store)


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
    return not isinstance(retriever, BaseRetriever) or overrides(retriever, BaseRetriever, "_aget_relevant_documents")


def _awaits_store(store: VectorStore, *calls: str) -> bool:
    """Whether it has an async search of its own, which is one of these calls."""
    own = any(overrides(store, VectorStore, call) for call in calls or ("asimilarity_search",))
    return own and getattr(store, "async_mode", True)  # PGVector has both, and each engine serves one of them
