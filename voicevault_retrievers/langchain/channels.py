"""LangChain's retrievers and vector stores as channels of a pipeline."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, TypeAlias

import numpy as np
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.core.channel import Channel, Over
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides, waits
from voicevault_retrievers.core.execution.plan import Call, Plan, in_thread
from voicevault_retrievers.core.explanation import degraded_in, rights_in
from voicevault_retrievers.core.filters import Filter, compile_filter, scope
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import (
    PARENT_TYPE,
    ChannelKind,
    Chunk,
    Hit,
    Query,
    Ranking,
    Variant,
    Vector,
    ranked,
)
from voicevault_retrievers.engines.foreign import Foreign, filter_of
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.convert import chunk_of, kept_document, told_of
from voicevault_retrievers.langchain.events import below
from voicevault_retrievers.langchain.models import as_embedder, bound_of
from voicevault_retrievers.langchain.retriever_options import (
    asks_for_k,
    bound_options,
    own_k,
    rights_and_filter,
    takes_k,
)
from voicevault_retrievers.langchain.stores import (
    has_relevance,
    id_in,
    id_key_of,
    identified,
    is_hybrid,
    kinds_of,
    pushed,
)

_Given: TypeAlias = tuple[Document, float | None]

KEPT, KEPT_QUESTIONS = 10_000, 64
"""The number of texts, and of questions, whose vectors a channel keeps, for a store that gives no scores."""


class _Documents(Foreign[str, Mapping[str, Any], _Given]):
    """A channel over a LangChain component that is searched with a text.

    The id of a document is `metadata[id_key]` where there is an `id_key`. A component without its own async search is
    not awaited: LangChain's default would run the sync search in asyncio's threads, which are joined at exit.
    """

    @property
    def require(self) -> Filter | None:
        """The access rights of what is searched, where it is known to have some."""
        return None

    def __init__(self, name: str, kind: ChannelKind, *, timeout: float | None, id_key: str | None) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.id_key = id_key

    def _asked(self, query: Query, wording: Variant) -> str | None:
        return wording.text if wording.text.strip() else None

    def _kept(self, found: Sequence[_Given], where: Filter | None, k: int) -> Sequence[Match]:
        passes = compile_filter(where)
        passing = (entry for entry in found if not where or passes(entry[0].metadata))
        return [self._match(*entry) for entry in islice(passing, k)]

    def _match(self, document: Document, score: float | None) -> Match:
        chunk, told = chunk_of(identified(document, self.id_key)), told_of(document)
        require = scope(self.require, rights_in(told))
        score = None if score is None else float(score)
        return Match(chunk, score, require=require, degraded=degraded_in(told))


class RetrieverChannel(_Documents):
    """A channel that invokes a LangChain retriever, or any runnable from a question to documents, once per wording.

    Hits have ranks only: documents carry no scores. A retriever whose search takes `k` is asked for as many documents
    as are wanted. Any other retriever returns as many as it is set to, and so does a vector store's retriever that has
    its own `k` or searches by "mmr". The retriever runs below the caller's run, with its callbacks and configurable
    values, and is awaited where it has its own async search.

    With a filter, a retriever that takes `k` is asked for more until enough documents pass, or for as many as it is set
    to. A store's similarity search without its own filter gets the part of the filter that the store can express (see
    `stores`). A retriever that takes no `k` raises FilterNotSupportedError. Under `require` callbacks do not see the
    retriever's runs, because the runs contain documents that are filtered out afterwards. `id_key` names the metadata
    that is a document's id, where `Document.id` is not; a document without it raises ConfigError.
    """

    quiet = False

    @checks_options
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

    @property
    def require(self) -> Filter | None:
        part = self.retriever
        return _rights(part.vectorstore, part.search_kwargs) if isinstance(part, VectorStoreRetriever) else None

    def _search(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        with below(self._config()) as config:
            return _unscored(self.retriever.invoke(asked, config, **self._options(k), **narrowed))

    async def _asearch(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        with below(self._config()) as config:
            return _unscored(await self.retriever.ainvoke(asked, config, **self._options(k), **narrowed))

    def _narrowed(self, query: Query) -> Mapping[str, Any]:
        part = self.retriever
        if (bound := bound_options(part)) is not None:
            return rights_and_filter("where", bound, query)
        if not isinstance(part, VectorStoreRetriever) or type(part) is not VectorStoreRetriever:
            return {}
        if _takes_rights(part.vectorstore):
            return rights_and_filter("filter", part.search_kwargs, query)
        plain = part.search_type == "similarity" and "filter" not in part.search_kwargs
        return pushed(part.vectorstore, filter_of(query)) if plain else {}

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        searched = copy.copy(self)
        searched.quiet = query.require is not None
        if filter_of(query):  # a retriever with its own k is asked deeper too
            searched._takes_k = takes_k(bound_of(self.retriever))
            k = min(k, own_k(self.retriever))
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
    """A channel that searches a LangChain vector store and keeps its order.

    Scores are the store's relevance scores, higher is better, where the store defines them and they fall with its
    order. For any other store, whose scores may be distances, its embeddings give cosines: each text is embedded once,
    in one batch a search, and kept, and a hit has less than the score of the hit above it. Without embeddings, hits
    have ranks only.

    `search_kwargs` are passed to every search of the store, as they are then; their `k` is the most documents that are
    found. Where they have a `filter`, no other is passed to the store. A VectorStoreRetriever in their place has them.

    With a filter the hits are the first k in the store's order that pass it, whatever the store's own filters mean. The
    store gets the part of the filter that its language can express (see `stores`), its documents are checked, and it is
    asked for more while fewer than k pass. `id_key` names the metadata that is a document's id, where `Document.id` is
    not (Qdrant's `_id` need not be named); a document without it raises ConfigError.
    """

    @checks_options
    def __init__(
        self,
        store: VectorStore,
        *,
        timeout: float | None = None,
        name: str = "vectorstore",
        id_key: str | None = None,
        search_kwargs: Mapping[str, Any] | VectorStoreRetriever | None = None,
    ) -> None:
        super().__init__(name, "semantic", timeout=timeout, id_key=id_key or id_key_of(store))
        self.store = store
        self._given = {} if search_kwargs is None else search_kwargs
        self._rows: LRUCache[str, Vector] = LRUCache(KEPT)
        self._questions: LRUCache[str, Vector] = LRUCache(KEPT_QUESTIONS, for_queries=True)
        self.awaits = _awaits_store(store, *(_SCORED if _scores(store) else ()))

    @property
    def search_kwargs(self) -> Mapping[str, Any]:
        """What is passed to every search of the store."""
        given = self._given
        return given.search_kwargs if isinstance(given, VectorStoreRetriever) else given

    @property
    def require(self) -> Filter | None:
        return _rights(self.store, self.search_kwargs)

    @property
    def reach(self) -> int | None:  # type: ignore[override]  # it is read at each search
        return self.search_kwargs.get("k")

    def _search(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        if _has_similarities(self.store):
            return self.store.similarity_search_with_score(asked, k=k, **narrowed)
        if not has_relevance(self.store):
            return self._compared(asked, _unscored(self.store.similarity_search(asked, k=k, **narrowed)))
        # Not the public method: it warns of scores outside [0, 1], which Chroma's default metric gives.
        return self._compared(asked, self.store._similarity_search_with_relevance_scores(asked, k=k, **narrowed))

    async def _asearch(self, asked: str, k: int, narrowed: Mapping[str, Any]) -> Sequence[_Given]:
        if _has_similarities(self.store):
            return await self.store.asimilarity_search_with_score(asked, k=k, **narrowed)
        found: Sequence[_Given]
        if has_relevance(self.store):
            found = await self.store._asimilarity_search_with_relevance_scores(asked, k=k, **narrowed)
        else:
            found = _unscored(await self.store.asimilarity_search(asked, k=k, **narrowed))
        comparing = partial(self._compared, asked, found)
        return await aexecute(in_thread(self.name, comparing, inline=_falls(found)))

    def _compared(self, asked: str, scored: Sequence[_Given]) -> Sequence[_Given]:
        """The documents, with cosines to the question where their scores do not fall, each below the one before it."""
        if self.store.embeddings is None or _falls(scored):
            return scored
        found = [document for document, _ in scored]
        embedder = as_embedder(self.store.embeddings)
        texts = [document.page_content for document in found]
        rows: dict[str, Any] = {text: self._rows.get(text) for text in texts}
        if new := [text for text, row in rows.items() if row is None]:
            rows |= zip(new, embedder.embed_documents(new), strict=True)
        for text in new:
            self._rows.put(text, rows[text])
        question = self._questions.get(asked)
        if question is None:
            question = embedder.embed_queries([asked])[0]
            self._questions.put(asked, question)
        cosines = np.stack([rows[text] for text in texts]).astype(np.float64) @ question
        below = accumulate(cosines.tolist(), lambda last, cosine: min(cosine, math.nextafter(last, -math.inf)))
        return list(zip(found, below, strict=True))

    def _narrowed(self, query: Query) -> Mapping[str, Any]:
        own = {key: value for key, value in self.search_kwargs.items() if key != "k"}
        if _takes_rights(self.store):
            return {**own, **rights_and_filter("filter", own, query)}
        return {**({} if "filter" in own else pushed(self.store, filter_of(query))), **own}

    def _kept(self, found: Sequence[_Given], where: Filter | None, k: int) -> Sequence[Match]:
        searched = [entry for entry in found if PARENT_TYPE not in entry[0].metadata.items()]
        return super()._kept(searched, where, k)

    def adding(self, chunks: Sequence[Chunk]) -> Callable[[], object]:
        """A function that adds chunks to the store, which embeds them. How an id in use is treated depends on it."""
        documents, ids = [kept_document(chunk) for chunk in chunks], [chunk.id for chunk in chunks]
        return self._changing("add_documents", documents, also="aadd_texts", ids=ids)

    def deleting(self, ids: Sequence[str]) -> Callable[[], object]:
        """A function that deletes documents from the store; ConfigError where the store cannot delete by id."""
        if not overrides(self.store, VectorStore, "delete") and not overrides(self.store, VectorStore, "adelete"):
            raise ConfigError(f"channel {self.name!r}: {type(self.store).__name__} cannot delete documents by id")
        return self._changing("delete", list(ids))

    def _changing(self, method: str, *given: Any, also: str = "", **options: Any) -> Callable[[], object]:
        """A change of the store, awaited where an async search calls a store with its own async method."""
        own = any(overrides(self.store, VectorStore, name) for name in (f"a{method}", also) if name)
        twin = getattr(self.store, f"a{method}")
        coroutine = partial(twin, *given, **options) if own and getattr(self.store, "async_mode", True) else None
        function = partial(getattr(self.store, method), *given, **options)
        return partial(call_or_await, function, coroutine, waits=waits(getattr(type(self.store), f"a{method}")))

    def __repr__(self) -> str:
        return f"VectorStoreChannel({type(self.store).__name__})"


class _Keyed(Over):
    """A channel that takes chunk ids from `metadata[id_key]`; of several hits with one id it keeps the best.

    It returns no exact scores: those are looked up by the ids of the channel below.
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


@checks_options
def as_channel(part: Any, *, timeout: float | None = None, id_key: str | None = None) -> Channel:
    """A channel from a retriever, a vector store, or a runnable or function that returns documents; a Channel as is.

    A retriever of this package joins with its own channels, under its own filters. A vector store's plain retriever is
    searched as its store is, for the scores that a fusion needs. `id_key` names the metadata that is
    a document's id, for any retriever or store. `timeout`, in seconds, applies to components of other packages. Raises
    ConfigError for anything else.
    """
    if isinstance(part, Channel):
        return part
    if isinstance(part, PipelineRetriever):
        return part.channel if id_key is None else _Keyed(part.channel, id_key)
    if isinstance(part, VectorStore):
        return VectorStoreChannel(part, timeout=timeout, id_key=id_key)
    if type(part) is VectorStoreRetriever and part.search_type == "similarity":
        return VectorStoreChannel(part.vectorstore, timeout=timeout, id_key=id_key, search_kwargs=part)
    if callable(part) and not isinstance(part, type | Runnable):
        part = RunnableLambda(part)
    if isinstance(part, Runnable):
        kind: ChannelKind = "keyword" if "BM25" in type(part).__name__ else "semantic"
        return RetrieverChannel(part, kind, timeout=timeout, id_key=id_key)
    raise ConfigError(f"a channel is a Channel, a retriever, a function or a vector store, not a {type(part).__name__}")


def _falls(found: Sequence[_Given]) -> bool:
    """Whether every document has a score, and none is above that of the one before it."""
    scores = [score for _, score in found if score is not None]
    return len(scores) == len(found) and all(one >= other for one, other in pairwise(scores))


def _unscored(documents: Sequence[Document]) -> list[_Given]:
    return [(document, None) for document in documents]


_SCORED = ("asimilarity_search_with_score", "_asimilarity_search_with_relevance_scores")


def _scores(store: VectorStore) -> bool:
    """Whether the store is asked for scores."""
    return _has_similarities(store) or has_relevance(store)


def _has_similarities(store: VectorStore) -> bool:
    """Whether a store's scores are known to be higher for the better: InMemoryVectorStore defines no relevance."""
    return type(store) is InMemoryVectorStore or is_hybrid(store)


def _rights(store: VectorStore, search_kwargs: Mapping[str, Any]) -> Filter | None:
    """The access rights of a store of this package, and of a search of it."""
    return scope(getattr(store, "require", None), search_kwargs.get("require")) if is_hybrid(store) else None


def _takes_rights(store: VectorStore) -> bool:
    """Whether a store's searches take `require`; those of a subclass need not."""
    return kinds_of(store)[0] == "voicevault_retrievers.HybridStore"


def _awaits(retriever: Runnable[str, list[Document]]) -> bool:
    """Whether a retriever has its own async search."""
    if isinstance(retriever, VectorStoreRetriever):
        return _awaits_store(retriever.vectorstore)
    if isinstance(retriever, RunnableLambda):
        return hasattr(retriever, "afunc")
    return not isinstance(retriever, BaseRetriever) or overrides(retriever, BaseRetriever, "_aget_relevant_documents")


def _awaits_store(store: VectorStore, *calls: str) -> bool:
    """Whether a store has its own async search, in one of the methods `calls`."""
    own = any(overrides(store, VectorStore, call) for call in calls or ("asimilarity_search",))
    return own and getattr(store, "async_mode", True)  # PGVector has both, but its engine serves only one
