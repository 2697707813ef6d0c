"""The documents that a vector store holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store.codec import several

_LOG = logging.getLogger(__name__)


def documents_of(store: VectorStore, ids: Iterable[str] | None = None) -> list[Document]:
    """Those of these `ids`, or all that a store holds, as its searches give them; the order is the store's.

    LangChain has no listing: all can be had of an InMemoryVectorStore, of Chroma, and of a store with an in-memory
    docstore, such as FAISS; of others with `get_by_ids`, those of `ids`. Raises ConfigError where they cannot be had,
    or where none of `ids` is in the store; where some are not, a warning is logged.
    """
    if not isinstance(store, VectorStore):
        raise ConfigError(f"expected a LangChain VectorStore, not {type(store).__name__}")
    if ids is not None:
        return _checked(store, list(several(ids)))
    if isinstance(store, InMemoryVectorStore):
        return store.get_by_ids(list(store.store))
    if any(base.__name__ == "Chroma" for base in type(store).__mro__):
        return _of_chroma(store.get())  # type: ignore[attr-defined]  # Chroma has it
    held = getattr(getattr(store, "docstore", None), "_dict", None)
    if isinstance(held, Mapping):
        return list(held.values())
    raise ConfigError(
        f"{type(store).__name__} cannot list what it holds: pass ids=[...], those that adding the documents gave, or "
        "give the documents, with these ids, to from_documents"
    )


def _checked(store: VectorStore, ids: Sequence[str]) -> list[Document]:
    try:
        found = store.get_by_ids(ids)
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


def _of_chroma(held: Mapping[str, Any]) -> list[Document]:
    rows = zip(held["ids"], held["documents"], held["metadatas"], strict=True)
    return [
        Document(id=document_id, page_content=text, metadata=metadata or {})
        for document_id, text, metadata in rows
        if text is not None  # Chroma may hold vectors alone, and its searches leave those out
    ]
