"""Keyword search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from typing_extensions import Unpack

from voicevault_retrievers.adapters.keyword_copy import KeywordCopy, refreshed
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.convert import NodeChunk, chunk_of, chunks_of, document_of, restored, stored
from voicevault_retrievers.llama_index.listing import copied
from voicevault_retrievers.llama_index.options import LoneOptions, RetrieverOptions, refuse
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import saved_index
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text import Analyzer

A = TypeVar("A")
K = TypeVar("K", bound="BM25Retriever")


class NodesOptions(LoneOptions, total=False):
    """What `BM25Retriever.from_nodes` takes by name."""

    language: str | None
    formula: Formula | str
    analyzer: AnyAnalyzer | None


class BM25Retriever(PipelineRetriever):
    """Keyword search: nodes that share a term with the query, and no others.

    Scores are BM25's, unbounded, higher is better. `timeout` bounds a search in seconds; `on_error` "skip" keeps what
    was found where a postprocessor fails, "raise" raises its error. `options` are those of `PipelineRetriever`: k or
    similarity_top_k (5), where, require, node_postprocessors, callback_manager, object_map, objects, verbose.

    Adding and deleting change what `bm25` holds in memory, for every retriever over it; a search sees all of a change
    or nothing. Only `persist` writes. They raise ConfigError where `bm25` is a channel of another class.
    """

    def __init__(
        self,
        bm25: Channel,
        *,
        timeout: float | None = None,
        on_error: OnError = "skip",
        **options: Unpack[RetrieverOptions],
    ) -> None:
        super().__init__(Pipeline(bm25, timeout=timeout, on_error=on_error), **options)
        self.bm25 = bm25
        self.timeout = timeout
        self.on_error = on_error

    @classmethod
    def from_nodes(
        cls: type[K],
        nodes: Sequence[BaseNode],
        *,
        language: str | None = "auto",
        formula: Formula | str = "lucene",
        analyzer: AnyAnalyzer | None = None,
        **options: Unpack[LoneOptions],
    ) -> K:
        """Search over nodes held in memory.

        `language` is that of their stemmer and stopwords: "auto" finds each node's, an ISO 639-1 code is that of all,
        None is for neither. `analyzer` makes the terms in its place.
        """
        refuse(cls, options, cls.from_nodes)
        return cls(BM25.from_chunks(chunks_of(nodes), analyzer_of(language, analyzer), formula=formula), **options)

    @classmethod
    async def afrom_nodes(cls: type[K], nodes: Sequence[BaseNode], **options: Unpack[NodesOptions]) -> K:
        """`from_nodes` in a worker thread."""
        return await aexecute(in_thread("from_nodes", partial(cls.from_nodes, nodes, **options)))

    @classmethod
    def from_defaults(cls: type[K], nodes: Sequence[BaseNode], **options: Unpack[NodesOptions]) -> K:
        """`from_nodes` under the name that LlamaIndex's own BM25Retriever has for it."""
        return cls.from_nodes(nodes, **options)

    @classmethod
    def from_vector_store(
        cls: type[K],
        source: VectorStoreIndex | BasePydanticVectorStore,
        *,
        docstore: BaseDocumentStore | None = None,
        **options: Unpack[NodesOptions],
    ) -> K:
        """Search over the nodes whose vectors a store or an index holds, so that ids agree with vector search's.

        They are those that the store lists, else those of the index's `docstore`, or of the one given, whose ids are
        checked (see `nodes_of`). Index nodes lead where those of the index do. `options` as of `from_nodes`.

        The store is followed: each search looks its hits up there, so that none is deleted, or of an old text or
        metadata. What is added to an index over a docstore is found at once, what is added to a store that lists its
        nodes after `refresh`. A store that does not look up by id is not followed, and a warning says so.
        """
        known = source._object_map if isinstance(source, VectorStoreIndex) else {}
        options["object_map"] = {**known, **(options.get("object_map") or {})}
        refuse(cls, options, cls.from_nodes)
        chosen = analyzer_of(options.pop("language", "auto"), options.pop("analyzer", None))
        bm25 = KeywordCopy.of(*copied(source, docstore), chosen, formula=options.pop("formula", "lucene"))
        return cls(bm25, **options)  # type: ignore[misc]  # what is left are LoneOptions

    @classmethod
    async def afrom_vector_store(
        cls: type[K],
        source: VectorStoreIndex | BasePydanticVectorStore,
        *,
        docstore: BaseDocumentStore | None = None,
        **options: Unpack[NodesOptions],
    ) -> K:
        """`from_vector_store` in a worker thread."""
        making = partial(cls.from_vector_store, source, docstore=docstore, **options)
        return await aexecute(in_thread("from_vector_store", making))

    @classmethod
    def from_persist_dir(
        cls: type[K], path: str | Path, *, analyzer: SavedAnalyzer | None = None, **options: Unpack[LoneOptions]
    ) -> K:
        """Search over what `persist` wrote, with the same scores; `options` (k, where, ...) are not kept there.

        `analyzer` is the one it was built with, where that was a CustomAnalyzer. Raises ConfigError where nothing was
        persisted, IncompatibleIndexError where it was by a newer version or with another analyzer.
        """
        return cls(saved_index.load(path, analyzer, restored), **options)

    def add(self, nodes: Iterable[BaseNode]) -> list[str]:
        """Add nodes, found at once; one whose id is here already takes the other's place. The id of each."""
        chunks = [chunk_of(node) for node in nodes]
        self._index().add(chunks)
        return [chunk.id for chunk in chunks]

    async def aadd(self, nodes: Iterable[BaseNode]) -> list[str]:
        """`add` in a worker thread."""
        return await aexecute(in_thread("add", partial(self.add, nodes)))

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes; how many were here."""
        return self._index().delete(node_ids)

    async def adelete(self, node_ids: Iterable[str]) -> int:
        """`delete` in a worker thread."""
        return await aexecute(in_thread("delete", partial(self.delete, node_ids)))

    def delete_ref_doc(self, ref_doc_id: str) -> int:
        """Delete the nodes of a document; how many they were. Reads every node."""
        bm25 = self._index()
        return bm25.delete([c.id for c in saved_index.live_chunks(bm25.index) if _ref_doc_id(c) == ref_doc_id])

    async def adelete_ref_doc(self, ref_doc_id: str) -> int:
        """`delete_ref_doc` in a worker thread."""
        return await aexecute(in_thread("delete_ref_doc", partial(self.delete_ref_doc, ref_doc_id)))

    def persist(self, path: str | Path) -> None:
        """Make a folder hold what is searched now; a folder from before is brought up to date.

        Of a store that is followed, what it holds now is kept, and the folder follows it no more. It is a knowledge
        base without vectors, with the formula beside it. Raises ConfigError where the folder holds something else, or
        where the terms are made by a function without a name (see CustomAnalyzer), metadata is not JSON's, or a node of
        a class of its own; IncompatibleIndexError where the folder is of another analyzer.
        """
        refreshed(self.bm25)
        saved_index.save(self._index(), path, stored)

    async def apersist(self, path: str | Path) -> None:
        """`persist` in a worker thread."""
        await aexecute(in_thread("persist", partial(self.persist, path)))

    def _index(self) -> BM25:
        if not isinstance(self.bm25, BM25):
            raise ConfigError(f"only a BM25 can be changed and persisted; this retriever searches {self.bm25!r}")
        return self.bm25

    def _recipe(self) -> dict[str, Any]:
        return {"bm25": self.bm25, "timeout": self.timeout, "on_error": None if self.on_error == "skip" else "raise"}


def analyzer_of(language: str | None, analyzer: A | None) -> A | Analyzer:
    """The analyzer that is given, else that of a language; ConfigError where both say what the terms are."""
    if analyzer is not None and language != "auto":
        raise ConfigError("language and analyzer both say what the terms are: give one of them")
    return Analyzer(language) if analyzer is None else analyzer


def _ref_doc_id(chunk: Chunk) -> str | None:
    """The document of a node; the parent of a chunk that was not made from one."""
    node = chunk.node if isinstance(chunk, NodeChunk) else None
    return chunk.parent_id if node is None else document_of(node)
