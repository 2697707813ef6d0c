"""Vector search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from typing_extensions import Unpack

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder, VectorIndex
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import MemoryVectors
from voicevault_retrievers.engines.chroma import ChromaVectors
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.channels import as_channel
from voicevault_retrievers.llama_index.convert import chunks_of, stored
from voicevault_retrievers.llama_index.models import as_embedder, store_model
from voicevault_retrievers.llama_index.options import LoneOptions, RetrieverOptions, mode_in, mode_of, refuse
from voicevault_retrievers.pipeline.pipeline import Pipeline

COLLECTION = "voicevault"

V = TypeVar("V", bound="VectorRetriever")


class VectorRetriever(PipelineRetriever):
    """Vector search in an `index` of this package, or in a LlamaIndex index or vector store.

    Scores are cosines, in (0, 1], higher is nearer; LlamaIndex's components have their own scores. `embed_model` embeds
    the queries: LlamaIndex's, this package's, a model's name, or None, see `as_embedder`. For a LlamaIndex vector store
    None is the configured `Settings.embed_model`; a LlamaIndex index has its own model. `timeout` is in seconds. When a
    postprocessor fails, `on_error` "skip" keeps the nodes found so far, "raise" raises its error. `options` are those
    of `PipelineRetriever`: k or similarity_top_k (5), where, require, node_postprocessors, callback_manager,
    object_map, objects, verbose.
    """

    def __init__(
        self,
        index: VectorIndex | BaseIndex[Any] | BasePydanticVectorStore,
        embed_model: BaseEmbedding | Embedder | str | None = None,
        *,
        timeout: float | None = None,
        on_error: OnError = "skip",
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        **options: Unpack[RetrieverOptions],
    ) -> None:
        refuse(type(self), options)
        super().__init__(Pipeline(_channel(index, embed_model, timeout), on_error=on_error), **options)
        self.index = index
        self.embed_model = embed_model
        self.metadata_mode = mode_of(metadata_mode)
        self.timeout = timeout
        self.on_error = on_error

    @classmethod
    def from_nodes(
        cls: type[V],
        nodes: Sequence[BaseNode],
        embed_model: BaseEmbedding | Embedder | str | None = None,
        *,
        persist_dir: str | Path | None = None,
        collection_name: str = COLLECTION,
        **options: Unpack[LoneOptions],
    ) -> V:
        """A retriever over nodes, which are embedded now: exact in memory, or in Chroma in `persist_dir`.

        Equal nodes are indexed once. They are added to a collection that exists already. Raises ConfigError for a node
        that cannot be stored on disk.
        """
        refuse(cls, options, cls.from_nodes)
        embedder = as_embedder(embed_model)
        index: VectorIndex
        if persist_dir is None:
            index = MemoryVectors.build(chunks_of(nodes, mode_in(options)), embedder)
        else:
            index = ChromaVectors.open(persist_dir, collection_name)
            index.add(map(stored, chunks_of(nodes, mode_in(options))), embedder)
        return cls(index, embedder if embed_model is None else embed_model, **options)

    @classmethod
    async def afrom_nodes(
        cls: type[V],
        nodes: Sequence[BaseNode],
        embed_model: BaseEmbedding | Embedder | str | None = None,
        *,
        persist_dir: str | Path | None = None,
        collection_name: str = COLLECTION,
        **options: Unpack[LoneOptions],
    ) -> V:
        """`from_nodes` in a worker thread; an async embedding model is awaited."""
        kept: dict[str, Any] = {"persist_dir": persist_dir, "collection_name": collection_name}
        return await aexecute(in_thread("from_nodes", partial(cls.from_nodes, nodes, embed_model, **kept, **options)))

    @classmethod
    def from_persist_dir(
        cls: type[V],
        persist_dir: str | Path,
        embed_model: BaseEmbedding | Embedder | str | None = None,
        *,
        collection_name: str = COLLECTION,
        **options: Unpack[LoneOptions],
    ) -> V:
        """A retriever over what `from_nodes` wrote, with the same model. ConfigError where it is empty."""
        index = ChromaVectors.open(persist_dir, collection_name) if Path(persist_dir).is_dir() else None
        if not index:
            raise ConfigError(
                f"{persist_dir} holds no Chroma collection {collection_name!r} with nodes: "
                "give the persist_dir and collection_name that from_nodes had"
            )
        return cls(index, embed_model, **options)

    @classmethod
    def from_vector_store(
        cls: type[V],
        source: BaseIndex[Any] | BasePydanticVectorStore,
        embed_model: BaseEmbedding | None = None,
        **options: Unpack[LoneOptions],
    ) -> V:
        """A retriever over a LlamaIndex vector store or index, which is searched itself, not copied."""
        return cls(source, embed_model, **options)

    def _recipe(self) -> dict[str, Any]:
        said = {"index": self._unstaged().channel, "timeout": self.timeout}  # a foreign index's repr may show its key
        return {**said, "on_error": None if self.on_error == "skip" else "raise"}


def _channel(index: Any, embed_model: Any, timeout: float | None) -> Channel:
    if isinstance(index, BaseIndex) and embed_model is not None:
        raise ConfigError(f"a {type(index).__name__} has its own embed_model; the one given would not be used")
    if isinstance(index, BaseIndex):
        return as_channel(index, timeout=timeout).named("dense")
    if isinstance(index, BasePydanticVectorStore):
        return as_channel(index, embed_model=store_model(embed_model), timeout=timeout).named("dense")
    if not isinstance(index, VectorIndex):
        raise ConfigError(f"expected a VectorIndex, an index or a vector store of LlamaIndex, not {index!r}")
    return VectorChannel(index, as_embedder(embed_model), timeout=timeout)
