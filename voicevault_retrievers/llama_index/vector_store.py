"""Hybrid search as a LlamaIndex vector store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
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

from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.errors import ConfigError, IndexDamagedError
from voicevault_retrievers.fusion import Method
from voicevault_retrievers.llama_index import copies
from voicevault_retrievers.llama_index.bm25 import analyzer_of
from voicevault_retrievers.llama_index.copies import FileSystem
from voicevault_retrievers.llama_index.external_vectors import DENSE, Calling, OwnVectors, WrappedVectors
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.llama_index.hybrid_nodes import HybridNodes
from voicevault_retrievers.llama_index.models import NamedEmbedder, as_embedder
from voicevault_retrievers.store import KnowledgeBase, embedding, manifest
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.names import locate, vacant

S = TypeVar("S", bound="HybridVectorStore")

_HERE, _APART = Calling(inline=True), Calling(inline=False)


class HybridVectorStore(BasePydanticVectorStore):
    """Nodes in a knowledge base on disk, found by their vectors, by keywords, or by both.

    Nodes and queries come with their embeddings, as an index or an ingestion pipeline makes them; nothing is embedded
    here. Every change is one commit, which the next search sees. The first change takes the writer's lock, `close`
    gives it back. Nodes come back whole, without their embedding, and `provenance` says how they were found.

    The vectors are in the knowledge base, or in `dense`, any other vector store, beside a base that keeps none. That
    base is the truth: what the store holds besides is not found. Nodes go to the store first, and from it last: a
    change that is cut off leaves too much there, and making it again mends that.

    Modes of a query: `default` is by vectors (scores are cosines, in (0, 1], or those of `dense` where they fall with
    its order, else none), `sparse` and `text_search` by keywords (BM25's, above 0), `hybrid` fuses both. `alpha` is the
    weight of vectors there, 0.5 unless given: 0 is keywords alone, 1 vectors alone. Only what matched is returned, at
    most `similarity_top_k`; instead of that, `hybrid_top_k` counts in `hybrid`, and `sparse_top_k` in `sparse` and
    `text_search`. In `hybrid` each side gives 100 candidates, or `similarity_top_k` where that is more; keywords
    `sparse_top_k`, where it is given. `fusion` is AdaptiveSum() unless given.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    flat_metadata: bool = False
    _base: KnowledgeBase = PrivateAttr()
    _dense: BasePydanticVectorStore | None = PrivateAttr()
    _kept: HybridNodes = PrivateAttr()

    def __init__(
        self, base: KnowledgeBase, *, dense: BasePydanticVectorStore | None = None, fusion: Method | None = None
    ) -> None:
        super().__init__()  # type: ignore[call-arg]  # mypy overlooks that stores_text has a default here
        if not isinstance(base, KnowledgeBase):
            raise ConfigError(f"expected a KnowledgeBase, not {base!r}; a base is opened by name: open(name)")
        _check_store(dense)
        self._base = base
        self._dense = dense
        self._kept = HybridNodes(base, OwnVectors(base) if dense is None else WrappedVectors(dense, base), fusion)

    @classmethod
    def open(
        cls: type[S],
        base: str | Path,
        *,
        dense: BasePydanticVectorStore | None = None,
        root: str | Path | None = None,
        embed_model: BaseEmbedding | Embedder | str | None = None,
        language: str | None = "auto",
        analyzer: SavedAnalyzer | None = None,
        fusion: Method | None = None,
        **options: Any,
    ) -> S:
        """Open a knowledge base, a name under `root` or a Path, or create it where there is none.

        `dense` is the vector store that keeps the vectors, the same ever after; without one the base does.
        `embed_model`, the one that embeds the nodes, is kept by its name and dimension, and has to be the same ever
        after; None is the base's own, and for a new base as `as_embedder` has it. `language` and `analyzer` are as of
        `BM25Retriever.from_nodes`; by default the base's own. `options` are those of `KnowledgeBase.open_or_create`.
        Raises as that does; ConfigError for a base for keywords only without `dense`, and for one with vectors of its
        own, or an `embed_model`, beside it.
        """
        _check_store(dense)
        if dense is not None and embed_model is not None:
            raise ConfigError("with dense=... the base keeps no vectors, and no embed_model: leave that out")
        folder = locate(base, root)
        chosen: SavedAnalyzer | None = (
            None if (language, analyzer) == ("auto", None) else analyzer_of(language, analyzer)
        )
        embedder = None
        if dense is None:
            embedder = as_embedder(embed_model) if vacant(folder) else _known(folder, embed_model)
        opened = KnowledgeBase.open_or_create(folder, analyzer=chosen, embedder=embedder, **options)
        return cls(opened, dense=dense, fusion=fusion)

    @classmethod
    async def aopen(cls: type[S], base: str | Path, **options: Any) -> S:
        """`open` in a worker thread; an embedding model that is async is awaited."""
        return await aexecute(in_thread("open", partial(cls.open, base, **options)))

    @classmethod
    def from_persist_path(
        cls: type[S],
        persist_path: str | Path,
        fs: FileSystem | None = None,
        *,
        dense: BasePydanticVectorStore | type[BasePydanticVectorStore] | None = None,
        **options: Any,
    ) -> S:
        """Open what `persist` wrote; `options` are those of `open`.

        On this machine's disk it is opened where it is, and changes are made there. From elsewhere it is copied to a
        temporary folder, which goes with the store, and every file is checked: changes are kept by persisting it again.
        A `dense` that is a class, such as SimpleVectorStore, loads what was persisted beside the base. Raises
        ConfigError where there is nothing, IndexDamagedError for a copy that is not as it was written.
        """
        fs, path = copies.resolved(persist_path, fs)
        if isinstance(dense, type):
            loading: Any = dense
            dense = loading.from_persist_path(f"{path}{DENSE}", fs=fs)
        options["dense"] = dense
        folder = copies.local(fs, path)
        if folder is not None and not vacant(folder):
            return cls.open(folder, **options)
        above = Path(tempfile.mkdtemp())
        try:
            copies.fetch(fs, path, above / "copy")
            store = cls.open(above / "copy", **options)
            if wrong := store._base.verify():
                raise IndexDamagedError(f"the copy at {path} is damaged: {'; '.join(wrong)}")
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

    @property
    def dense(self) -> BasePydanticVectorStore | None:
        """The vector store that keeps the vectors; None where the base does."""
        return self._dense

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, all in one commit; the id of each.

        One whose id is here already takes the other's place; where it differs in its embedding alone, that stays as it
        was in a base with vectors of its own. Raises ConfigError, naming the node, where an embedding is missing or
        does not fit, or a node cannot be kept.
        """
        _refuse(kwargs)
        return execute(self._kept.adding(nodes, _HERE))

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document; a node without one is its own."""
        _refuse(delete_kwargs)
        execute(self._kept.forgetting(ref_doc_id, _HERE))

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes of these ids, in their order, that pass the filters; without ids all that do, by ascending id."""
        return self._kept.nodes(node_ids, filter_of(filters))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes of these ids that pass the filters; without ids all that do. ConfigError without either."""
        _refuse(delete_kwargs)
        execute(self._kept.deleting(node_ids, filter_of(filters), _HERE))

    def clear(self) -> None:
        """Delete all nodes."""
        execute(self._kept.clearing(_HERE))

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes that match best, their scores (None where there are none) and ids.

        `filters` and `doc_ids` are applied before ranking, and so are `node_ids` where there are any: LlamaIndex's
        indexes ask for the IndexNodes and ImageNodes alone that they were given, one of `from_vector_store` for all.
        `dense` is given what it can say of them (see `store_filters`), what it finds is checked, and while too few pass
        it is asked for more; where that has an end, a warning is logged and the nodes say `degraded`. Raises
        ConfigError for another mode, or a query without the embedding or text that its mode searches for.
        """
        _refuse(kwargs)
        return execute(self._kept.querying(query, _HERE))

    def persist(self, persist_path: str | Path, fs: FileSystem | None = None) -> None:
        """Copy the last commit to a folder elsewhere, in the place of an earlier copy.

        Nothing has to be persisted for the knowledge base itself to last. What `dense` persists, where it does, goes
        beside it, to the path with `.dense` behind it. Raises ConfigError where something else is at the path.
        """
        fs, path = copies.resolved(persist_path, fs)
        self._kept.vectors.persist(fs, path)
        if copies.local(fs, path) != self._base.path.resolve():
            copies.put(self._base.path, fs, path)

    def reload(self) -> bool:
        """See what other processes have committed since; whether there was anything."""
        return self._base.reload()

    def close(self) -> None:
        """Let other processes write. Reading goes on, and a further change takes the lock again."""
        self._base.close()

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """`add`, apart from the event loop; an async one of `dense` is awaited, here and below."""
        _refuse(kwargs)
        return await aexecute(self._kept.adding(nodes, _APART))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """`delete`, apart from the event loop."""
        _refuse(delete_kwargs)
        await aexecute(self._kept.forgetting(ref_doc_id, _APART))

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """`get_nodes` in a worker thread."""
        return await aexecute(_APART(partial(self.get_nodes, node_ids, filters)))

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """`delete_nodes`, apart from the event loop."""
        _refuse(delete_kwargs)
        await aexecute(self._kept.deleting(node_ids, filter_of(filters), _APART))

    async def aclear(self) -> None:
        """`clear`, apart from the event loop."""
        await aexecute(self._kept.clearing(_APART))

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """`query`, apart from the event loop."""
        _refuse(kwargs)
        return await aexecute(self._kept.querying(query, _APART))

    def __repr__(self) -> str:
        beside = "" if self._dense is None else f", dense={type(self._dense).__name__}"
        return f"HybridVectorStore({self._base!r}{beside})"

    __str__ = __repr__


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


def _check_store(dense: object) -> None:
    if not isinstance(dense, BasePydanticVectorStore | None):
        raise ConfigError(f"dense is a vector store of LlamaIndex, not a {type(dense).__name__}")
