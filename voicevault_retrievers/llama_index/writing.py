"""LlamaIndex's language models as writers, with the probabilities of tokens where they give them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import CompletionResponse

from voicevault_retrievers.flare import Flare, Writer, as_writer
from voicevault_retrievers.llama_index.models import as_text_model, awaits, llm_of
from voicevault_retrievers.written import Written


class LlamaIndexWriter:
    """Any LLM of LlamaIndex; one with an option `logprobs` is asked for them.

    They are read from the raw answer, as OpenAI's API lists them, or from `logprobs`, where the first of each token's
    is that of the token itself.
    """

    def __init__(self, llm: BaseLLM) -> None:
        self.llm = llm
        self._asked: dict[str, Any] = {"logprobs": True} if "logprobs" in type(llm).model_fields else {}

    def write(self, prompt: str) -> Written:
        """What the model answers."""
        said = self.llm.complete(prompt, **self._asked)
        return _written(said, said.text)

    def stream(self, prompt: str) -> Iterator[Written]:
        """What the model answers, part by part."""
        return (_written(said, said.delta) for said in self.llm.stream_complete(prompt, **self._asked) if said.delta)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.llm.class_name()})"


class AsyncLlamaIndexWriter(LlamaIndexWriter):
    """One that has an async call of its own; that of a CustomLLM runs the sync one on the event loop."""

    async def awrite(self, prompt: str) -> Written:
        """`write` on the running event loop."""
        said = await self.llm.acomplete(prompt, **self._asked)
        return _written(said, said.text)

    async def astream(self, prompt: str) -> AsyncIterator[Written]:
        """`stream` on the running event loop."""
        async for said in await self.llm.astream_complete(prompt, **self._asked):
            if said.delta:
                yield _written(said, said.delta)


def writer_of(model: Any = None) -> Writer:
    """A writer from an LLM, one of ours, or a function; None is the `Settings.llm`; see `as_text_model`."""
    model = llm_of(model)
    if not isinstance(model, BaseLLM):
        return as_writer(model if isinstance(model, Writer) else as_text_model(model))
    return AsyncLlamaIndexWriter(model) if awaits(model) else LlamaIndexWriter(model)


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
