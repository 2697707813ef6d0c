"""Vector search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode

from voicevault_retrievers.dense.exact import VectorChannel
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.convert import chunks_of
from voicevault_retrievers.llama_index.embedder import as_embedder
from voicevault_retrievers.pipeline import Pipeline
from voicevault_retrievers.protocols import Embedder, VectorIndex

V = TypeVar("V", bound="VectorRetriever")


class VectorRetriever(PipelineRetriever):
    """Search by the similarity of vectors. Scores are cosines, in (0, 1], higher is nearer.

    `embed_model` is LlamaIndex's, one of ours, a model's name, or None: see `as_embedder`. `timeout` is in seconds.
    `options` are those of `PipelineRetriever`: k or similarity_top_k (5), where, require, callback_manager, object_map,
    objects, verbose.
    """

    def __init__(
        self,
        index: VectorIndex,
        embed_model: BaseEmbedding | Embedder | str | None = None,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(Pipeline(VectorChannel(index, as_embedder(embed_model), timeout=timeout)), **options)

    @classmethod
    def from_nodes(
        cls: type[V],
        nodes: Sequence[BaseNode],
        embed_model: BaseEmbedding | Embedder | str | None = None,
        **options: Any,
    ) -> V:
        """Exact search over nodes held in memory; embeds their bare text now."""
        embedder = as_embedder(embed_model)
        return cls(VectorChannel.from_chunks(chunks_of(nodes), embedder).index, embedder, **options)
