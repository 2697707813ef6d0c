"""LlamaIndex's language models and embedding models as models of this package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.schema import BaseNode
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers.adapters.embedders import FrameworkEmbedder
from voicevault_retrievers.answers.flare import Flare, Writer, as_writer
from voicevault_retrievers.core.execution.event_loop import call_or_await, waits
from voicevault_retrievers.core.protocols import Embedder, TextModel
from voicevault_retrievers.dense.base import BaseEmbedder
from voicevault_retrievers.dense.embedders import load_embedder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.generation import CallableTextModel, Written
from voicevault_retrievers.store import embedding
from voicevault_retrievers.store.manifest import EmbedderEntry

M = TypeVar("M")


class LlamaIndexModel:
    """A text model from any LlamaIndex LLM. Its callbacks and events stay active; async searches use a worker thread.

    An LLM with an option `logprobs` is asked for the log-probabilities of its tokens. They are read from the raw answer
    in the format of OpenAI's API, or from `logprobs`, where the first entry of each token is the token itself.
    """

    def __init__(self, llm: BaseLLM) -> None:
        self.llm = llm
        self._writing: dict[str, Any] = {"logprobs": True} if "logprobs" in type(llm).model_fields else {}

    def complete(self, prompt: str) -> str:
        """Return the model's answer."""
        return self.llm.complete(prompt).text

    def write(self, prompt: str) -> Written:
        """Return the model's answer with the probabilities of its tokens."""
        said = self.llm.complete(prompt, **self._writing)
        return _written(said, said.text)

    def stream(self, prompt: str) -> Iterator[Written]:
        """Yield the answer of `write` in parts."""
        return (_written(said, said.delta) for said in self.llm.stream_complete(prompt, **self._writing) if said.delta)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.llm.class_name()})"


class AsyncLlamaIndexModel(LlamaIndexModel):
    """An LLM with its own async call; a CustomLLM's async call runs the sync one on the event loop."""

    async def acomplete(self, prompt: str) -> str:
        """`complete` on the running event loop."""
        return (await self.llm.acomplete(prompt)).text

    async def awrite(self, prompt: str) -> Written:
        """`write` on the running event loop."""
        said = await self.llm.acomplete(prompt, **self._writing)
        return _written(said, said.text)

    async def astream(self, prompt: str) -> AsyncIterator[Written]:
        """`stream` on the running event loop."""
        async for said in await self.llm.astream_complete(prompt, **self._writing):
            if said.delta:
                yield _written(said, said.delta)


def as_text_model(model: Any = None) -> TextModel:
    """A text model from an LLM, a model of this package, or a function from a prompt to a text.

    None is the configured `Settings.llm`. Raises ConfigError where none is configured, and for anything else.
    """
    model = llm_of(model)
    if isinstance(model, BaseLLM):
        return AsyncLlamaIndexModel(model) if awaits(model) else LlamaIndexModel(model)
    if isinstance(model, TextModel):
        return model
    if callable(model):
        return CallableTextModel(model)
    raise ConfigError(f"llm is a LlamaIndex LLM, or a function from a prompt to a text, not a {type(model).__name__}")


def llm_of(model: Any = None) -> Any:
    """The given model, else the configured `Settings.llm`; ConfigError where there is neither."""
    # Not the public property: without a configured model it creates a remote one, which needs a key.
    model = Settings._llm if model is None else model
    if model is None:
        raise ConfigError("no language model is set: give llm=..., or set llama_index.core.Settings.llm")
    return model


def awaits(model: BaseLLM, call: str = "acomplete") -> bool:
    """Whether a model has its own async call; for a StructuredLLM, whether the wrapped model has."""
    asked = model.llm if isinstance(model, StructuredLLM) else model
    # Not `is`: each access wraps the method anew.
    return bool(getattr(type(asked), call) != getattr(CustomLLM, call))


def writer_of(model: Any = None) -> Writer:
    """A writer from anything that `as_text_model` takes; a Writer unchanged."""
    return model if isinstance(model, Writer) else as_writer(as_text_model(model))


def flare_of(given: Any, **options: Any) -> Flare:
    """A Flare unchanged, or a Flare with these options from anything that `writer_of` takes."""
    return given if isinstance(given, Flare) else Flare(writer_of(given), **options)


def _written(said: CompletionResponse, text: str) -> Written:
    return Written.of(text, _listed(said))


def _listed(said: CompletionResponse) -> Any:
    """The tokens of an answer with their log-probabilities; None where there are none."""
    dump = getattr(said.raw, "model_dump", None)
    raw = dump() if callable(dump) else said.raw
    choices = raw.get("choices") if isinstance(raw, Mapping) else None
    if choices and isinstance(choices[0], Mapping) and (logprobs := choices[0].get("logprobs")) is not None:
        return logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
    if said.logprobs:
        firsts = [each[0] for each in said.logprobs if each]
        return [{"token": one.token, "logprob": one.logprob, "bytes": one.bytes} for one in firsts]
    return None


class LlamaIndexEmbedder(FrameworkEmbedder):
    """An embedder from any LlamaIndex embedding model, with its events, cache and rate limit; see `FrameworkEmbedder`.

    An async search awaits the model's async calls where they are non-blocking.
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
    """The vectors of texts, awaited where an async search uses a model with a non-blocking async call."""
    kind = type(model)
    many = kind._aget_text_embeddings is not BaseEmbedding._aget_text_embeddings and waits(kind._aget_text_embeddings)
    coroutine = partial(model.aget_text_embedding_batch, texts)
    own = many or waits(kind._aget_text_embedding)
    return call_or_await(partial(model.get_text_embedding_batch, texts), coroutine, waits=own)


def query_embedded(model: BaseEmbedding, text: str) -> list[float]:
    """The vector of a query, awaited as in `documents_embedded`."""
    coroutine, own = partial(model.aget_query_embedding, text), waits(type(model)._aget_query_embedding)
    return call_or_await(partial(model.get_query_embedding, text), coroutine, waits=own)


class NamedEmbedder:
    """The model of a knowledge base's vectors, described by the base's entry.

    The `model` is used only to embed a text. None is loaded by its name then, and raises as `KnowledgeBase.embedder`
    where it cannot be loaded.
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
    """The model that embeds queries for a LlamaIndex vector store: the given model, else `Settings.embed_model`.

    None where there is neither. Raises ConfigError for a model that is not LlamaIndex's.
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
    """An embedder from a LlamaIndex embedding model, an Embedder of this package, or the name of a model.

    None is the configured `Settings.embed_model`, else all-MiniLM-L6-v2.
    """
    model = _set_model() if model is None else model
    if model is None:
        return load_embedder()
    if isinstance(model, BaseEmbedding):
        return LlamaIndexEmbedder(model)
    if isinstance(model, str):
        return load_embedder(model)
    # isinstance with a protocol may read the fingerprint, for which this package's models open their files.
    if isinstance(model, BaseEmbedder | Embedder):
        return model
    raise ConfigError(f"embed_model is a BaseEmbedding, an Embedder or a model's name, not a {type(model).__name__}")


def checked_model(model: M) -> M:
    """An `embed_model` as it is; ConfigError where `as_embedder` makes nothing of it. None is chosen later."""
    if model is not None:
        as_embedder(model)
    return model


def _set_model() -> BaseEmbedding | None:
    # Not the public property: without a configured model it creates a remote one, which needs a key.
    return Settings._embed_model


def embeddings_of(nodes: Sequence[BaseNode], entry: EmbedderEntry, kb: str) -> NDArray[np.float32]:
    """The embeddings of nodes, scaled to length 1, as rows of shape (len(nodes), entry.dimension).

    Raises ConfigError, naming the node, where an embedding is missing, has another dimension, is zero or not finite.
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
