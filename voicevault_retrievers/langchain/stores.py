"""Listing of LangChain's vector stores, and translation of portable filters into their filter languages.

The part of a filter that each store is given (see `engines.filters`):
|---|---|
| InMemoryVectorStore, FAISS | the whole filter, as a function; FAISS applies it to all of its vectors |
| Chroma | equality, `$ne $in $nin`; order of numbers |
| QdrantVectorStore | the same, and `{"$exists": false}` |
| PGVector | `$eq $in $ne $nin $exists`, order of numbers and strings; nothing under `$not` but `$exists` |
| any other, and subclasses of these | nothing |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from voicevault_retrievers._support.checks import id_list
from voicevault_retrievers.adapters.keyword_copy import CopiedIndex
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides, waits
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.filters import KEY, Bound, Chroma, Clause, Language, Qdrant, Scalar, translate
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.convert import TextOf, chunk_of, chunks_of

_LOG = logging.getLogger(__name__)


def documents_of(store: VectorStore, ids: Iterable[str] | None = None) -> list[Document]:
    """The documents with these `ids`, or all of a store, as the store's searches return them, in the store's order.

    LangChain has no listing. All documents can be read from an InMemoryVectorStore, from Chroma, Qdrant and PGVector
    (with a sync engine), and from a store with an in-memory docstore, such as FAISS; from other stores with
    `get_by_ids` those of `ids`. Raises ConfigError where the documents cannot be read, or where the store has none of
    `ids`; where it lacks some of them, a warning is logged.
    """
    if not isinstance(store, VectorStore):
        raise ConfigError(f"expected a LangChain VectorStore, not {type(store).__name__}")
    if ids is not None:
        return _checked(store, id_list(ids))
    if isinstance(store, InMemoryVectorStore):
        return store.get_by_ids(list(store.store))
    listing = next((_LISTINGS[kind] for kind in kinds_of(store) if kind in _LISTINGS), None)
    if listing is not None and not getattr(store, "async_mode", False):
        return listing(store)
    held = _docstore(store)
    if held is not None:
        return list(held.values())
    raise ConfigError(
        f"{type(store).__name__} cannot list what it holds: pass ids=[...], those that adding the documents gave, or "
        "give the documents, with these ids, to from_documents"
    )


def copied(
    store: VectorStore, ids: Iterable[str] | None = None, text_of: TextOf = None
) -> tuple[CopiedIndex, list[Chunk]]:
    """A store as the source of a copy, and the chunks to copy; with `ids`, those documents alone.

    `text_of` is as of `chunk_of`.

    Raises as `documents_of`.
    """
    if not isinstance(store, VectorStore):
        raise ConfigError(f"expected a LangChain VectorStore, not {type(store).__name__}")
    wanted = None if ids is None else id_list(ids)

    listed = partial(_listed, store, wanted, text_of)
    name, chunks = type(store).__name__, listed()
    if wanted is None and isinstance(store, InMemoryVectorStore):
        get, held = partial(_chunks, store, text_of), partial(getattr, store, "store")
        return CopiedIndex(name, store, listed, get, held), chunks
    if wanted is None and _docstore(store) is not None:
        by_key = _ByKey(store, text_of)
        return CopiedIndex(name, store, listed, by_key.get, by_key.held if by_key.has_ids else None), chunks
    curated = getattr(store, "base", None) if is_hybrid(store) else None
    return CopiedIndex(name, store, listed, partial(_chunks, store, text_of), curated=curated), chunks


def _listed(store: VectorStore, ids: list[str] | None, text_of: TextOf) -> list[Chunk]:
    return chunks_of(documents_of(store, ids), text_of)


def kinds_of(part: Any) -> list[str]:
    """A class and its bases, each as package and name: other packages have stores of the same names."""
    return [f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(part).__mro__]


def id_key_of(store: VectorStore | None) -> str | None:
    """The metadata key of the id, for a store that returns documents without their ids."""
    return "_id" if "langchain_qdrant.QdrantVectorStore" in kinds_of(store) else None


def identified(document: Document, id_key: str | None) -> Document:
    """A document whose id is `metadata[id_key]`; ConfigError as in `id_in`."""
    return document if id_key is None else document.model_copy(update={"id": id_in(document.metadata, id_key)})


def id_in(metadata: Mapping[str, Any], id_key: str) -> str:
    """The id in a document's metadata; ConfigError unless it is a whole number or a string that is not empty."""
    found = metadata.get(id_key)
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        raise ConfigError(
            f"a document with the metadata keys {sorted(map(str, metadata))} has no id in metadata[{id_key!r}]: as the "
            "id_key says that it is there, it is a whole number or a string that is not empty"
        )
    return str(found)


def by_ids(store: VectorStore, ids: Sequence[str]) -> list[Document]:
    """The documents of a store with these ids, awaited where an async search uses an async store."""
    if any(kind in _CHROMA for kind in kinds_of(store)):
        return _of_chroma(store, ids=list(ids))
    awaited = overrides(store, VectorStore, "aget_by_ids") and getattr(store, "async_mode", True)
    coroutine = partial(store.aget_by_ids, ids) if awaited else None
    found = call_or_await(partial(store.get_by_ids, ids), coroutine, waits=waits(type(store).aget_by_ids))
    return [identified(document, id_key_of(store)) for document in found]


def _chunks(store: VectorStore, text_of: TextOf, ids: Sequence[str]) -> list[Chunk]:
    return [chunk_of(document, text_of) for document in by_ids(store, ids)]


def _docstore(store: VectorStore) -> Mapping[str, Document] | None:
    """The documents of an in-memory docstore by the docstore's keys; None for other stores."""
    held = getattr(getattr(store, "docstore", None), "_dict", None)
    return held if isinstance(held, Mapping) else None


class _ByKey:
    """A lookup of chunks by id in a store's in-memory docstore; `has_ids` where its keys are the ids."""

    def __init__(self, store: VectorStore, text_of: TextOf) -> None:
        self._store = store
        self._text_of = text_of
        self._keys = self._keys_of()
        self.has_ids = all(one == key for one, key in self._keys.items())

    def held(self) -> Mapping[str, Document]:
        """The documents by key, read each time: adding documents may replace the dict."""
        return _docstore(self._store) or {}

    def get(self, ids: Sequence[str]) -> list[Chunk]:
        """The chunks with these ids that the store holds now."""
        if not self._keys.keys() >= set(ids):
            self._keys.update(self._keys_of())
        documents = (self.held().get(self._keys.get(one, one)) for one in ids)
        return [chunk_of(document, self._text_of) for document in documents if document is not None]

    def _keys_of(self) -> dict[str, str]:
        return {chunk_of(document).id: key for key, document in list(self.held().items())}


def _checked(store: VectorStore, ids: Sequence[str]) -> list[Document]:
    try:
        found = by_ids(store, ids)
    except NotImplementedError as error:
        raise ConfigError(
            f"{type(store).__name__} gives no documents by id: give the documents, with the ids that they have in the "
            "store, to from_documents"
        ) from error
    missing = len(set(ids) - {document.id for document in found})
    if ids and not found:
        raise ConfigError(
            f"0 of {len(ids)} ids are in the vector store; ids are those that adding documents to it gave"
        )
    if missing:
        _LOG.warning("%d of %d ids are not in the vector store, and not in BM25 either", missing, len(set(ids)))
    return found


def _of_chroma(store: Any, **which: Any) -> list[Document]:
    """All documents, or those of `ids`; Chroma's `get_by_ids` raises for a document without metadata."""
    held = store.get(**which)
    rows = zip(held["ids"], held["documents"], held["metadatas"], strict=True)
    return [
        Document(id=document_id, page_content=text, metadata=metadata or {})
        for document_id, text, metadata in rows
        if text is not None  # Chroma may hold vectors without a text, which its searches leave out
    ]


def _of_qdrant(store: Any) -> list[Document]:
    keys = store.collection_name, store.content_payload_key, store.metadata_payload_key
    found: list[Document] = []
    start = None
    while True:
        points, start = store.client.scroll(store.collection_name, limit=_PAGE, offset=start, with_payload=True)
        found.extend(identified(store._document_from_point(point, *keys), id_key_of(store)) for point in points)
        if start is None:
            return found


def _of_postgres(store: Any) -> list[Document]:
    with store.session_maker() as session:
        collection = store.get_collection(session)
        rows = session.query(store.EmbeddingStore).filter_by(collection_id=collection.uuid)
        return [Document(id=row.id, page_content=row.document, metadata=row.cmetadata) for row in rows]


_PAGE = 1000
_CHROMA = ("langchain_chroma.Chroma", "langchain_community.Chroma")
_LISTINGS: dict[str, Callable[[Any], list[Document]]] = {
    **dict.fromkeys(_CHROMA, _of_chroma),
    "langchain_postgres.PGVector": _of_postgres,
    "langchain_qdrant.QdrantVectorStore": _of_qdrant,
}


class PGVectorFilters(Language):
    """PGVector's filter language. Comparing unlike types gives null, which NOT keeps, and `$nin` compares texts."""

    def equal(self, key: str, operand: Scalar) -> Clause:
        return {key: {"$eq": operand}}

    def other(self, key: str, operand: Scalar) -> Clause:
        unsafe = isinstance(operand, bool) or str(operand).startswith("[")  # a text with "[" may be that of a list
        return Bound.EVERYTHING if unsafe else {key: {"$nin": [operand]}}

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        return {key: {operator: operand}}

    def exists(self, key: str, wanted: bool) -> Clause:
        held = {key: {"$exists": wanted}}
        return held if wanted else self.some([held, {key: {"$eq": None}}])


def pushed(store: VectorStore, where: Filter | None) -> dict[str, Any]:
    """The keyword arguments of a store's search for a filter; the store passes at least what the filter passes."""
    options = _OPTIONS.get(kinds_of(store)[0])
    return options(store, where) if options is not None and where else {}


def _in_language(language: Language) -> Callable[[Any, Filter], dict[str, Any]]:
    def options(store: Any, where: Filter) -> dict[str, Any]:
        clause, _ = translate(where, language)
        return {} if clause is None else {"filter": clause}

    return options


def _qdrant(store: Any, where: Filter) -> dict[str, Any]:
    if not KEY.fullmatch(store.metadata_payload_key):
        return {}
    language = Qdrant(f"{store.metadata_payload_key}.", _QDRANT_ADDS)
    clause, _ = translate(where, language)
    return {} if clause is None else {"filter": language.every([clause])}


def _in_memory(store: Any, where: Filter) -> dict[str, Any]:
    passes = compile_filter(where)
    return {"filter": lambda document: passes(document.metadata)}


def _faiss(store: Any, where: Filter) -> dict[str, Any]:
    return {"filter": compile_filter(where), "fetch_k": max(1, store.index.ntotal)}


_QDRANT_ADDS = ("_id", "_collection_name")
"""Metadata that LangChain's Qdrant store adds to its results and that Qdrant itself cannot filter by."""

_OPTIONS: dict[str, Callable[[Any, Filter], dict[str, Any]]] = {
    "langchain_chroma.Chroma": _in_language(Chroma()),
    "langchain_community.FAISS": _faiss,
    "langchain_core.InMemoryVectorStore": _in_memory,
    "langchain_postgres.PGVector": _in_language(PGVectorFilters()),
    "langchain_qdrant.QdrantVectorStore": _qdrant,
}
"""By exact package and class: a subclass may search with a filter of its own, which this one would replace."""


def is_hybrid(store: VectorStore) -> bool:
    """Whether a store is a HybridStore."""
    return "voicevault_retrievers.HybridStore" in kinds_of(store)


def has_relevance(store: VectorStore) -> bool:
    """Whether the store defines relevance scores for its current metric."""
    try:
        store._select_relevance_score_fn()
    except NotImplementedError:
        base = VectorStore._similarity_search_with_relevance_scores
        return type(store)._similarity_search_with_relevance_scores is not base
    except ValueError:
        return False
    return True
