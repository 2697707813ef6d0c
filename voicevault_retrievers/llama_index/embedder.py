"""LlamaIndex's embedding models as embedders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import ArrayLike

from voicevault_retrievers.dense.embedders import BaseEmbedder, load_embedder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.protocols import Embedder


class LlamaIndexEmbedder(BaseEmbedder):
    """Any LlamaIndex embedding model. Its events, cache and rate limit stay in force.

    The fingerprint is the model's class and name. The dimension is found out by embedding a word, on first use.
    """

    def __init__(self, model: BaseEmbedding) -> None:
        super().__init__()
        self.model = model

    @property
    def fingerprint(self) -> str:
        return f"llama_index/{self.model.class_name()}/{self.model.model_name}"

    @property
    def dimension(self) -> int:
        return self._dimension

    @cached_property
    def _dimension(self) -> int:
        return len(self.model.get_query_embedding("dimension"))

    def _documents(self, texts: Sequence[str]) -> ArrayLike:
        return self.model.get_text_embedding_batch(list(texts))

    def _asked(self, texts: Sequence[str]) -> ArrayLike:
        return [self.model.get_query_embedding(text) for text in texts]

    def __repr__(self) -> str:
        return f"LlamaIndexEmbedder({self.model.class_name()}, {self.model.model_name!r})"


def as_embedder(model: object = None) -> Embedder:
    """An embedder from LlamaIndex's, one of ours, or the name of a model.

    None is the `Settings.embed_model` that was set, else all-MiniLM-L6-v2.
    """
    if model is None:
        # Not the public property: where nothing was set it makes a remote model, which wants a key.
        model = Settings._embed_model
    if model is None:
        return load_embedder()
    if isinstance(model, BaseEmbedding):
        return LlamaIndexEmbedder(model)
    if isinstance(model, str):
        return load_embedder(model)
    if isinstance(model, Embedder):
        return model
    raise ConfigError(f"embed_model is a BaseEmbedding, an Embedder or a model's name, not a {type(model).__name__}")
