"""Keyword search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode
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
from voicevault_retrievers.lexical.reading import Fuzzy
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.convert import NodeChunk, chunks_of, document_of, kept_chunk_of, restored, stored
from voicevault_retrievers.llama_index.listing import copied
from voicevault_retrievers.llama_index.options import LoneOptions, RetrieverOptions, mode_in, mode_of, refuse
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.store import saved_index
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text import Analyzer

A = TypeVar("A")
K = TypeVar("K", bound="BM25Retriever")
_SCORING = ("formula", "operators", "fuzzy")


class NodesOptions(LoneOptions, total=False):
    """The keyword arguments of `BM25Retriever.from_nodes`."""

    language: str | None
    formula: Formula | str
    analyzer: AnyAnalyzer | None
    operators: bool
    fuzzy: bool | Fuzzy


class BM25Retriever(PipelineRetriever):
    """Keyword search: returns the nodes that share a term with the query, and no others.

    Scores are BM25 scores: unbounded, higher is better. `timeout` bounds a search, in seconds. When a postprocessor
    fails, `on_error` "skip" keeps the nodes found so far, "raise" raises its error. `metadata_mode` says which metadata
    are indexed before a node's text: by default those that LlamaIndex embeds. `options` are those of
    `PipelineRetriever`: k or similarity_top_k (5), where, require, node_postprocessors, callback_manager, object_map,
    objects, verbose.

    Adding and deleting change `bm25` in memory, for every retriever that shares it. A search sees either all of a
    change or none of it. Only `persist` writes to disk. These methods raise ConfigError where `bm25` is another kind of
    channel.
    """

    def __init__(
        self,
        bm25: Channel,
        *,
        timeout: float | None = None,
        on_error: OnError = "skip",
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        **options: Unpack[RetrieverOptions],
    ) -> None:
        super().__init__(Pipeline(bm25, timeout=timeout, on_error=on_error), **options)
        self.bm25 = bm25
        self.metadata_mode = mode_of(metadata_mode)
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
        operators: bool = False,
        fuzzy: bool | Fuzzy = False,
        **options: Unpack[LoneOptions],
    ) -> K:
        """A retriever over nodes held in memory.

        `language` chooses the stemmer and the stopwords: "auto" detects each node's language, an ISO 639-1 code holds
        for all nodes, None uses neither. `analyzer` makes the terms instead. `formula`, `operators` and `fuzzy` are
        those of `BM25`.
        """
        refuse(cls, options, cls.from_nodes)
        chunks = chunks_of(nodes, mode_in(options))
        scoring: dict[str, Any] = {"formula": formula, "operators": operators, "fuzzy": fuzzy}
        return cls(BM25.from_chunks(chunks, analyzer_of(language, analyzer), **scoring), **options)

    @classmethod
    async def afrom_nodes(cls: type[K], nodes: Sequence[BaseNode], **options: Unpack[NodesOptions]) -> K:
        """`from_nodes` in a worker thread."""
        return await aexecute(in_thread("from_nodes", partial(cls.from_nodes, nodes, **options)))

    @classmethod
    def from_defaults(cls: type[K], nodes: Sequence[BaseNode], **options: Unpack[NodesOptions]) -> K:
        """`from_nodes` under the name that LlamaIndex's own BM25Retriever uses."""
        return cls.from_nodes(nodes, **options)

    @classmethod
    def from_vector_store(
        cls: type[K],
        source: VectorStoreIndex | BasePydanticVectorStore,
        *,
        docstore: BaseDocumentStore | None = None,
        **options: Unpack[NodesOptions],
    ) -> K:
        """A retriever over a copy of the nodes whose vectors a store or an index holds, under the ids of vector search.

        The nodes are those that the store lists, else those of the index's `docstore`, or of the given one, whose ids
        are checked (see `nodes_of`). Index nodes point to the same objects as in the index. `options` are as in
        `from_nodes`.

        The copy follows the store: each search looks up its hits in the store, so that it returns no deleted node and
        no outdated text or metadata. Nodes added to an index over a docstore are found at once; nodes added to a store
        that lists its nodes are found after `refresh`. A store that has no lookup by id is not followed, and a warning
        says so.
        """
        known = source._object_map if isinstance(source, VectorStoreIndex) else {}
        options["object_map"] = {**known, **(options.get("object_map") or {})}
        refuse(cls, options, cls.from_nodes)
        chosen = analyzer_of(options.pop("language", "auto"), options.pop("analyzer", None))
        scoring = {name: options.pop(name) for name in _SCORING if name in options}  # type: ignore[misc]  # of these keys
        bm25 = KeywordCopy.of(*copied(source, docstore, mode_in(options)), chosen, **scoring)
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
        """A retriever over what `persist` wrote, with the same scores; `options` (k, where, ...) are not saved.

        `analyzer` is the analyzer that the index was built with, where that was a CustomAnalyzer. Raises ConfigError
        where the folder holds no index, IncompatibleIndexError where a newer version or another analyzer wrote it.
        """
        return cls(saved_index.load(path, analyzer, restored), **options)

    def add(self, nodes: Iterable[BaseNode]) -> list[str]:
        """Add nodes and return their ids. A node replaces the one with the same id; searches find it at once."""
        chunks = [kept_chunk_of(node, self.metadata_mode) for node in nodes]
        self._index().add(chunks)
        return [chunk.id for chunk in chunks]

    async def aadd(self, nodes: Iterable[BaseNode]) -> list[str]:
        """`add` in a worker thread."""
        return await aexecute(in_thread("add", partial(self.add, nodes)))

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id. Returns how many were present."""
        return self._index().delete(node_ids)

    async def adelete(self, node_ids: Iterable[str]) -> int:
        """`delete` in a worker thread."""
        return await aexecute(in_thread("delete", partial(self.delete, node_ids)))

    def delete_ref_doc(self, ref_doc_id: str) -> int:
        """Delete the nodes of a document. Returns how many there were. Reads every node."""
        bm25 = self._index()
        return bm25.delete([c.id for c in saved_index.live_chunks(bm25.index) if _ref_doc_id(c) == ref_doc_id])

    async def adelete_ref_doc(self, ref_doc_id: str) -> int:
        """`delete_ref_doc` in a worker thread."""
        return await aexecute(in_thread("delete_ref_doc", partial(self.delete_ref_doc, ref_doc_id)))

    def persist(self, path: str | Path) -> None:
        """Write the current index to a folder; a folder written before is updated.

        Of a store that is followed, the current nodes are saved, and the saved index no longer follows the store. The
        folder is a knowledge base without vectors, with the formula beside it. Raises ConfigError where the folder
        holds something else, where the analyzer uses a function without a name (see CustomAnalyzer), where metadata is
        not JSON, or for a node of a custom class; IncompatibleIndexError where another analyzer wrote the folder.
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
    """The given analyzer, else the language's; ConfigError where both choose the terms."""
    if analyzer is not None and language != "auto":
        raise ConfigError("language and analyzer both say what the terms are: give one of them")
    return Analyzer(language) if analyzer is None else analyzer


def _ref_doc_id(chunk: Chunk) -> str | None:
    """The id of a node's document; the parent id of a chunk that was not made from a node."""
    node = chunk.node if isinstance(chunk, NodeChunk) else None
    return chunk.parent_id if node is None else document_of(node)
