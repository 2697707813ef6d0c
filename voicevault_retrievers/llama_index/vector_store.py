"""Hybrid search as a LlamaIndex vector store."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, NAMESPACE_SEP
from llama_index.core.vector_stores.types import (
    DEFAULT_PERSIST_DIR,
    DEFAULT_PERSIST_FNAME,
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from voicevault_retrievers._support.foreign_options import check_options, checks_options
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.errors import ConfigError, IndexDamagedError
from voicevault_retrievers.fusion import Method
from voicevault_retrievers.fusion.methods import method_of
from voicevault_retrievers.llama_index import copies
from voicevault_retrievers.llama_index.bm25 import analyzer_of
from voicevault_retrievers.llama_index.copies import FileSystem
from voicevault_retrievers.llama_index.external_vectors import DENSE, Calling, OwnVectors, WrappedVectors
from voicevault_retrievers.llama_index.filters import filter_of
from voicevault_retrievers.llama_index.hybrid_nodes import HybridNodes
from voicevault_retrievers.llama_index.models import NamedEmbedder, as_embedder
from voicevault_retrievers.llama_index.options import mode_in, mode_of
from voicevault_retrievers.store import KnowledgeBase, embedding, manifest
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.names import existing, locate, vacant

S = TypeVar("S", bound="HybridVectorStore")

_HERE, _APART = Calling(inline=True), Calling(inline=False)


class HybridVectorStore(BasePydanticVectorStore):
    """A vector store over a knowledge base on disk, searched by vectors, by keywords, or by both.

    Nodes and queries bring their embeddings, as an index or an ingestion pipeline makes them: the store embeds nothing.
    Every change is one commit, which the next search sees. The first change takes the writer's lock, `close` releases
    it. Nodes come back whole, without their embedding, and `provenance` says how they were found.

    The vectors are in the knowledge base, or in `dense`, any other vector store, beside a base without vectors. That
    base decides which nodes exist: others in `dense` are not found. Nodes are added to `dense` first and deleted from
    it last. An interrupted change therefore leaves too many nodes in `dense`, and repeating the change repairs it.

    The modes of a query are `default`, by vectors (scores are cosines, in (0, 1], or those of `dense` where they fall
    with its order, else none); `mmr`, also by vectors, which takes next what is near the query and unlike what was
    taken (scores are marginal relevances); `sparse` and `text_search`, by keywords (BM25 scores, above 0); and
    `hybrid`, which fuses keywords and vectors. `alpha` is the weight of vectors in `hybrid`, 0.5 by default: 0 is
    keywords alone, 1 vectors alone. `mmr_threshold` is the weight of the cosine with the query in `mmr`, 0.5 by
    default: 1 is the order of `default`. `mmr` orders the 100 nearest nodes, and needs the vectors in the knowledge
    base. A query returns only nodes that matched, at most `similarity_top_k`; `hybrid_top_k` replaces that number in
    `hybrid`, and `sparse_top_k` in `sparse` and `text_search`. In `hybrid` each channel contributes 100 candidates, or
    the larger of `similarity_top_k` and `sparse_top_k` where that is more; keywords contribute at most `sparse_top_k`,
    where it is given. `fusion` is AdaptiveSum() by default. `metadata_mode` says which metadata are indexed before a
    node's text: by default those that LlamaIndex embeds.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    flat_metadata: bool = False
    _base: KnowledgeBase = PrivateAttr()
    _dense: BasePydanticVectorStore | None = PrivateAttr()
    _kept: HybridNodes = PrivateAttr()

    @checks_options
    def __init__(
        self,
        base: KnowledgeBase,
        *,
        dense: BasePydanticVectorStore | None = None,
        fusion: Method | None = None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
    ) -> None:
        super().__init__()  # type: ignore[call-arg]  # mypy overlooks that stores_text has a default here
        if not isinstance(base, KnowledgeBase):
            raise ConfigError(
                f"expected a KnowledgeBase, not {base!r}; a base is opened by name: open(name); an engine is searched "
                "by HybridRetriever(kb_names=[...])"
            )
        _check_store(dense)
        self._base = base
        self._dense = dense
        vectors = OwnVectors(base) if dense is None else WrappedVectors(dense, base)
        self._kept = HybridNodes(base, vectors, method_of(fusion), mode_of(metadata_mode))

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
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        **options: Any,
    ) -> S:
        """Open the knowledge base that a name under `root`, or a Path, stands for; create it where there is none.

        `dense` is the vector store that keeps the vectors, and must be the same each time; without it the base keeps
        them. `embed_model` is the model that embeds the nodes. The base stores its name and dimension, and it must be
        the same each time; None is the base's own, and for a new base as in `as_embedder`. `language` and `analyzer`
        are as in `BM25Retriever.from_nodes`; by default the base's own. `options` are those of
        `KnowledgeBase.open_or_create`. Raises as that does; ConfigError for a keyword-only base without `dense`, and
        for `dense` with a base that has vectors or with an `embed_model`.
        """
        check_options(cls.__name__, options, KnowledgeBase.open_or_create, cls.open)
        mode = mode_of(metadata_mode)
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
        return cls(opened, dense=dense, fusion=fusion, metadata_mode=mode)

    @classmethod
    async def aopen(cls: type[S], base: str | Path, **options: Any) -> S:
        """`open` in a worker thread; an async embedding model is awaited."""
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

        A copy on the local disk is opened in place, and changes are made there. A copy from elsewhere is downloaded to
        a temporary folder, which is deleted with the store, and every file is checked; persist again to keep changes. A
        `dense` that is a class, such as SimpleVectorStore, loads what was persisted beside the base. Raises ConfigError
        where there is nothing, IndexDamagedError for a damaged copy.
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
        """Open what `StorageContext.persist` wrote to a directory; see `from_persist_path`."""
        path = f"{persist_dir}/{namespace}{NAMESPACE_SEP}{DEFAULT_PERSIST_FNAME}"
        return cls.from_persist_path(path, fs, **options)

    @classmethod
    def class_name(cls) -> str:
        return "HybridVectorStore"

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """The path of the base, and the class of `dense` and the fusion where they were given, for `from_dict`."""
        dense, fusion = self._dense, self._kept.fusion
        given = {"dense": dense and type(dense).__name__, "fusion": fusion and repr(fusion)}
        own = {"path": str(self._base.path), "metadata_mode": self._kept.metadata_mode.value}
        return {**super().to_dict(**kwargs), **own, **given}

    @classmethod
    def from_dict(cls: type[S], data: dict[str, Any], **kwargs: Any) -> S:
        """Open the base at the path that `to_dict` wrote; `kwargs` are options of `open`.

        Raises ConfigError where there is no base any more, and where the store had a `dense` or a `fusion` that is not
        given again.
        """
        for name in ("dense", "fusion"):
            if data.get(name) and name not in kwargs:
                raise ConfigError(
                    f"the {cls.__name__} had {name}={data[name]}, which is not in its dict: give it again, "
                    f"from_dict(data, {name}=...)"
                )
        if not isinstance(data.get("path"), str):
            raise ConfigError(f"the dict has no path of a knowledge base: give what {cls.__name__}.to_dict returned")
        return cls.open(existing(Path(data["path"]), None), **{"metadata_mode": mode_in(data), **kwargs})

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled copy opens the base again; ConfigError where the vectors are in `dense`."""
        if self._dense is not None:
            raise ConfigError(
                f"a HybridVectorStore with dense=... is not pickled: a copy of the {type(self._dense).__name__} would "
                "not follow its changes; where the store is needed, open it again, "
                f"HybridVectorStore.open(Path({str(self._base.path)!r}), dense=...)"
            )
        kept = self._kept
        return partial(type(self), fusion=kept.fusion, metadata_mode=kept.metadata_mode), (self._base,)

    def __deepcopy__(self: S, memo: dict[int, Any] | None = None) -> S:
        """A store that opens the base again, over the same `dense`."""
        options: dict[str, Any] = {"fusion": self._kept.fusion, "metadata_mode": self._kept.metadata_mode}
        return type(self)(copy.deepcopy(self._base, memo), dense=self._dense, **options)

    @property
    def client(self) -> KnowledgeBase:
        """The knowledge base."""
        return self._base

    @property
    def dense(self) -> BasePydanticVectorStore | None:
        """The vector store that keeps the vectors; None where the base does."""
        return self._dense

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings in one commit. Returns their ids.

        A node replaces the one with the same id. Raises ConfigError, naming the node, where an embedding is missing or
        does not fit, or where the node cannot be stored.
        """
        _refuse(kwargs)
        return execute(self._kept.adding(nodes, _HERE))

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document; a node without a document is its own."""
        _refuse(delete_kwargs)
        execute(self._kept.forgetting(ref_doc_id, _HERE))

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes with these ids, in their order, that pass the filters; without ids all that pass, sorted by id."""
        return self._kept.nodes(node_ids, filter_of(filters))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes with these ids that pass the filters; without ids all that pass. ConfigError for neither."""
        _refuse(delete_kwargs)
        execute(self._kept.deleting(node_ids, filter_of(filters), _HERE))

    def clear(self) -> None:
        """Delete all nodes."""
        execute(self._kept.clearing(_HERE))

    def query(
        self, query: VectorStoreQuery, *, mmr_threshold: float | None = None, **kwargs: Any
    ) -> VectorStoreQueryResult:
        """Return the nodes that match best, their scores (None where there are none) and ids.

        `filters` and `doc_ids` are applied before ranking, and so are `node_ids` where there are any: LlamaIndex's
        indexes pass the ids of their IndexNodes and ImageNodes alone, an index made by `from_vector_store` passes none,
        which means all nodes. `dense` gets the part of them that it can express (see `store_filters`), its nodes are
        checked, and it is asked for more while too few pass. Where it can return no more, a warning is logged and the
        nodes say `degraded`. Raises ConfigError for another mode, or for a query without the embedding or text that its
        mode needs.
        """
        _refuse(kwargs)
        return execute(self._kept.querying(_diverse(query, mmr_threshold), _HERE))

    def persist(self, persist_path: str | Path, fs: FileSystem | None = None) -> None:
        """Copy the last commit to another folder, replacing an earlier copy.

        The knowledge base itself is on disk already and needs no persisting. What `dense` persists, where it does, goes
        to the same path with the suffix `.dense`. Raises ConfigError where something else is at the path.
        """
        fs, path = copies.resolved(persist_path, fs)
        self._kept.vectors.persist(fs, path)
        if copies.local(fs, path) != self._base.path.resolve():
            copies.put(self._base.path, fs, path)

    def reload(self) -> bool:
        """Read what other processes have committed since. Returns whether there was anything new."""
        return self._base.reload()

    def close(self) -> None:
        """Release the lock, so that other processes can write. Reading goes on; the next change takes it again."""
        self._base.close()

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """`add` off the event loop. As in the methods below, async methods of `dense` are awaited."""
        _refuse(kwargs)
        return await aexecute(self._kept.adding(nodes, _APART))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """`delete` off the event loop."""
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
        """`delete_nodes` off the event loop."""
        _refuse(delete_kwargs)
        await aexecute(self._kept.deleting(node_ids, filter_of(filters), _APART))

    async def aclear(self) -> None:
        """`clear` off the event loop."""
        await aexecute(self._kept.clearing(_APART))

    async def aquery(
        self, query: VectorStoreQuery, *, mmr_threshold: float | None = None, **kwargs: Any
    ) -> VectorStoreQueryResult:
        """`query` off the event loop."""
        _refuse(kwargs)
        return await aexecute(self._kept.querying(_diverse(query, mmr_threshold), _APART))

    def __repr__(self) -> str:
        beside = "" if self._dense is None else f", dense={type(self._dense).__name__}"
        return f"HybridVectorStore({self._base!r}{beside})"

    __str__ = __repr__


def _known(folder: Path, embed_model: BaseEmbedding | Embedder | str | None) -> Embedder | None:
    """The embedder of an existing base; IncompatibleIndexError where another is given."""
    entry = manifest.read(folder).embedder
    given = None if embed_model is None else as_embedder(embed_model)
    if given is not None:
        embedding.check(entry, given, folder.name)
    return None if entry is None else NamedEmbedder(entry, folder.name, given)


def _diverse(query: VectorStoreQuery, mmr_threshold: float | None) -> VectorStoreQuery:
    return query if mmr_threshold is None else replace(query, mmr_threshold=mmr_threshold)


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"HybridVectorStore takes no {', '.join(map(repr, options))} here")


def _check_store(dense: object) -> None:
    if not isinstance(dense, BasePydanticVectorStore | None):
        raise ConfigError(f"dense is a vector store of LlamaIndex, not a {type(dense).__name__}")
