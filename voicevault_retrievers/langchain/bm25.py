"""Keyword search as a LangChain retriever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, UpsertResponse
from langchain_core.vectorstores import VectorStore
from pydantic import Field

from voicevault_retrievers.adapters.keyword_copy import KeywordCopy, refreshed
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.filters import Filter, compile_filter, says_nothing
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.langchain.base import PipelineRetriever, ThreadedIndex
from voicevault_retrievers.langchain.convert import chunk_of, chunks_of, kept_document
from voicevault_retrievers.langchain.stores import copied
from voicevault_retrievers.langchain.validation import STRICT
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, Tokenizer
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import saved_index
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.codec import several
from voicevault_retrievers.text import Analyzer

K = TypeVar("K", bound="KeywordRetriever")


class KeywordRetriever(PipelineRetriever):
    """Keyword search: documents that share a term with the query, and no others.

    Scores are BM25's, unbounded, higher is better. Where documents are taken, `language` is that of their stemmer and
    stopwords ("auto" finds each document's, an ISO 639-1 code is that of all, None is for neither); `analyzer`, or
    `preprocess_func`, splits texts into terms in its place; and `options` are this class's fields. A document given
    twice is one.

    Adding and deleting change what `bm25` holds in memory, for every retriever over it; a search sees all of a change
    or nothing. Only `persist` writes. They raise ConfigError where `bm25` is a channel of another class.
    """

    bm25: Channel = Field(default_factory=lambda: BM25.from_chunks([]))
    on_error: OnError = "skip"

    @classmethod
    def from_documents(
        cls: type[K],
        documents: Iterable[Document],
        *,
        language: str | None = "auto",
        formula: Formula | str = "lucene",
        analyzer: AnyAnalyzer | None = None,
        preprocess_func: Tokenizer | None = None,
        **options: Any,
    ) -> K:
        """Search over documents held in memory."""
        chosen = analyzer_of(language, analyzer, preprocess_func)
        return cls(bm25=BM25.from_chunks(chunks_of(documents), chosen, formula=formula), **options)

    @classmethod
    async def afrom_documents(cls: type[K], documents: Iterable[Document], **options: Any) -> K:
        """`from_documents` in a worker thread."""
        return await aexecute(in_thread("from_documents", partial(cls.from_documents, documents, **options)))

    @classmethod
    def from_texts(
        cls: type[K],
        texts: Iterable[str],
        metadatas: Iterable[dict[str, Any]] | None = None,
        ids: Iterable[str] | None = None,
        **options: Any,
    ) -> K:
        """Search over texts, with a metadata dict and an id for each; `options` as of `from_documents`."""
        given = list(texts)
        columns: list[list[Any]] = [
            given,
            [{}] * len(given) if metadatas is None else list(metadatas),
            [None] * len(given) if ids is None else list(ids),
        ]
        if len({len(column) for column in columns}) > 1:
            raise ConfigError(f"texts, metadatas and ids differ in number: {[len(column) for column in columns]}")
        documents = [Document(text, metadata=metadata, id=id_) for text, metadata, id_ in zip(*columns, strict=True)]
        return cls.from_documents(documents, **options)

    @classmethod
    def from_vector_store(
        cls: type[K],
        store: VectorStore,
        *,
        ids: Iterable[str] | None = None,
        language: str | None = "auto",
        formula: Formula | str = "lucene",
        analyzer: AnyAnalyzer | None = None,
        preprocess_func: Tokenizer | None = None,
        **options: Any,
    ) -> K:
        """Search over the documents that a vector store holds, under the ids that its own hits have.

        `ids` are those of the documents, for a store that cannot list them; see `documents_of`. The store is followed:
        each search looks its hits up there, so that none is deleted, or of an old text or metadata. What is added to an
        InMemoryVectorStore, or to a store whose docstore is in memory, is found at once, in any other store after
        `refresh`. A store that does not look up by id is not followed, and a warning says so.
        """
        chosen = analyzer_of(language, analyzer, preprocess_func)
        return cls(bm25=KeywordCopy.of(*copied(store, ids), chosen, formula=formula), **options)

    @classmethod
    async def afrom_vector_store(cls: type[K], store: VectorStore, **options: Any) -> K:
        """`from_vector_store` in a worker thread; a store that is async alone is awaited."""
        return await aexecute(in_thread("from_vector_store", partial(cls.from_vector_store, store, **options)))

    @classmethod
    def from_rank_bm25(
        cls: type[K],
        ranker: Any,
        documents: Iterable[Document],
        *,
        preprocess_func: Tokenizer | None = None,
        **options: Any,
    ) -> K:
        """Search over what a rank-bm25 object holds, with its scores; see `BM25.from_rank_bm25`.

        `documents` are its documents, in its order; those that are equal need ids.
        """
        chunks = [chunk_of(document) for document in documents]
        return cls(bm25=BM25.from_rank_bm25(ranker, chunks, preprocess_func), **options)

    @classmethod
    def from_persist_dir(
        cls: type[K], persist_dir: str | Path, *, analyzer: SavedAnalyzer | None = None, **options: Any
    ) -> K:
        """Search over what `persist` wrote, with the same scores; `options` (k, where, ...) are not kept there.

        `analyzer` is the one it was built with, where that was a CustomAnalyzer. Raises ConfigError where nothing was
        persisted, IncompatibleIndexError where it was by a newer version or with another analyzer.
        """
        return cls(bm25=saved_index.load(persist_dir, analyzer, _without_kb), **options)

    def persist(self, persist_dir: str | Path) -> None:
        """Make a folder hold what is searched now; a folder from before is brought up to date.

        Of a store that is followed, what it holds now is kept, and the folder follows it no more. It is a knowledge
        base without vectors, with the formula beside it. Raises ConfigError where the folder holds something else, or
        where the terms are made by a function without a name (see CustomAnalyzer) or metadata is not JSON's;
        IncompatibleIndexError where the folder is of another analyzer.
        """
        refreshed(self.bm25)
        saved_index.save(self._index(), persist_dir, lambda chunk: chunk)

    async def apersist(self, persist_dir: str | Path) -> None:
        """`persist` in a worker thread."""
        await aexecute(in_thread("persist", partial(self.persist, persist_dir)))

    def _index(self) -> BM25:
        if not isinstance(self.bm25, BM25):
            raise ConfigError(f"only a BM25 can be changed and persisted; this retriever searches {self.bm25!r}")
        return self.bm25

    def _unstaged(self) -> Pipeline:
        return Pipeline(self.bm25, timeout=self.timeout, on_error=self.on_error)


class BM25Retriever(KeywordRetriever):
    """Keyword search over documents that are added and deleted as in a vector store; see `KeywordRetriever`."""

    def add(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """Add documents, found at once; one whose id is here already takes the other's place. The id of each.

        `ids` go before the documents' own.
        """
        chunks = chunks_with(documents, ids)
        self._index().add(chunks)
        return [chunk.id for chunk in chunks]

    async def aadd(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """`add` in a worker thread."""
        return await aexecute(in_thread("add", partial(self.add, documents, ids=ids)))

    def add_documents(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """`add` under the name that LangChain's vector stores have for it."""
        return self.add(documents, ids=ids)

    async def aadd_documents(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """`add_documents` in a worker thread."""
        return await self.aadd(documents, ids=ids)

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents; how many were here."""
        return self._index().delete(ids)

    async def adelete(self, ids: Iterable[str]) -> int:
        """`delete` in a worker thread."""
        return await aexecute(in_thread("delete", partial(self.delete, ids)))


class BM25Index(KeywordRetriever, ThreadedIndex):
    """Keyword search as a destination of LangChain's `index` and `aindex`; see `KeywordRetriever`.

    It is held in memory until `persist`; for one that is on disk after each change, or has vectors too, see
    `HybridIndex`. `where` and `require` are those of searches: `get` and `delete` reach all documents.
    """

    model_config = STRICT

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add documents, found at once; one whose id is here already takes the other's place.

        The response has the id of each, in their order; one that has none is given that of its content. Takes no
        `kwargs`.
        """
        _none(kwargs)
        chunks = [chunk_of(item) for item in items]
        self._index().add(chunks)
        return UpsertResponse(succeeded=[chunk.id for chunk in chunks], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents by id, or by a filter, `where`; `num_deleted` are those that were here.

        Raises ConfigError unless it is one of the two, and for a filter that says nothing.
        """
        where = kwargs.pop("where", None)
        _none(kwargs)
        if (ids is None) == (where is None):
            raise ConfigError("say which documents to delete, by ids or by where=...")
        gone = several(ids) if ids is not None else self._passing(where)
        return DeleteResponse(num_deleted=self._index().delete(gone), num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Those of the given documents that are here, as they were upserted."""
        _none(kwargs)
        index = self._index().index
        found = (index.get(chunk_id) for chunk_id in dict.fromkeys(several(ids)))
        return [kept_document(chunk) for chunk in found if chunk is not None]

    def _passing(self, where: Filter) -> list[str]:
        if says_nothing(where):
            raise ConfigError("a filter that says nothing would delete all documents")
        passes = compile_filter(where)
        return [chunk.id for chunk in saved_index.live_chunks(self._index().index) if passes(chunk.metadata)]


def _none(kwargs: Mapping[str, Any]) -> None:
    for name in kwargs:
        raise ConfigError(f"unknown argument {name!r}: a BM25Index takes documents, ids and where alone")


def chunks_with(documents: Iterable[Document], ids: Sequence[str] | None) -> list[Chunk]:
    """The chunks of documents; `ids` go before their own. ConfigError unless there is one for each."""
    given = list(documents)
    if ids is not None:
        several(ids)
        if len(ids) != len(given):
            raise ConfigError(f"{len(given)} documents and {len(ids)} ids: give one for each")
        given = [document.model_copy(update={"id": id_}) for document, id_ in zip(given, ids, strict=True)]
    return [chunk_of(document) for document in given]


def analyzer_of(
    language: str | None, analyzer: AnyAnalyzer | None = None, preprocess_func: Tokenizer | None = None
) -> AnyAnalyzer:
    """The analyzer that is given, else that of a language; ConfigError where two of them say what the terms are."""
    given = [option for option in (analyzer, preprocess_func) if option is not None]
    if len(given) + (language != "auto") > 1:
        raise ConfigError("language, analyzer and preprocess_func say what the terms are: give one of them")
    return given[0] if given else Analyzer(language)


def _without_kb(chunk: Chunk) -> Chunk:
    """The chunk that was persisted: the folder's name is no part of it."""
    return replace(chunk, kb="")
