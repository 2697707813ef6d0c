"""LlamaIndex's language models as text models."""

from __future__ import annotations

from typing import Any

from llama_index.core import Settings
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.structured_llm import StructuredLLM

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.prompts import CallableTextModel
from voicevault_retrievers.protocols import TextModel


class LlamaIndexTextModel:
    """Any LLM of LlamaIndex. Its callbacks and events stay in force; async searches ask it in a worker thread."""

    def __init__(self, llm: BaseLLM) -> None:
        self.llm = llm

    def complete(self, prompt: str) -> str:
        """What the model answers."""
        return self.llm.complete(prompt).text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.llm.class_name()})"


class AsyncLlamaIndexTextModel(LlamaIndexTextModel):
    """One that has an async call of its own; that of a CustomLLM runs the sync one on the event loop."""

    async def acomplete(self, prompt: str) -> str:
        """`complete` on the running event loop."""
        return (await self.llm.acomplete(prompt)).text


def as_text_model(model: Any = None) -> TextModel:
    """A text model from an LLM, one of ours, or a function from a prompt to a text.

    None is the `Settings.llm` that was set. Raises ConfigError where none was, and for anything else.
    """
    model = llm_of(model)
    if isinstance(model, BaseLLM):
        return AsyncLlamaIndexTextModel(model) if awaits(model) else LlamaIndexTextModel(model)
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
