"""Vector search and hybrid search as LangChain retrievers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.documents import Document
from langchain_core.retrievers import LangSmithRetrieverParams
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import ConfigurableFieldSpec, get_unique_config_specs
from langchain_core.vectorstores import VectorStore
from pydantic import Field, PrivateAttr

from voicevault_retrievers.channel import Channel
from voicevault_retrievers.dense.exact import ExactVectors, VectorChannel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.bm25 import analyzer_of
from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.langchain.composed import ComposedRetriever
from voicevault_retrievers.langchain.convert import chunks_of
from voicevault_retrievers.langchain.embedder import as_embedder, model_of
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.pipeline import Pipeline
from voicevault_retrievers.protocols import VectorIndex
from voicevault_retrievers.store import Bases, KnowledgeBase

V = TypeVar("V", bound="VectorRetriever")
H = TypeVar("H", bound="HybridRetriever")


class VectorRetriever(PipelineRetriever):
    """Search by the similarity of vectors, in a LangChain `vectorstore`, or in an `index` of this package.

    Scores are cosines, in (0, 1], higher is nearer; those of a vector store see `VectorStoreChannel`. `embeddings`
    embed the questions for an index: LangChain Embeddings, an Embedder, or None for all-MiniLM-L6-v2.
    """

    vectorstore: VectorStore | None = None
    index: VectorIndex | None = None
    embeddings: Any = None

    @classmethod
    def from_documents(cls: type[V], documents: Iterable[Document], embeddings: Any = None, **options: Any) -> V:
        """Exact search over documents held in memory; embeds them now. A document given twice is one."""
        embedder = as_embedder(embeddings)
        return cls(
            index=ExactVectors.build(chunks_of(documents), embedder),
            embeddings=embedder if embeddings is None else embeddings,
            **options,
        )

    def _check(self) -> None:
        super()._check()
        if (self.vectorstore is None) == (self.index is None):
            raise ConfigError("a VectorRetriever searches either a vectorstore or an index: give one of them")
        if self.vectorstore is not None and self.embeddings is not None:
            raise ConfigError("a vectorstore has its own embeddings; those given would not be used")

    def _build(self) -> Pipeline:
        return Pipeline(self._channel(), on_error=self.on_error)

    def _channel(self) -> Channel:
        if self.index is not None:
            return VectorChannel(self.index, as_embedder(self.embeddings), timeout=self.timeout)
        return as_channel(self.vectorstore, timeout=self.timeout)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        embeddings = self.embeddings if self.vectorstore is None else self.vectorstore.embeddings
        params["ls_vector_store_provider"] = type(self.index if self.vectorstore is None else self.vectorstore).__name__
        if embeddings is not None:
            params["ls_embedding_provider"] = type(embeddings).__name__
            params["ls_embedding_model"] = model_of(embeddings)
        return params


class HybridRetriever(ComposedRetriever):
    """Hybrid search of knowledge bases, or of channels of any kind; how they are fused see `ComposedRetriever`.

    It searches the knowledge bases `kb_names`, by name under `root`, by path or open (channels `bm25` and `dense`;
    `embeddings` where theirs cannot be loaded by name), or `channels`, by name: each a Channel, a retriever, any
    runnable that gives documents, or a vector store.
    """

    kb_names: Sequence[str | Path | KnowledgeBase] = Field(default_factory=list)
    root: str | Path | None = None
    embeddings: Any = None
    channels: dict[str, Any] = Field(default_factory=dict)
    _bases: Bases | None = PrivateAttr(None)

    @classmethod
    def from_documents(
        cls: type[H],
        documents: Iterable[Document],
        embeddings: Any = None,
        *,
        language: str | None = "auto",
        formula: Formula | str = "lucene",
        analyzer: AnyAnalyzer | None = None,
        **options: Any,
    ) -> H:
        """BM25 (`bm25`) and exact vector search (`dense`) over documents held in memory; embeds them now.

        `embeddings` are LangChain Embeddings, an Embedder, or None for all-MiniLM-L6-v2. `language` is that of the
        stemmer and stopwords ("auto" finds each document's, None is for neither); `analyzer` makes the terms in its
        place. A document given twice is one.
        """
        chunks = chunks_of(documents)
        channels = {
            "bm25": BM25.from_chunks(chunks, analyzer_of(language, analyzer), formula=formula),
            "dense": VectorChannel.from_chunks(chunks, as_embedder(embeddings)),
        }
        return cls(channels=channels, **options)

    def reload(self) -> bool:
        """See what was committed to the knowledge bases, or which were created, since; whether there was anything."""
        changed = self._bases is not None and self._bases.reload()
        if changed and self._bases is not None:
            self._keep(self._over_base(self._bases))
        return changed

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What its channels can be configured with, as `config={"configurable": {...}}`."""
        parts = [part for part in self.channels.values() if isinstance(part, Runnable)]
        return get_unique_config_specs(spec for part in parts for spec in part.config_specs)

    def _check(self) -> None:
        super()._check()
        if bool(self.kb_names) == bool(self.channels):
            raise ConfigError("a HybridRetriever searches either kb_names or channels: give one of them")
        if self.channels and (self.embeddings is not None or self.root is not None):
            raise ConfigError("embeddings and root are for kb_names; with channels they would not be used")
        if self.channels:
            self._built()

    def _build(self) -> Pipeline:
        if self.channels:
            return self._over({name: as_channel(part) for name, part in self.channels.items()})
        embedder = None if self.embeddings is None else as_embedder(self.embeddings)
        self._bases = Bases(self.kb_names, root=self.root, embedder=embedder)
        return self._over_base(self._bases)
