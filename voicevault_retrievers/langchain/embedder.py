"""LangChain's embeddings as embedders."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from langchain_core.embeddings import Embeddings
from numpy.typing import ArrayLike

from voicevault_retrievers.adapters.embedders import FrameworkEmbedder
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides, waits
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense.base import BaseEmbedder
from voicevault_retrievers.dense.embedders import load_embedder
from voicevault_retrievers.errors import ConfigError


class LangChainEmbedder(FrameworkEmbedder):
    """Any LangChain `Embeddings`; see `FrameworkEmbedder`.

    In an async search `aembed_query` and `aembed_documents` are awaited where they are the class's own.
    """

    framework = "langchain"

    def __init__(self, embeddings: Embeddings, *, dimension: int | None = None) -> None:
        super().__init__(embeddings, dimension)
        self.embeddings = embeddings

    def _embed(self, texts: Sequence[str]) -> ArrayLike:
        return documents_embedded(self.embeddings, list(texts))

    def _embed_query(self, text: str) -> ArrayLike:
        return query_embedded(self.embeddings, text)

    def _aembed_query(self, text: str) -> Awaitable[ArrayLike]:
        return self.embeddings.aembed_query(text)

    @property
    def _awaits(self) -> bool:
        return waits(type(self.embeddings).aembed_query) and overrides(self.embeddings, Embeddings, "aembed_query")


def documents_embedded(embeddings: Embeddings, texts: list[str]) -> list[list[float]]:
    """The vectors of documents; awaited where an async search asks a model with an async call of its own."""
    own = partial(embeddings.aembed_documents, texts) if overrides(embeddings, Embeddings, "aembed_documents") else None
    called = partial(embeddings.embed_documents, texts)
    return call_or_await(called, own, waits=waits(type(embeddings).aembed_documents))


def query_embedded(embeddings: Embeddings, text: str) -> list[float]:
    """The vector of a question; as `documents_embedded`."""
    own = partial(embeddings.aembed_query, text) if overrides(embeddings, Embeddings, "aembed_query") else None
    return call_or_await(partial(embeddings.embed_query, text), own, waits=waits(type(embeddings).aembed_query))


class LocalEmbeddings(Embeddings):
    """A model of this package as LangChain `Embeddings`: without a server or a key, for any vector store.

    `model` and `backend` are as of `load_embedder`: all-MiniLM-L6-v2 by onnxruntime, or by sentence-transformers, where
    these are installed. Rows have length 1. The model is loaded on first use; async calls run in a worker thread.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", *, backend: str = "auto") -> None:
        self.model = model
        self.backend = backend
        self.embedder = load_embedder(model, backend)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embedder.embed_documents(texts).tolist()  # type: ignore[no-any-return]  # numpy says Any

    def embed_query(self, text: str) -> list[float]:
        return self.embedder.embed_queries([text])[0].tolist()  # type: ignore[no-any-return]  # numpy says Any

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return await aexecute(in_thread("embed", partial(self.embed_documents, texts)))

    async def aembed_query(self, text: str) -> list[float]:
        return await aexecute(in_thread("embed", partial(self.embed_query, text)))

    def __repr__(self) -> str:
        return f"LocalEmbeddings({self.model!r}, backend={self.backend!r})"


def as_embedder(embeddings: Any = None, *, dimension: int | None = None) -> Embedder:
    """An embedder from LangChain's, or one of ours as it is; None is all-MiniLM-L6-v2, see `load_embedder`."""
    if embeddings is None:
        return load_embedder()
    if isinstance(embeddings, LocalEmbeddings):
        return embeddings.embedder
    if isinstance(embeddings, Embeddings):
        return LangChainEmbedder(embeddings, dimension=dimension)
    # A protocol's check may read the fingerprint, for which our own models look at their files.
    if not isinstance(embeddings, BaseEmbedder | Embedder):
        raise ConfigError(f"embeddings are LangChain Embeddings or an Embedder, not {type(embeddings).__name__}")
    return embeddings
