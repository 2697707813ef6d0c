"""LangChain's language models, embeddings and cross-encoders as models of this package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseChatModel, BaseLanguageModel, BaseLLM
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from numpy.typing import ArrayLike

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.adapters.embedders import FrameworkEmbedder
from voicevault_retrievers.answers.flare import Flare, Writer, as_writer
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.event_loop import call_or_await, overrides, waits
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder, TextModel
from voicevault_retrievers.dense.base import BaseEmbedder
from voicevault_retrievers.dense.embedders import load_embedder
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.generation import CallableTextModel, Written

QUIET: RunnableConfig = {"tags": ["nostream"]}
"""Config that keeps LangGraph from streaming a model's output for a search as if it were the agent's answer."""


class LangChainModel:
    """A text model from any chat model, LLM or runnable from a prompt to a text or message.

    The model runs below the caller's run, with its callbacks and configurable values. A model with an option `logprobs`
    is asked for the log-probabilities of its tokens, read from `response_metadata["logprobs"]` in the format of
    OpenAI's API.
    """

    def __init__(self, model: Runnable[Any, Any]) -> None:
        self.model = model
        asked = "logprobs" in getattr(type(bound_of(model)), "model_fields", {})
        self._writing = model.bind(logprobs=True) if asked else model

    def complete(self, prompt: str) -> str:
        """Return the model's answer."""
        return text_of(self.model.invoke(prompt, QUIET))

    def write(self, prompt: str) -> Written:
        """Return the model's answer with the probabilities of its tokens."""
        return _written(self._writing.invoke(prompt, QUIET))

    def stream(self, prompt: str) -> Iterator[Written]:
        """Yield the answer of `write` in parts."""
        return (part for said in self._writing.stream(prompt, QUIET) if (part := _written(said)).text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__})"


class AsyncLangChainModel(LangChainModel):
    """A LangChain model with its own async call.

    Other models inherit LangChain's default, which runs the sync call in asyncio's threads, and these are joined at
    exit. An async search therefore runs such models in this package's threads.
    """

    async def acomplete(self, prompt: str) -> str:
        """`complete` on the running event loop."""
        return text_of(await self.model.ainvoke(prompt, QUIET))

    async def awrite(self, prompt: str) -> Written:
        """`write` on the running event loop."""
        return _written(await self._writing.ainvoke(prompt, QUIET))

    async def astream(self, prompt: str) -> AsyncIterator[Written]:
        """`stream` on the running event loop."""
        async for said in self._writing.astream(prompt, QUIET):
            if (part := _written(said)).text:
                yield part


class NamedTextModel:
    """A chat model by name, looked up on first use; async searches await it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: TextModel | None = None

    def complete(self, prompt: str) -> str:
        """Return the model's answer."""
        return self._model().complete(prompt)

    async def acomplete(self, prompt: str) -> str:
        """`complete` on the running event loop; the model is looked up in a worker thread."""
        model: Any = await aexecute(in_thread("model", self._model, inline=self._found is not None))
        if hasattr(model, "acomplete"):
            return str(await model.acomplete(prompt))
        return await aexecute(in_thread("model", partial(model.complete, prompt)))

    def _model(self) -> TextModel:
        if self._found is None:
            self._found = as_text_model(self._chat_model())
        return self._found

    def _chat_model(self) -> Any:
        chat_models = require("langchain.chat_models", extra="agents")
        try:
            return chat_models.init_chat_model(self.name)
        except ImportError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.name!r} is not made into a chat model: {type(error).__name__}: {error}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}

    def __repr__(self) -> str:
        return f"NamedTextModel({self.name!r})"


def as_text_model(model: Any) -> TextModel:
    """A text model from a chat model, an LLM, any runnable, a function, or the name of a chat model.

    A name, such as "openai:gpt-5", is for LangChain's `init_chat_model` (extra `agents`), on first use. Raises
    ConfigError for anything else.
    """
    if isinstance(model, str):
        return NamedTextModel(model)
    if isinstance(model, BaseLanguageModel | Runnable):
        return AsyncLangChainModel(model) if _awaits(model) else LangChainModel(model)
    if isinstance(model, TextModel):
        return model
    if callable(model):
        return CallableTextModel(model)
    raise ConfigError(
        "a language model is a chat model, an LLM, a runnable, a function from a prompt to a text, or the name of a "
        f"chat model, not a {type(model).__name__}"
    )


def writer_of(model: Any) -> Writer:
    """A writer from anything that `as_text_model` takes; a Writer unchanged."""
    return model if isinstance(model, Writer) else as_writer(as_text_model(model))


def flare_of(given: Any, **options: Any) -> Flare:
    """A Flare unchanged, or a Flare with these options from anything that `writer_of` takes."""
    return given if isinstance(given, Flare) else Flare(writer_of(given), **options)


def _written(said: Any) -> Written:
    logprobs = said.response_metadata.get("logprobs") if isinstance(said, BaseMessage) else None
    return Written.of(text_of(said), logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs)


def bound_of(part: Any) -> Any:
    """The runnable inside `with_config`, `with_retry`, `with_fallbacks`, `configurable_fields` and similar wrappers."""
    for name in ("bound", "default", "runnable"):
        if isinstance(part, Runnable) and isinstance(getattr(part, name, None), Runnable):
            return bound_of(getattr(part, name))
    return part


def _awaits(model: Any) -> bool:
    """Whether a model has its own async call; runnables that are no language models are assumed to have one."""
    model = bound_of(model)
    if isinstance(model, BaseChatModel):
        return type(model)._agenerate is not BaseChatModel._agenerate
    if isinstance(model, LLM):
        return type(model)._acall is not LLM._acall
    return not isinstance(model, BaseLLM) or type(model)._agenerate is not BaseLLM._agenerate


def text_of(answer: Any) -> str:
    """The text of a model's output: a message's text blocks, or a string unchanged."""
    if isinstance(answer, BaseMessage):
        return str(answer.text)
    if isinstance(answer, str):
        return answer
    raise ConfigError(f"a language model gives a text or a message, not a {type(answer).__name__}")


class LangChainScorer:
    """A LangChain cross-encoder as a scorer. The scores are the model's own: higher is more relevant."""

    def __init__(self, model: BaseCrossEncoder) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return type(self.model).__name__

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return one score per passage, in the passages' order."""
        return list(self.model.score([(query, passage) for passage in passages]))

    def __repr__(self) -> str:
        return f"LangChainScorer({self.name})"


def as_scorer(scorer: Any) -> Any:
    """A scorer from a LangChain cross-encoder; anything else unchanged."""
    return LangChainScorer(scorer) if isinstance(scorer, BaseCrossEncoder) else scorer


class LangChainEmbedder(FrameworkEmbedder):
    """An embedder from any LangChain `Embeddings`; see `FrameworkEmbedder`.

    An async search awaits `aembed_query` and `aembed_documents` where the class overrides them.
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
    """The vectors of documents, awaited where an async search uses a model with its own async call."""
    own = partial(embeddings.aembed_documents, texts) if overrides(embeddings, Embeddings, "aembed_documents") else None
    called = partial(embeddings.embed_documents, texts)
    return call_or_await(called, own, waits=waits(type(embeddings).aembed_documents))


def query_embedded(embeddings: Embeddings, text: str) -> list[float]:
    """The vector of a query, awaited as in `documents_embedded`."""
    own = partial(embeddings.aembed_query, text) if overrides(embeddings, Embeddings, "aembed_query") else None
    return call_or_await(partial(embeddings.embed_query, text), own, waits=waits(type(embeddings).aembed_query))


class LocalEmbeddings(Embeddings):
    """An embedder of this package as LangChain `Embeddings`: needs no server or key, fits any vector store.

    `model` and `backend` are as in `load_embedder`: all-MiniLM-L6-v2 by onnxruntime, or by sentence-transformers, where
    these are installed. Vectors have length 1. The model is loaded on first use; async calls run in a worker thread.
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
    """An embedder from LangChain Embeddings; an Embedder unchanged; all-MiniLM-L6-v2 for None, see `load_embedder`."""
    if embeddings is None:
        return load_embedder()
    if isinstance(embeddings, LocalEmbeddings):
        return embeddings.embedder
    if isinstance(embeddings, Embeddings):
        return LangChainEmbedder(embeddings, dimension=dimension)
    # isinstance with a protocol may read the fingerprint, for which this package's models open their files.
    if not isinstance(embeddings, BaseEmbedder | Embedder):
        raise ConfigError(f"embeddings are LangChain Embeddings or an Embedder, not {type(embeddings).__name__}")
    return embeddings
