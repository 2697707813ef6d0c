"""LlamaIndex's language models as text models and writers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from llama_index.core import Settings
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.structured_llm import StructuredLLM

from voicevault_retrievers.answers.flare import Flare, Writer, as_writer
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.generation import Written
from voicevault_retrievers.models.prompts import CallableTextModel


class LlamaIndexModel:
    """Any LLM of LlamaIndex. Its callbacks and events stay in force; async searches ask it in a worker thread.

    One with an option `logprobs` is asked for the probabilities of what it writes. They are read from the raw answer,
    as OpenAI's API lists them, or from `logprobs`, where the first of each token's is that of the token itself.
    """

    def __init__(self, llm: BaseLLM) -> None:
        self.llm = llm
        self._writing: dict[str, Any] = {"logprobs": True} if "logprobs" in type(llm).model_fields else {}

    def complete(self, prompt: str) -> str:
        """What the model answers."""
        return self.llm.complete(prompt).text

    def write(self, prompt: str) -> Written:
        """What the model answers, with the probabilities of its tokens."""
        said = self.llm.complete(prompt, **self._writing)
        return _written(said, said.text)

    def stream(self, prompt: str) -> Iterator[Written]:
        """What `write` gives, part by part."""
        return (_written(said, said.delta) for said in self.llm.stream_complete(prompt, **self._writing) if said.delta)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.llm.class_name()})"


class AsyncLlamaIndexModel(LlamaIndexModel):
    """One that has an async call of its own; that of a CustomLLM runs the sync one on the event loop."""

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
    """A text model from an LLM, one of ours, or a function from a prompt to a text.

    None is the `Settings.llm` that was set. Raises ConfigError where none was, and for anything else.
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
    """The model that is given, else the `Settings.llm` that was set; ConfigError where none was."""
    # Not the public property: where nothing was set it makes a remote model, which wants a key.
    model = Settings._llm if model is None else model
    if model is None:
        raise ConfigError("no language model is set: give llm=..., or set llama_index.core.Settings.llm")
    return model


def awaits(model: BaseLLM, call: str = "acomplete") -> bool:
    """Whether a model's async call is its own; of a structured one, that of the model that it asks."""
    asked = model.llm if isinstance(model, StructuredLLM) else model
    # Not `is`: the method is wrapped anew at each access.
    return bool(getattr(type(asked), call) != getattr(CustomLLM, call))


def writer_of(model: Any = None) -> Writer:
    """A writer from what `as_text_model` takes; one as it is."""
    return model if isinstance(model, Writer) else as_writer(as_text_model(model))


def flare_of(given: Any, **options: Any) -> Flare:
    """A Flare as it is, or one with these options from what `writer_of` takes."""
    return given if isinstance(given, Flare) else Flare(writer_of(given), **options)


def _written(said: CompletionResponse, text: str) -> Written:
    return Written.of(text, _listed(said))


def _listed(said: CompletionResponse) -> Any:
    """The tokens of an answer; None where there are none."""
    dump = getattr(said.raw, "model_dump", None)
    raw = dump() if callable(dump) else said.raw
    choices = raw.get("choices") if isinstance(raw, Mapping) else None
    if choices and isinstance(choices[0], Mapping) and (logprobs := choices[0].get("logprobs")) is not None:
        return logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
    if said.logprobs:
        firsts = [each[0] for each in said.logprobs if each]
        return [{"token": one.token, "logprob": one.logprob, "bytes": one.bytes} for one in firsts]
    return None
