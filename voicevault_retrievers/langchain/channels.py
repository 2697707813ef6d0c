"""LangChain's retrievers and vector stores as channels."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from voicevault_retrievers.channel import Channel, Leaf, Match, in_given_order
from voicevault_retrievers.drive import Call
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.convert import chunk_of
from voicevault_retrievers.types import ChannelKind, Query, Variant


class _Foreign(Leaf):
    """A channel over a part of LangChain, which is given no filter.

    Where `awaits` is false it is called in a worker thread even by an async search: its own would run the sync one in
    asyncio's threads, which are joined at exit.
    """

    each_alone = True
    awaits = True

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        if query.where or query.require:
            raise FilterNotSupportedError(
                f"{self.name} is searched by LangChain, which is not given this search's filter, so it was skipped; "
                "set it on that part itself, or give its documents to BM25Retriever or VectorRetriever.from_documents"
            )
        call = super()._call(query, wordings, k)
        return call if self.awaits else replace(call, coroutine=None)


class RetrieverChannel(_Foreign):
    """Invokes a LangChain retriever, or any runnable from a question to documents, once for each wording.

    Ranks only: documents have no scores. A retriever whose search takes `k` is asked for as many as are wanted; any
    other gives what it is set to. It runs below the caller's run, with its callbacks and configurable values, and is
    awaited where it has an async search of its own. With a filter it raises FilterNotSupportedError.
    """

    def __init__(
        self,
        retriever: Runnable[str, list[Document]],
        kind: ChannelKind = "semantic",
        *,
        timeout: float | None = None,
        name: str = "retriever",
    ) -> None:
        super().__init__(name, kind, timeout=timeout)
        self.retriever = retriever
        self.awaits = _awaits(retriever)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        texts, options = _texts(wordings), self._options(k)
        found = [self.retriever.invoke(text, self._config(), **options) if text else [] for text in texts]
        return [_ranked(documents) for documents in found]

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        texts, options = _texts(wordings), self._options(k)
        found = [await self.retriever.ainvoke(text, self._config(), **options) if text else [] for text in texts]
        return [_ranked(documents) for documents in found]

    def _config(self) -> RunnableConfig:
        return ensure_config({"tags": [f"channel:{self.name}"]})

    def _options(self, k: int) -> dict[str, Any]:
        search = getattr(type(self.retriever), "_get_relevant_documents", None)
        takes_k = isinstance(self.retriever, VectorStoreRetriever) or (
            search is not None and "k" in inspect.signature(search).parameters
        )
        return {"k": k} if takes_k else {}

    def __repr__(self) -> str:
        return f"RetrieverChannel({type(self.retriever).__name__}, {self.kind!r})"


class VectorStoreChannel(_Foreign):
    """Searches a LangChain vector store, in its order.

    Scores are the store's relevance scores, higher is better, where it defines them and they fall with its order; else
    ranks only, for `similarity_search_with_score` gives distances in one store and similarities in the next. With a
    filter it raises FilterNotSupportedError: stores differ in what theirs mean.
    """

    def __init__(self, store: VectorStore, *, timeout: float | None = None, name: str = "vectorstore") -> None:
        super().__init__(name, "semantic", timeout=timeout)
        self.store = store
        self.awaits = _awaits_store(store)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [self._search(text, k) if text else [] for text in _texts(wordings)]

    def _search(self, text: str, k: int) -> list[Match]:
        if not _has_relevance(self.store):
            return _ranked(self.store.similarity_search(text, k=k))
        # Not the public method: it warns of every score outside [0, 1], and Chroma's default metric has such.
        return _scored(self.store._similarity_search_with_relevance_scores(text, k=k))

    async def afind(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [await self._asearch(text, k) if text else [] for text in _texts(wordings)]

    async def _asearch(self, text: str, k: int) -> list[Match]:
        if not _has_relevance(self.store):
            return _ranked(await self.store.asimilarity_search(text, k=k))
        return _scored(await self.store._asimilarity_search_with_relevance_scores(text, k=k))

    def __repr__(self) -> str:
        return f"VectorStoreChannel({type(self.store).__name__})"


def as_channel(part: Any, *, timeout: float | None = None) -> Channel:
    """A channel from a retriever, a runnable that gives documents, or a vector store; a channel as it is.

    A retriever of this package joins with its own channels, under its own filters. `timeout`, in seconds, is for the
    others.
    """
    if isinstance(part, Channel):
        return part
    if isinstance(part, PipelineRetriever):
        return part.channel
    if isinstance(part, VectorStore):
        return VectorStoreChannel(part, timeout=timeout)
    if isinstance(part, Runnable):
        kind: ChannelKind = "keyword" if "BM25" in type(part).__name__ else "semantic"
        return RetrieverChannel(part, kind, timeout=timeout)
    raise ConfigError(f"a channel is a Channel, a retriever or a vector store, not a {type(part).__name__}")


def _texts(wordings: Sequence[Variant]) -> list[str]:
    return [wording.text if wording.text.strip() else "" for wording in wordings]


def _ranked(documents: Sequence[Document]) -> list[Match]:
    return [Match(chunk_of(document), None) for document in documents]


def _scored(found: Sequence[tuple[Document, float]]) -> list[Match]:
    return in_given_order(Match(chunk_of(document), float(score)) for document, score in found)


def _has_relevance(store: VectorStore) -> bool:
    return (
        type(store)._select_relevance_score_fn is not VectorStore._select_relevance_score_fn
        or type(store)._similarity_search_with_relevance_scores
        is not VectorStore._similarity_search_with_relevance_scores
    )


def _awaits(retriever: Runnable[str, list[Document]]) -> bool:
    """Whether it has an async search of its own."""
    if isinstance(retriever, VectorStoreRetriever):
        return _awaits_store(retriever.vectorstore)
    return (
        not isinstance(retriever, BaseRetriever)
        or type(retriever)._aget_relevant_documents is not BaseRetriever._aget_relevant_documents
    )


def _awaits_store(store: VectorStore) -> bool:
    return type(store).asimilarity_search is not VectorStore.asimilarity_search
