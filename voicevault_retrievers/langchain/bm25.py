"""Keyword search as LangChain retrievers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, UpsertResponse
from langchain_core.vectorstores import VectorStore
from pydantic import Field

from voicevault_retrievers._support.checks import id_list
from voicevault_retrievers.adapters.keyword_copy import KeywordCopy, refreshed
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.filters import Filter, compile_filter, says_nothing
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.langchain.base import PipelineRetriever, ThreadedIndex
from voicevault_retrievers.langchain.convert import TextOf, chunk_of, chunks_of, kept_document
from voicevault_retrievers.langchain.stores import copied
from voicevault_retrievers.langchain.validation import LIVE, STRICT, GivenTextOf
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, Tokenizer, checked_analyzer
from voicevault_retrievers.lexical.reading import Fuzzy
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import saved_index
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text import Analyzer

K = TypeVar("K", bound="KeywordRetriever")


class KeywordRetriever(PipelineRetriever):
    """Keyword search: returns the documents that share a term with the query, and no others.

    Scores are BM25 scores: unbounded, higher is better. In the constructors that take documents, `language` chooses the
    stemmer and the stopwords: "auto" detects each document's language, an ISO 639-1 code holds for all documents, None
    uses neither. `analyzer` or `preprocess_func` splits texts into terms instead; `formula`, `operators` and `fuzzy`
    are those of `BM25`, `options` this class's fields. Equal documents are indexed once. `text_of` says what is indexed
    before a document's text, such as its title: a function of the document, or metadata keys.

    Adding and deleting change `bm25` in memory, for every retriever that shares it. A search sees either all of a
    change or none of it. Only `persist` writes to disk. These methods raise ConfigError where `bm25` is another kind of
    channel.
    """

    bm25: Annotated[Channel, LIVE] = Field(default_factory=lambda: BM25.from_chunks([]))
    on_error: OnError = "skip"
    text_of: GivenTextOf = None

    @classmethod
    def from_documents(
        cls: type[K],
        documents: Iterable[Document],
        *,
        language: str | None = "auto",
        formula: Formula | str = "lucene",
        analyzer: AnyAnalyzer | None = None,
        preprocess_func: Tokenizer | None = None,
        operators: bool = False,
        fuzzy: bool | Fuzzy = False,
        **options: Any,
    ) -> K:
        """A retriever over documents held in memory."""
        chosen = analyzer_of(language, analyzer, preprocess_func)
        chunks = chunks_of(documents, options.get("text_of"))
        bm25 = BM25.from_chunks(chunks, chosen, formula=formula, operators=operators, fuzzy=fuzzy)
        return cls(bm25=bm25, **options)

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
        """A retriever over texts, with a metadata dict and an id for each; `options` as in `from_documents`."""
        return cls.from_documents(documents_with(texts, metadatas, ids), **options)

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
        operators: bool = False,
        fuzzy: bool | Fuzzy = False,
        **options: Any,
    ) -> K:
        """A retriever over a copy of a vector store's documents, under the ids that the store's own hits have.

        `ids` are the documents' ids, for a store that cannot list its documents; see `documents_of`. The copy follows
        the store: each search looks up its hits in the store, so that it returns no deleted document and no outdated
        text or metadata. Documents added to an InMemoryVectorStore, or to a store with an in-memory docstore, are found
        at once; those added to any other store are found after `refresh`. A store that has no lookup by id is not
        followed, and a warning says so.
        """
        chosen = analyzer_of(language, analyzer, preprocess_func)
        scoring: dict[str, Any] = {"formula": formula, "operators": operators, "fuzzy": fuzzy}
        return cls(bm25=KeywordCopy.of(*copied(store, ids, options.get("text_of")), chosen, **scoring), **options)

    @classmethod
    async def afrom_vector_store(cls: type[K], store: VectorStore, **options: Any) -> K:
        """`from_vector_store` in a worker thread; a store that has only async methods is awaited."""
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
        """A retriever over the postings of a rank-bm25 object, with that object's scores; see `BM25.from_rank_bm25`.

        `documents` are the object's documents, in its order. Equal documents need ids.
        """
        chunks = [chunk_of(document) for document in documents]
        return cls(bm25=BM25.from_rank_bm25(ranker, chunks, preprocess_func), **options)

    @classmethod
    def from_persist_dir(
        cls: type[K], persist_dir: str | Path, *, analyzer: SavedAnalyzer | None = None, **options: Any
    ) -> K:
        """A retriever over what `persist` wrote, with the same scores; `options` (k, where, ...) are not saved.

        `analyzer` is the analyzer that the index was built with, where that was a CustomAnalyzer. Raises ConfigError
        where the folder holds no index, IncompatibleIndexError where a newer version or another analyzer wrote it.
        """
        return cls(bm25=saved_index.load(persist_dir, analyzer, _without_kb), **options)

    def persist(self, persist_dir: str | Path) -> None:
        """Write the current index to a folder; a folder written before is updated.

        Of a store that is followed, the current documents are saved, and the saved index no longer follows the store.
        The folder is a knowledge base without vectors, with the formula beside it. Raises ConfigError where the folder
        holds something else, where the analyzer uses a function without a name (see CustomAnalyzer), or where metadata
        is not JSON; IncompatibleIndexError where another analyzer wrote the folder.
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
    """Keyword search with the `add` and `delete` of a vector store; see `KeywordRetriever`."""

    def add(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """Add documents and return their ids. A document replaces the one with the same id; searches find it at once.

        `ids` take precedence over the documents' own ids.
        """
        chunks = chunks_with(documents, ids, self.text_of)
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
        """Delete documents by id. Returns how many were present."""
        return self._index().delete(ids)

    async def adelete(self, ids: Iterable[str]) -> int:
        """`delete` in a worker thread."""
        return await aexecute(in_thread("delete", partial(self.delete, ids)))


class BM25Index(KeywordRetriever, ThreadedIndex):
    """A keyword index as a destination of LangChain's `index` and `aindex`; see `KeywordRetriever`.

    The index is in memory until `persist`. For an index that is on disk after each change, or that has vectors too, see
    `HybridIndex`. `where` and `require` apply to searches alone: `get` and `delete` reach all documents.
    """

    model_config = STRICT

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add documents. A document replaces the one with the same id; searches find it at once.

        The response has the ids in the documents' order. A document without an id gets a digest of its content as id.
        Takes no `kwargs`.
        """
        _none(kwargs)
        chunks = [chunk_of(item, self.text_of) for item in items]
        self._index().add(chunks)
        return UpsertResponse(succeeded=[chunk.id for chunk in chunks], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents by id, or by a filter `where`; `num_deleted` counts the documents that were present.

        Raises ConfigError unless exactly one of the two is given, and for a filter without conditions.
        """
        where = kwargs.pop("where", None)
        _none(kwargs)
        if (ids is None) == (where is None):
            raise ConfigError("say which documents to delete, by ids or by where=...")
        gone = id_list(ids) if ids is not None else self._passing(where)
        return DeleteResponse(num_deleted=self._index().delete(gone), num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """The requested documents that are in the index, as they were upserted."""
        _none(kwargs)
        index = self._index().index
        found = (index.get(chunk_id) for chunk_id in dict.fromkeys(id_list(ids)))
        return [kept_document(chunk) for chunk in found if chunk is not None]

    def _passing(self, where: Filter) -> list[str]:
        if says_nothing(where):
            raise ConfigError("a filter that says nothing would delete all documents")
        passes = compile_filter(where)
        return [chunk.id for chunk in saved_index.live_chunks(self._index().index) if passes(chunk.metadata)]


def _none(kwargs: Mapping[str, Any]) -> None:
    for name in kwargs:
        raise ConfigError(f"unknown argument {name!r}: a BM25Index takes documents, ids and where alone")


def documents_with(
    texts: Iterable[str], metadatas: Iterable[dict[str, Any]] | None, ids: Iterable[str] | None
) -> list[Document]:
    """Documents of texts, with a metadata dict and an id for each; ConfigError where the numbers differ."""
    given = list(texts)
    columns: list[list[Any]] = [
        given,
        [{}] * len(given) if metadatas is None else list(metadatas),
        [None] * len(given) if ids is None else list(ids),
    ]
    if len({len(column) for column in columns}) > 1:
        raise ConfigError(f"texts, metadatas and ids differ in number: {[len(column) for column in columns]}")
    return [Document(text, metadata=metadata, id=id_) for text, metadata, id_ in zip(*columns, strict=True)]


def chunks_with(documents: Iterable[Document], ids: Sequence[str] | None, text_of: TextOf = None) -> list[Chunk]:
    """The chunks of documents; `ids` replace the documents' own. Raises ConfigError unless each document has one."""
    given = list(documents)
    if ids is not None:
        id_list(ids if isinstance(ids, str) else [one for one in ids if one is not None])
        if len(ids) != len(given):
            raise ConfigError(f"{len(given)} documents and {len(ids)} ids: give one for each")
        given = [document.model_copy(update={"id": id_}) for document, id_ in zip(given, ids, strict=True)]
    return [chunk_of(document, text_of) for document in given]


def analyzer_of(
    language: str | None, analyzer: AnyAnalyzer | None = None, preprocess_func: Tokenizer | None = None
) -> AnyAnalyzer:
    """The given analyzer, else the language's; ConfigError where more than one option chooses the terms."""
    given = [option for option in (analyzer, preprocess_func) if option is not None]
    if len(given) + (language != "auto") > 1:
        raise ConfigError("language, analyzer and preprocess_func say what the terms are: give one of them")
    return checked_analyzer(given[0]) if given else Analyzer(language)


def _without_kb(chunk: Chunk) -> Chunk:
    """The chunk as it was persisted: without the folder's name as its knowledge base."""
    return replace(chunk, kb="")
