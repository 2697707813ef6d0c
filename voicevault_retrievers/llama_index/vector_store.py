"""Hybrid search as a LlamaIndex vector store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, NAMESPACE_SEP
from llama_index.core.vector_stores.types import (
    DEFAULT_PERSIST_DIR,
    DEFAULT_PERSIST_FNAME,
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from voicevault_retrievers.drive import adrive
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import Filter, compile_filter
from voicevault_retrievers.fusion.fuse import Method
from voicevault_retrievers.leaf import Leaf
from voicevault_retrievers.llama_index import copies
from voicevault_retrievers.llama_index.base import in_thread
from voicevault_retrievers.llama_index.bm25 import analyzer_of
from voicevault_retrievers.llama_index.convert import REF_DOC, chunk_of, node_of, stored
from voicevault_retrievers.llama_index.copies import FileSystem
from voicevault_retrievers.llama_index.embedder import NamedEmbedder, as_embedder, embeddings_of
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.llama_index.node import node_of_hit
from voicevault_retrievers.llama_index.vector_query import search
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.store import KnowledgeBase, embedding, manifest
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.manifest import EmbedderEntry
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.types import Chunk

T = TypeVar("T")
S = TypeVar("S", bound="HybridVectorStore")


class HybridVectorStore(BasePydanticVectorStore):
    """Nodes in a knowledge base on disk, found by their vectors, by keywords, or by both.

    Nodes and queries come with their embeddings, as an index or an ingestion pipeline makes them; nothing is embedded
    here. Every change is one commit, which the next search sees. The first change takes the writer's lock, `close`
    gives it back. Nodes come back whole, without their embedding, and `provenance` says how they were found.

    Modes of a query: `default` is by vectors (scores are cosines, in (0, 1]), `sparse` and `text_search` by keywords
    (BM25's, above 0), `hybrid` fuses both. `alpha` is the weight of vectors there, 0.5 unless given: 0 is keywords
    alone, 1 vectors alone. Only what matched is returned, at most `similarity_top_k`; instead of that, `hybrid_top_k`
    counts in `hybrid`, and `sparse_top_k` in `sparse` and `text_search`. In `hybrid` each side gives 100 candidates,
    or `similarity_top_k` where that is more; keywords `sparse_top_k`, where it is given. `fusion` is RRF() unless
    given.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    flat_metadata: bool = False
    _base: KnowledgeBase = PrivateAttr()
    _entry: EmbedderEntry = PrivateAttr()
    _fusion: Method | None = PrivateAttr()
    _searched: tuple[object, Mapping[str, Leaf]] = PrivateAttr((None, {}))

    def __init__(self, base: KnowledgeBase, *, fusion: Method | None = None) -> None:
        super().__init__()  # type: ignore[call-arg]  # mypy overlooks that stores_text has a default here
        self._base = base
        self._entry = _entry(base)
        self._fusion = fusion

    @classmethod
    def open(
        cls: type[S],
        base: str | Path,
        *,
        root: str | Path | None = None,
        embed_model: BaseEmbedding | Embedder | str | None = None,
        language: str | None = "auto",
        analyzer: SavedAnalyzer | None = None,
        fusion: Method | None = None,
        **options: Any,
    ) -> S:
        """Open a knowledge base, a name under `root` or a Path, or create it where there is none.

        `embed_model`, the one that embeds the nodes, is kept by its name and dimension, and has to be the same ever
        after; None is the base's own, and for a new base as `as_embedder` has it. `language` and `analyzer` are as of
        `BM25Retriever.from_nodes`; by default the base's own. `options` are those of `KnowledgeBase.open_or_create`.
        Raises as that does, ConfigError for a base for keywords only.
        """
        folder = locate(base, root)
        chosen: SavedAnalyzer | None = (
            None if (language, analyzer) == ("auto", None) else analyzer_of(language, analyzer)
        )
        embedder = as_embedder(embed_model) if vacant(folder) else _known(folder, embed_model)
        opened = KnowledgeBase.open_or_create(folder, analyzer=chosen, embedder=embedder, **options)
        return cls(opened, fusion=fusion)

    @classmethod
    def from_persist_path(cls: type[S], persist_path: str | Path, fs: FileSystem | None = None, **options: Any) -> S:
        """Open what `persist` wrote; `options` are those of `open`. ConfigError where there is nothing.

        On this machine's disk it is opened where it is, and changes are made there. From elsewhere it is copied to a
        temporary folder, which goes with the store: changes are kept by persisting it again.
        """
        fs, path = copies.resolved(persist_path, fs)
        folder = copies.local(fs, path)
        if folder is not None and not vacant(folder):
            return cls.open(folder, **options)
        above = Path(tempfile.mkdtemp())
        try:
            copies.fetch(fs, path, above / "copy")
            store = cls.open(above / "copy", **options)
        except BaseException:
            shutil.rmtree(above)
            raise
        weakref.finalize(store._base, shutil.rmtree, above, ignore_errors=True)
        return store

    @classmethod
    def from_persist_dir(
        cls: type[S],
        persist_dir: str | Path = DEFAULT_PERSIST_DIR,
        namespace: str = DEFAULT_VECTOR_STORE,
        fs: FileSystem | None = None,
        **options: Any,
    ) -> S:
        """Open what `StorageContext.persist` wrote to a directory; as `from_persist_path`."""
        path = f"{persist_dir}/{namespace}{NAMESPACE_SEP}{DEFAULT_PERSIST_FNAME}"
        return cls.from_persist_path(path, fs, **options)

    @classmethod
    def class_name(cls) -> str:
        return "HybridVectorStore"

    @property
    def client(self) -> KnowledgeBase:
        """The knowledge base."""
        return self._base

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, all in one commit; the id of each.

        One whose id is here already takes the other's place; where it differs in its embedding alone, that stays as it
        was. Raises ConfigError, naming the node, where an embedding is missing or does not fit, or a node cannot be
        kept.
        """
        _refuse(kwargs)
        given = list({node.node_id: node for node in nodes}.values())
        rows = embeddings_of(given, self._entry, self._base.name)
        self._base.add((stored(chunk_of(node)) for node in given), rows)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document; a node without one is its own."""
        _refuse(delete_kwargs)
        self._base.delete(where={REF_DOC: ref_doc_id})

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes of these ids, in their order, that pass the filters; without ids all that do, by ascending id."""
        return [node_of(chunk) for chunk in self._chunks(node_ids, filter_of(filters))]

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes of these ids that pass the filters; without ids all that do. ConfigError without either."""
        _refuse(delete_kwargs)
        where = filter_of(filters)
        if node_ids is not None:
            self._base.delete(node_ids if where is None else [chunk.id for chunk in self._chunks(node_ids, where)])
        elif where is not None:
            self._base.delete(where=where)
        else:
            raise ConfigError("say which nodes to delete: node_ids, filters or both; clear() deletes all of them")

    def clear(self) -> None:
        """Delete all nodes."""
        self._base.clear()

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes that match best, their scores and ids.

        `filters` and `doc_ids` are applied before ranking, and so are `node_ids` where there are any: LlamaIndex's
        indexes ask for the IndexNodes and ImageNodes alone that they were given, one of `from_vector_store` for all.
        Raises ConfigError for another mode, or a query without the embedding or text that its mode searches for.
        """
        _refuse(kwargs)
        hits = search(query, self._channels(), self._base.get, self._entry.fingerprint, self._fusion).hits
        return VectorStoreQueryResult(
            nodes=[node_of_hit(hit).node for hit in hits],
            similarities=[hit.score or 0.0 for hit in hits],
            ids=[hit.id for hit in hits],
        )

    def persist(self, persist_path: str | Path, fs: FileSystem | None = None) -> None:
        """Copy the last commit to a folder elsewhere, in the place of an earlier copy.

        Nothing has to be persisted for the knowledge base itself to last. Raises ConfigError where something else is
        at the path.
        """
        fs, path = copies.resolved(persist_path, fs)
        if copies.local(fs, path) != self._base.path.resolve():
            copies.put(self._base.path, fs, path)

    def reload(self) -> bool:
        """See what other processes have committed since; whether there was anything."""
        return self._base.reload()

    def close(self) -> None:
        """Let other processes write. Reading goes on, and a further change takes the lock again."""
        self._base.close()

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """`add` in a worker thread."""
        return await _apart(partial(self.add, nodes, **kwargs))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """`delete` in a worker thread."""
        await _apart(partial(self.delete, ref_doc_id, **delete_kwargs))

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """`get_nodes` in a worker thread."""
        return await _apart(partial(self.get_nodes, node_ids, filters))

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """`delete_nodes` in a worker thread."""
        await _apart(partial(self.delete_nodes, node_ids, filters, **delete_kwargs))

    async def aclear(self) -> None:
        """`clear` in a worker thread."""
        await _apart(self.clear)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """`query` in a worker thread."""
        return await _apart(partial(self.query, query, **kwargs))

    def _channels(self) -> Mapping[str, Leaf]:
        """The channels over the present chunks, both of one commit."""
        view = self._base.view()
        if self._searched[0] is not view.snapshot:
            self._searched = view.snapshot, {"bm25": view.bm25(), "dense": view.dense()}
        return self._searched[1]

    def _chunks(self, node_ids: Sequence[str] | None, where: Filter | None) -> list[Chunk]:
        if node_ids is not None:
            passes = compile_filter(where)
            return [chunk for chunk in self._base.get(node_ids).values() if passes(chunk.metadata)]
        snapshot = self._base.view().snapshot
        found = (snapshot.get(chunk_id) for chunk_id in sorted(snapshot.matching(where or {})))
        return [chunk for chunk in found if chunk is not None]

    def __repr__(self) -> str:
        return f"HybridVectorStore({self._base!r})"

    __str__ = __repr__


def _entry(base: KnowledgeBase) -> EmbedderEntry:
    """What is known of the model that made a base's vectors; ConfigError where it keeps none."""
    if base.manifest.embedder is None:
        raise ConfigError(
            f"knowledge base {base.name!r} was created without an embedder and keeps no vectors: index the documents "
            "into a new one, HybridVectorStore.open(name, embed_model=...)"
        )
    return base.manifest.embedder


def _known(folder: Path, embed_model: BaseEmbedding | Embedder | str | None) -> Embedder | None:
    """The embedder of a base that is there; IncompatibleIndexError where another is given."""
    entry = manifest.read(folder).embedder
    given = None if embed_model is None else as_embedder(embed_model)
    if given is not None:
        embedding.check(entry, given, folder.name)
    return None if entry is None else NamedEmbedder(entry, folder.name, given)


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"HybridVectorStore takes no {', '.join(map(repr, options))} here")


async def _apart(function: Callable[[], T]) -> T:
    return await adrive(in_thread("HybridVectorStore", function))
