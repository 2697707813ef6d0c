"""What writes: models that give the probabilities of their tokens, and all others, which mark what they doubt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol, runtime_checkable

from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.models.generation import Written
from voicevault_retrievers.models.prompts import CallableTextModel


@runtime_checkable
class Writer(Protocol):
    """A model that gives the probabilities of its tokens where it has them: `write(prompt)`.

    It may have an async `awrite`, a `stream` that iterates over parts of what it writes, and an async `astream` too.
    """

    def write(self, prompt: str) -> Written: ...


class TextWriter:
    """A text model as a writer; it gives no probabilities."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.awrite = self._awrite if callable(getattr(model, "acomplete", None)) else None

    def write(self, prompt: str) -> Written:
        """What the model answers."""
        return Written(self.model.complete(prompt))

    async def _awrite(self, prompt: str) -> Written:
        model: Any = self.model
        return Written(await model.acomplete(prompt))

    def __repr__(self) -> str:
        return repr(self.model)


def as_writer(model: Any) -> Writer:
    """A writer as it is, or one from a text model or a function from a prompt to a text; ConfigError for others."""
    if isinstance(model, Writer):
        return model
    if isinstance(model, TextModel):
        return TextWriter(model)
    if callable(model):
        return TextWriter(CallableTextModel(model))
    raise ConfigError(
        "a model has write(prompt) or complete(prompt), or is a function from a prompt to a text, not a "
        f"{type(model).__name__}; of a chat model of LangChain's or an LLM of LlamaIndex's take writer_of(model) of "
        "voicevault_retrievers.langchain.models or .llama_index.models"
    )


def checked(part: Any) -> Written:
    """What a writer gave, when it is a text."""
    if not isinstance(part, Written) or not isinstance(part.text, str):
        shown = type(part.text if isinstance(part, Written) else part).__name__
        raise RetrievalError(f"a language model gives a text, not a {shown}")
    return part


def parts(writer: Any, prompt: str, *, streams: bool) -> Iterator[Written]:
    """What a writer writes: in parts where that is wanted and it can, else at once."""
    if streams and callable(getattr(writer, "stream", None)):
        yield from writer.stream(prompt)
    else:
        yield writer.write(prompt)


def aparts(writer: Any, prompt: str, *, streams: bool) -> AsyncIterator[Written] | None:
    """`parts` on an event loop; None where the writer has no async call for it."""
    if streams and callable(getattr(writer, "astream", None)):
        return writer.astream(prompt)  # type: ignore[no-any-return]
    if callable(getattr(writer, "awrite", None)) and not (streams and callable(getattr(writer, "stream", None))):
        return _whole(writer, prompt)
    return None


async def _whole(writer: Any, prompt: str) -> AsyncIterator[Written]:
    yield await writer.awrite(prompt)
