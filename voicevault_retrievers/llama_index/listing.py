"""Listing of the nodes of a vector store or an index, all of them or by id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode, Document, MetadataMode
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from voicevault_retrievers.adapters.keyword_copy import CopiedIndex
from voicevault_retrievers.core.execution.event_loop import call_or_await
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, is_own
from voicevault_retrievers.llama_index.convert import chunk_of, chunks_of
from voicevault_retrievers.llama_index.store_channels import awaits
from voicevault_retrievers.llama_index.store_filters import POSTGRES, QDRANT

_LOG = logging.getLogger(__name__)


def nodes_of(
    source: VectorStoreIndex | BasePydanticVectorStore, docstore: BaseDocumentStore | None = None
) -> list[BaseNode]:
    """The nodes whose vectors a store or an index holds: those the store lists, else its docstore's nodes with its ids.

    A given `docstore` takes precedence over the store's own nodes; its nodes without a vector are left out. Raises
    ConfigError where the nodes cannot be read, or where the docstore has none of the vectors' ids; where it lacks some
    of them, a warning is logged.
    """
    _check(source)
    store = _store_of(source)
    return _nodes(source, store, _listed(store), docstore)


def copied(
    source: VectorStoreIndex | BasePydanticVectorStore,
    docstore: BaseDocumentStore | None = None,
    mode: MetadataMode = MetadataMode.EMBED,
) -> tuple[CopiedIndex, list[Chunk]]:
    """A store or an index as the source of a copy, and the chunks to copy. Raises as `nodes_of`.

    `mode` says which metadata of a node are its header. Where the store lists its nodes, they are looked up in the
    store. Otherwise they are looked up in the docstore, as long as the store, or its index, has their ids.
    """
    _check(source)
    store, held = _store_of(source), _docstore_of(source, docstore)
    listing = _listed(store)
    chunks = chunks_of(_nodes(source, store, listing, docstore), mode)

    known = partial(_known, source, store)
    from_docstore = partial(_from_docstore, None if listing is not None else known, store, held, mode)
    return CopiedIndex(
        type(store).__name__,
        store,
        partial(_now, source, docstore, mode),
        partial(_stored, store, mode=mode) if listing is not None and docstore is None else from_docstore,
        known if listing is None else None,
        curated=store.client if is_own(type(store)) else None,
    ), chunks


def _now(
    source: VectorStoreIndex | BasePydanticVectorStore, docstore: BaseDocumentStore | None, mode: MetadataMode
) -> list[Chunk]:
    return chunks_of(nodes_of(source, docstore), mode)


def _from_docstore(
    known: Callable[[], Collection[str]] | None,
    store: BasePydanticVectorStore,
    docstore: BaseDocumentStore | None,
    mode: MetadataMode,
    ids: Sequence[str],
) -> list[Chunk]:
    """The chunks of a docstore with these ids, as long as the store, or what is `known` of it, has them."""
    there = {chunk.id for chunk in _stored(store, ids, mode)} if known is None else known()
    return [] if docstore is None else _held(docstore, [one for one in ids if one in there], mode)


def _check(source: object) -> None:
    if not isinstance(source, VectorStoreIndex | BasePydanticVectorStore):
        raise ConfigError(f"expected a VectorStoreIndex or a vector store, not a {type(source).__name__}")


def _store_of(source: VectorStoreIndex | BasePydanticVectorStore) -> BasePydanticVectorStore:
    return source.vector_store if isinstance(source, VectorStoreIndex) else source


def _docstore_of(
    source: VectorStoreIndex | BasePydanticVectorStore, docstore: BaseDocumentStore | None
) -> BaseDocumentStore | None:
    return source.docstore if docstore is None and isinstance(source, VectorStoreIndex) else docstore


def _nodes(
    source: VectorStoreIndex | BasePydanticVectorStore,
    store: BasePydanticVectorStore,
    listed: list[BaseNode] | None,
    docstore: BaseDocumentStore | None,
) -> list[BaseNode]:
    if listed is not None and docstore is None:
        return listed
    ids = [node.node_id for node in listed] if listed is not None else _ids(source, store)
    held = _docstore_of(source, docstore)
    name = type(store).__name__
    if ids is None:
        raise ConfigError(f"{name} does not list its nodes: give them to from_nodes")
    if held is None:
        raise ConfigError(f"{name} does not hold its texts: pass the docstore=... that does, or its index")
    return _overlapping(ids, held)


def _listed(store: BasePydanticVectorStore) -> list[BaseNode] | None:
    """The nodes of a store that holds and lists them; None for other stores."""
    if not store.stores_text:
        return None
    listing = next((_LISTINGS[kind] for kind in _kinds_of(store) if kind in _LISTINGS), None)
    if listing is not None:
        return listing(store)
    try:
        return store.get_nodes(None, None)
    except (NotImplementedError, ValueError, AssertionError):  # from stores that list only by ids or filters
        return None


def _kinds_of(store: BasePydanticVectorStore) -> list[str]:
    """A store's class and its bases, in the form of `kind_of`."""
    return [f"{base.__module__}.{base.__name__}" for base in type(store).__mro__]


def _of_qdrant(store: Any) -> list[BaseNode]:
    """All nodes of a Qdrant store, page by page: the store's own listing silently ends after 9,999 nodes."""
    if store.client is None:
        raise ConfigError("a QdrantVectorStore with an async client alone does not list its nodes: give client=... too")
    found: list[BaseNode] = []
    more = store.client.collection_exists(store.collection_name)
    start = None
    while more:
        points, start = store.client.scroll(store.collection_name, limit=_PAGE, offset=start, with_payload=True)
        found.extend(store.parse_to_query_result(points).nodes)
        more = start is not None
    return found


def _of_postgres(store: Any) -> list[BaseNode]:
    """The nodes that pass a filter which all of LlamaIndex's nodes pass: the store does not list without a filter."""
    typed = MetadataFilter(key="_node_type", operator=FilterOperator.TEXT_MATCH, value="")
    nodes: list[BaseNode] = store.get_nodes(filters=MetadataFilters(filters=[typed]))
    return [node.model_copy(update={"embedding": None}) for node in nodes]


def _ids(source: VectorStoreIndex | BasePydanticVectorStore, store: BasePydanticVectorStore) -> list[str] | None:
    """The ids of the embedded nodes; None where they are not known."""
    if isinstance(store, SimpleVectorStore):
        return list(store.data.embedding_dict)
    return list(_known(source, store)) or (None if store.stores_text or source is store else [])


def _known(source: VectorStoreIndex | BasePydanticVectorStore, store: BasePydanticVectorStore) -> Collection[str]:
    """The ids of a SimpleVectorStore's vectors, or those that another store's index has recorded."""
    if isinstance(store, SimpleVectorStore):
        return store.data.embedding_dict
    return dict.fromkeys(source.index_struct.nodes_dict.values()) if isinstance(source, VectorStoreIndex) else ()


def _stored(store: BasePydanticVectorStore, ids: Sequence[str], mode: MetadataMode) -> list[Chunk]:
    """The chunks of a store with these ids, awaited where an async search uses an async store."""
    coroutine = partial(store.aget_nodes, list(ids)) if awaits(store, "aget_nodes") else None
    nodes = call_or_await(partial(store.get_nodes, list(ids)), coroutine)
    return [chunk_of(node.model_copy(update={"embedding": None}), mode) for node in nodes]


def _held(docstore: BaseDocumentStore, ids: Sequence[str], mode: MetadataMode) -> list[Chunk]:
    """The chunks of a docstore with these ids; a docstore that has only async methods is awaited."""
    wanted = list(ids)
    found = call_or_await(
        partial(docstore.get_nodes, wanted, raise_error=False),
        partial(docstore.aget_nodes, wanted, raise_error=False),
        waits=False,
    )
    return [chunk_of(node, mode) for node in found]


def _overlapping(ids: Sequence[str], docstore: BaseDocumentStore) -> list[BaseNode]:
    docs = docstore.docs
    found = [docs[node_id] for node_id in ids if node_id in docs]
    overlap = f"{len(found)} of {len(ids)} ids overlap"
    if ids and not found:
        whole = any(isinstance(doc, Document) for doc in docs.values())
        raise ConfigError(
            f"{overlap}; your docstore holds {'whole documents' if whole else 'other nodes'}, not the chunks that the "
            "vector store holds: BM25 over them would never agree with vector search; give the nodes that were "
            "embedded (an IngestionPipeline's run returns them) to from_nodes, or add them to the docstore"
        )
    if len(found) < len(ids):
        _LOG.warning("%s: BM25 does not find what the docstore lacks, and vector search does", overlap)
    return found


_PAGE = 1000
_LISTINGS: dict[str, Callable[[Any], list[BaseNode]]] = {POSTGRES: _of_postgres, QDRANT: _of_qdrant}
