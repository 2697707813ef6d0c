"""Hybrid search as a LangChain vector store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from voicevault_retrievers._support.checks import flag, id_list, whole
from voicevault_retrievers._support.foreign_options import check_options, checks_options, refused
from voicevault_retrievers.adapters.chunk_collections import (
    CHANNELS,
    BaseCollection,
    ChunkCollection,
    EngineCollection,
    MemoryCollection,
    latest,
)
from voicevault_retrievers.core.channel import Channel, check_k
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import converting, in_thread
from voicevault_retrievers.core.filters import Filter, compile_filter, scope
from voicevault_retrievers.core.types import ANY_EMBEDDER, Chunk, Query, Result
from voicevault_retrievers.engines.addresses import connect, is_address
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.bm25 import analyzer_of, chunks_with, documents_with
from voicevault_retrievers.langchain.composed import FusionOption
from voicevault_retrievers.langchain.convert import TextOf, checked_text_of, document_of, kept_document
from voicevault_retrievers.langchain.index import open_base
from voicevault_retrievers.langchain.models import LangChainEmbedder, as_embedder
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.pipeline.presets.missing_parts import NotOpenChannel
from voicevault_retrievers.rerank import MMR
from voicevault_retrievers.store import KnowledgeBase

S = TypeVar("S", bound="HybridStore")
T = TypeVar("T")
Scored: TypeAlias = list[tuple[Document, float]]
_Search: TypeAlias = Callable[[Mapping[str, Channel]], Pipeline]

_OPTIONS = ("filter", "require", "weights")
_THRESHOLD = "`as_retriever(search_type='similarity_score_threshold')`"
_ELSEWHERE = dict.fromkeys(("score_threshold", "similarity_cutoff"), _THRESHOLD)


class HybridStore(VectorStore):
    """A vector store that is searched by keywords and by vectors together.

    Documents are in memory, or in `base`: an open knowledge base or an engine's collection; `open` opens one by its
    name. `embedding` are LangChain Embeddings, an Embedder, or None: all-MiniLM-L6-v2 in memory, else the base's own.
    `language` and `analyzer`, for documents in memory, are as in `HybridIndex.open`. Every change is searched at once.
    `text_of` says what is indexed before a document's text: a function of the document, or metadata keys.
    `base.close()` releases the lock of a knowledge base, and `base.reload()` reads what other processes have committed.

    `similarity_search`, MMR and their retrievers are hybrid: keywords and vectors, fused by `fusion` as in
    `HybridRetriever`. A part that fails raises its error, unless `Fusion(on_error="skip")` leaves it out. As LangChain
    expects of a store, a search returns the k best documents where there are as many, whatever their cosines; a blank
    query finds nothing. All searches take `k`, `filter` (a filter of this package) and `require`; a hybrid search also
    takes the `weights` of "bm25" and "dense": a channel of weight 0 is not searched.

    A fused score has no fixed range, so relevance scores and `search_type="similarity_score_threshold"` are of a search
    by vectors alone: the cosine, or 0 where it is below.

    `require` is the access rights of everything that reads, which a call may narrow and never widens; changes reach all
    documents. `metadata["voicevault"]` says how a document was found, and `metadata["relevance_score"]` is its score;
    with `provenance=False` documents come back as they were added, and tell a compressor around the store no rights.
    """

    @checks_options
    def __init__(
        self,
        embedding: Any = None,
        base: KnowledgeBase | Engine | None = None,
        *,
        fusion: FusionOption = None,
        require: Filter | None = None,
        provenance: bool = True,
        text_of: TextOf = None,
        language: str | None = "auto",
        analyzer: AnyAnalyzer | None = None,
    ) -> None:
        compile_filter(require)
        self.base = base
        self.require = deepcopy(require)
        self.provenance = flag("provenance", provenance)
        self.text_of = checked_text_of(text_of)
        self._embedding = embedding
        preset = Preset.plain(CHANNELS).with_options(fusion=Fusion.of(fusion).over(Fusion(on_error="raise")))
        self._fused: _Search = preset.build
        self._fused({name: NotOpenChannel(name) for name in CHANNELS})  # raises for weights that do not fit
        self._collection = _collection(base, embedding, language, analyzer)

    @classmethod
    def open(
        cls: type[S],
        base: str | Path,
        embedding: Any = None,
        *,
        fusion: FusionOption = None,
        require: Filter | None = None,
        provenance: bool = True,
        text_of: TextOf = None,
        language: str | None = "auto",
        analyzer: Any = None,
        **options: Any,
    ) -> S:
        """Open a knowledge base by a name under `root`, or by its Path, or an engine's collection by its address.

        What is missing is created: a knowledge base now, a collection when documents are added. `options` are those of
        `HybridIndex.open` (`root`, `vectors`, `wait`, `limits`) or `engines.addresses.connect`. Raises as these do.
        """
        opened: KnowledgeBase | Engine
        if is_address(base) and not str(base).startswith("file://"):
            made = None if (language, analyzer) == ("auto", None) else analyzer_of(language, analyzer)
            embedder = None if embedding is None else as_embedder(embedding)
            opened = connect(str(base), embedder=embedder, analyzer=made, **options)  # type: ignore[arg-type]
        else:
            check_options(f"{cls.__name__}.open", options, open_base)
            opened = open_base(base, embedding=embedding, language=language, analyzer=analyzer, **options)
        store = cls(base=opened, fusion=fusion, require=require, provenance=provenance, text_of=text_of)
        store._embedding = embedding
        return store

    @classmethod
    async def aopen(cls: type[S], base: str | Path, embedding: Any = None, **options: Any) -> S:
        """`open` in a worker thread; async embeddings are awaited."""
        return await aexecute(in_thread("open", partial(cls.open, base, embedding, **options)))

    @classmethod
    def from_texts(
        cls: type[S],
        texts: Iterable[str],
        embedding: Any = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        base: str | Path | KnowledgeBase | Engine | None = None,
        **options: Any,
    ) -> S:
        """A store to which texts are added, in memory or in `base`, which may also be what `open` opens."""
        store = cls._over(base, embedding, options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls: type[S],
        texts: Iterable[str],
        embedding: Any = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        base: str | Path | KnowledgeBase | Engine | None = None,
        **options: Any,
    ) -> S:
        """`from_texts` off the event loop."""
        store = await aexecute(in_thread("open", partial(cls._over, base, embedding, options)))
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def _over(cls: type[S], base: Any, embedding: Any, options: Mapping[str, Any]) -> S:
        return cls.open(base, embedding, **options) if isinstance(base, str | Path) else cls(embedding, base, **options)

    @property
    def embeddings(self) -> Embeddings | None:
        """The given LangChain Embeddings; None for an Embedder, or where the base has its own."""
        given = self._embedding.embeddings if isinstance(self._embedding, LangChainEmbedder) else self._embedding
        return given if isinstance(given, Embeddings) else None

    def add_documents(self, documents: list[Document], *, ids: list[str] | None = None, **kwargs: Any) -> list[str]:
        """Add documents, in one commit of a knowledge base. Returns their ids.

        A document replaces the one with the same id, also one before it in the list. `ids` take precedence over the
        documents' own; a document without an id gets a digest of its content. Raises ConfigError for a document that
        the base cannot keep, and nothing is changed; LockedError while another process writes.
        """
        chunks = _chunks(documents, ids, kwargs, self.text_of)
        self._collection.add(latest(chunks))
        return [chunk.id for chunk in chunks]

    async def aadd_documents(
        self, documents: list[Document], *, ids: list[str] | None = None, **kwargs: Any
    ) -> list[str]:
        """`add_documents` off the event loop; async embeddings are awaited."""
        chunks = _chunks(documents, ids, kwargs, self.text_of)
        await self._collection.aadd(latest(chunks))
        return [chunk.id for chunk in chunks]

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """`add_documents` of texts, with a metadata mapping and an id for each, where these are given."""
        return self.add_documents(documents_with(texts, metadatas, ids), **kwargs)

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """`add_texts` off the event loop."""
        return await self.aadd_documents(documents_with(texts, metadatas, ids), **kwargs)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by their ids; unknown ids are ignored. Returns True. Raises ConfigError without ids."""
        self._collection.delete(_ids(ids, kwargs))
        return True

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """`delete` off the event loop."""
        await self._collection.adelete(_ids(ids, kwargs))
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The given documents that exist and that `require` permits, as they were added, in the order of the ids."""
        return self._permitted(self._collection.get(id_list(ids)))

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """`get_by_ids` off the event loop."""
        return self._permitted(await self._collection.aget(id_list(ids)))

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        """The k best documents of a hybrid search, best first; `options` as in the class."""
        return self._found(self._documents, self._fused, self._query(query, options), k)

    async def asimilarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        """`similarity_search` on the running event loop."""
        return await self._afound(self._documents, self._fused, self._query(query, options), k)

    def similarity_search_with_score(self, query: str, k: int = 4, **options: Any) -> Scored:
        """`similarity_search`, each document with its fused score.

        Higher is better. The range depends on the fusion, so scores of two queries cannot be compared; for a score in
        [0, 1] see `similarity_search_with_relevance_scores`.
        """
        return self._found(self._scored, self._fused, self._query(query, options), k)

    async def asimilarity_search_with_score(self, query: str, k: int = 4, **options: Any) -> Scored:
        """`similarity_search_with_score` on the running event loop."""
        return await self._afound(self._scored, self._fused, self._query(query, options), k)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **options: Any) -> list[Document]:
        """The k documents whose vectors are nearest, by vectors alone. ConfigError for a vector that does not fit."""
        return self._found(self._documents, _dense, self._query("", options, embedding), k)

    async def asimilarity_search_by_vector(self, embedding: list[float], k: int = 4, **options: Any) -> list[Document]:
        """`similarity_search_by_vector` on the running event loop."""
        return await self._afound(self._documents, _dense, self._query("", options, embedding), k)

    def _similarity_search_with_relevance_scores(self, query: str, k: int = 4, **options: Any) -> Scored:
        return self._found(self._relevant, _dense, self._query(query, options), k)

    async def _asimilarity_search_with_relevance_scores(self, query: str, k: int = 4, **options: Any) -> Scored:
        return await self._afound(self._relevant, _dense, self._query(query, options), k)

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """The k documents that are chosen for relevance and diversity among the `fetch_k` best of a hybrid search.

        `lambda_mult` is the share of relevance, from 0 to 1; documents are compared by their vectors. See `rerank.MMR`.
        """
        search = _diverse(self._fused, k, fetch_k, lambda_mult)
        return self._found(self._documents, search, self._query(query, options), k)

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """`max_marginal_relevance_search` on the running event loop."""
        search = _diverse(self._fused, k, fetch_k, lambda_mult)
        return await self._afound(self._documents, search, self._query(query, options), k)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """`max_marginal_relevance_search` among the documents whose vectors are nearest, by vectors alone."""
        search = _diverse(_dense, k, fetch_k, lambda_mult)
        return self._found(self._documents, search, self._query("", options, embedding), k)

    async def amax_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """`max_marginal_relevance_search_by_vector` on the running event loop."""
        search = _diverse(_dense, k, fetch_k, lambda_mult)
        return await self._afound(self._documents, search, self._query("", options, embedding), k)

    def _found(self, convert: Callable[[Result], list[T]], search: _Search, query: Query, k: int) -> list[T]:
        return convert(search(self._collection.channels()).search(query, k))

    async def _afound(self, convert: Callable[[Result], list[T]], search: _Search, query: Query, k: int) -> list[T]:
        # The first search after a commit of a knowledge base reads files.
        reading = in_thread("open", self._collection.channels, inline=self._collection.ready)
        result = await search(await aexecute(reading)).asearch(query, k)
        return await aexecute(converting(partial(convert, result), len(result.hits)))

    def _query(self, text: str, options: Mapping[str, Any], vector: Sequence[float] | None = None) -> Query:
        for name in options:
            if name not in _OPTIONS:
                raise refused("a search of a HybridStore", name, ("k", *_OPTIONS), _ELSEWHERE)
        return Query(
            text,
            vectors={} if vector is None else {ANY_EMBEDDER: np.asarray(vector, np.float32)},
            where=options.get("filter"),
            require=scope(self.require, options.get("require")),
            weights=options.get("weights"),
        )

    def _documents(self, result: Result) -> list[Document]:
        return [document for document, _ in self._scored(result)]

    def _scored(self, result: Result) -> Scored:
        return [
            (document_of(hit, result.skipped) if self.provenance else kept_document(hit.chunk), float(hit.score or 0.0))
            for hit in result.hits
        ]

    def _relevant(self, result: Result) -> Scored:
        return [(document, min(max(score, 0.0), 1.0)) for document, score in self._scored(result)]

    def _permitted(self, chunks: Mapping[str, Chunk]) -> list[Document]:
        passes = compile_filter(scope(self.require))
        return [kept_document(chunk) for chunk in chunks.values() if passes(chunk.metadata)]

    def __getstate__(self) -> dict[str, Any]:
        """The state of a pickled copy, which opens a knowledge base again; ConfigError over an engine."""
        if isinstance(self.base, Engine):
            raise ConfigError(
                "a HybridStore over an engine has connections, which are neither pickled nor copied: share the store, "
                "or open it again where it is needed, HybridStore.open(ADDRESS)"
            )
        return vars(self)

    def __repr__(self) -> str:
        return f"HybridStore({'in memory' if self.base is None else repr(self.base)})"


def _collection(base: Any, embedding: Any, language: str | None, analyzer: AnyAnalyzer | None) -> ChunkCollection:
    if base is None:
        return MemoryCollection(as_embedder(embedding), analyzer_of(language, analyzer))
    if (language, analyzer) != ("auto", None):
        raise ConfigError("language and analyzer are for documents in memory: an open base has its own")
    embedder = None if embedding is None else as_embedder(embedding)
    if isinstance(base, KnowledgeBase):
        return BaseCollection(base, embedder)
    if isinstance(base, Engine):
        return EngineCollection(base, embedder)
    raise ConfigError(f"base is an open KnowledgeBase or an Engine, not {base!r}; a base is opened by name: open(name)")


def _dense(channels: Mapping[str, Channel]) -> Pipeline:
    return Pipeline(channels["dense"], on_error="raise")


def _diverse(search: _Search, k: int, fetch_k: int, lambda_mult: float) -> _Search:
    depth = max(check_k(k), whole("fetch_k", fetch_k))

    def diverse(channels: Mapping[str, Channel]) -> Pipeline:
        return search(channels) >> MMR(lambda_mult, by=channels["dense"], depth=depth)  # type: ignore[arg-type]

    return diverse


def _chunks(
    documents: Iterable[Document], ids: Sequence[str] | None, options: Mapping[str, Any], text_of: TextOf
) -> list[Chunk]:
    _refuse({name: value for name, value in options.items() if name != "batch_size"})  # LangChain's index passes it
    return chunks_with(documents, ids, text_of)


def _ids(ids: Iterable[str] | None, options: Mapping[str, Any]) -> list[str]:
    _refuse(options)
    if ids is None:
        raise ConfigError("say which documents to delete by their ids")
    return id_list(ids)


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"HybridStore takes no {', '.join(map(repr, options))} here")
