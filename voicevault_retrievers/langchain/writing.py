"""LangChain's language models as writers, with the probabilities of tokens where they give them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable

from voicevault_retrievers.flare import Flare, Writer, as_writer
from voicevault_retrievers.langchain.models import (
    QUIET,
    AsyncLangChainTextModel,
    as_text_model,
    bound_of,
    text_of,
)
from voicevault_retrievers.written import Written


class LangChainWriter:
    """Any chat model, LLM or runnable; a model with an option `logprobs` is asked for them.

    They are read from `response_metadata["logprobs"]`, as OpenAI's API lists them.
    """

    def __init__(self, model: Runnable[Any, Any]) -> None:
        self.model = model
        asked = "logprobs" in getattr(type(bound_of(model)), "model_fields", {})
        self._asked = model.bind(logprobs=True) if asked else model

    def write(self, prompt: str) -> Written:
        """What the model answers."""
        return _written(self._asked.invoke(prompt, QUIET))

    def stream(self, prompt: str) -> Iterator[Written]:
        """What the model answers, part by part."""
        return (part for said in self._asked.stream(prompt, QUIET) if (part := _written(said)).text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__})"


class AsyncLangChainWriter(LangChainWriter):
    """One that has an async call of its own."""

    async def awrite(self, prompt: str) -> Written:
        """`write` on the running event loop."""
        return _written(await self._asked.ainvoke(prompt, QUIET))

    async def astream(self, prompt: str) -> AsyncIterator[Written]:
        """`stream` on the running event loop."""
        async for said in self._asked.astream(prompt, QUIET):
            if (part := _written(said)).text:
                yield part


def writer_of(model: Any) -> Writer:
    """A writer from a chat model, an LLM, any runnable, a function or a name; see `as_text_model`."""
    if not isinstance(model, BaseLanguageModel | Runnable):
        return as_writer(model if isinstance(model, Writer) else as_text_model(model))
    awaits = isinstance(as_text_model(model), AsyncLangChainTextModel)
    return AsyncLangChainWriter(model) if awaits else LangChainWriter(model)


def flare_of(given: Any, **options: Any) -> Flare:
    """A Flare as it is, or one with these options from what `writer_of` takes."""
    return given if isinstance(given, Flare) else Flare(writer_of(given), **options)


def _written(said: Any) -> Written:
    logprobs = said.response_metadata.get("logprobs") if isinstance(said, BaseMessage) else None
    return Written.of(text_of(said), logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs)
