"""LlamaIndex's embedding models as embedders, and the embeddings that its nodes come with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np
from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers.adapters.embedders import FrameworkEmbedder
from voicevault_retrievers.core.execution.event_loop import call_or_await, waits
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense.base import BaseEmbedder
from voicevault_retrievers.dense.embedders import load_embedder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import embedding
from voicevault_retrievers.store.manifest import EmbedderEntry


class LlamaIndexEmbedder(FrameworkEmbedder):
    """Any LlamaIndex embedding model; see `FrameworkEmbedder`. Its events, cache and rate limit stay in force.

    In an async search its async calls are awaited where they wait for something.
    """

    framework = "llama_index"

    def __init__(self, model: BaseEmbedding) -> None:
        super().__init__(model)
        self.model = model

    def _embed(self, texts: Sequence[str]) -> ArrayLike:
        return documents_embedded(self.model, list(texts))

    def _embed_query(self, text: str) -> ArrayLike:
        return query_embedded(self.model, text)

    def _aembed_query(self, text: str) -> Awaitable[ArrayLike]:
        return self.model.aget_query_embedding(text)

    @property
    def _awaits(self) -> bool:
        return waits(type(self.model)._aget_query_embedding)


def documents_embedded(model: BaseEmbedding, texts: list[str]) -> list[list[float]]:
    """The vectors of texts; awaited where an async search asks a model whose async call waits for something."""
    kind = type(model)
    many = kind._aget_text_embeddings is not BaseEmbedding._aget_text_embeddings and waits(kind._aget_text_embeddings)
    coroutine = partial(model.aget_text_embedding_batch, texts)
    own = many or waits(kind._aget_text_embedding)
    return call_or_await(partial(model.get_text_embedding_batch, texts), coroutine, waits=own)


def query_embedded(model: BaseEmbedding, text: str) -> list[float]:
    """The vector of a question; as `documents_embedded`."""
    coroutine, own = partial(model.aget_query_embedding, text), waits(type(model)._aget_query_embedding)
    return call_or_await(partial(model.get_query_embedding, text), coroutine, waits=own)


class NamedEmbedder:
    """The model that made a knowledge base's vectors, known by the base's entry for it.

    Nothing is asked of the `model` but to embed a text; None is loaded by its name then, and raises as
    `KnowledgeBase.embedder` does where it cannot be.
    """

    def __init__(self, entry: EmbedderEntry, kb: str, model: Embedder | None = None) -> None:
        self.entry = entry
        self.kb = kb
        self._model = model

    @property
    def fingerprint(self) -> str:
        return self.entry.fingerprint

    @property
    def dimension(self) -> int:
        return self.entry.dimension

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._loaded().embed_documents(texts)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._loaded().embed_queries(texts)

    @property
    def aembed_queries(self) -> Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]] | None:
        return getattr(self._model, "aembed_queries", None)

    def _loaded(self) -> Embedder:
        if self._model is None:
            self._model = embedding.make(self.entry, self.kb)
        return self._model

    def __repr__(self) -> str:
        return f"NamedEmbedder({self.fingerprint!r})"


def store_model(model: object = None) -> BaseEmbedding | None:
    """What embeds questions for a LlamaIndex vector store: the model given, else the `Settings.embed_model` set.

    None where there is neither. Raises ConfigError for one that is not LlamaIndex's.
    """
    model = _set_model() if model is None else model
    if isinstance(model, LlamaIndexEmbedder):
        return model.model
    if not isinstance(model, BaseEmbedding | None):
        raise ConfigError(
            f"a LlamaIndex vector store is searched with a BaseEmbedding as its embed_model, not with {model!r}"
        )
    return model


def as_embedder(model: object = None) -> Embedder:
    """An embedder from LlamaIndex's, one of ours, or the name of a model.

    None is the `Settings.embed_model` that was set, else all-MiniLM-L6-v2.
    """
    model = _set_model() if model is None else model
    if model is None:
        return load_embedder()
    if isinstance(model, BaseEmbedding):
        return LlamaIndexEmbedder(model)
    if isinstance(model, str):
        return load_embedder(model)
    # A protocol's check may read the fingerprint, for which our own models look at their files.
    if isinstance(model, BaseEmbedder | Embedder):
        return model
    raise ConfigError(f"embed_model is a BaseEmbedding, an Embedder or a model's name, not a {type(model).__name__}")


def _set_model() -> BaseEmbedding | None:
    # Not the public property: where nothing was set it makes a remote model, which wants a key.
    return Settings._embed_model


def embeddings_of(nodes: Sequence[BaseNode], entry: EmbedderEntry, kb: str) -> NDArray[np.float32]:
    """The embeddings that nodes come with, brought to length 1, as rows of shape (len(nodes), entry.dimension).

    Raises ConfigError, naming the node, where one is missing, of another dimension, zero or not finite.
    """
    for node in nodes:
        if node.embedding is None:
            raise ConfigError(
                f"node {node.node_id!r} has no embedding: add nodes through an index, or an ingestion pipeline whose "
                "last transformation is the embed_model"
            )
        if len(node.embedding) != entry.dimension:
            raise ConfigError(
                f"node {node.node_id!r} has an embedding of dimension {len(node.embedding)}; knowledge base {kb!r} "
                f"keeps those of {entry.fingerprint!r}, which have {entry.dimension}"
            )
    rows = np.array([node.embedding for node in nodes], dtype=np.float64).reshape(len(nodes), entry.dimension)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if wrong.size:
        raise ConfigError(f"node {nodes[wrong[0]].node_id!r} has an embedding that is zero or not finite")
    return np.asarray(rows / lengths, dtype=np.float32)
