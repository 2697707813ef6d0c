"""A LlamaIndex LLM that is a script, so that the examples run without a key: no language model has any part in it."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib import import_module
from typing import Any

from llama_index.core.base.llms.generic_utils import (
    achat_to_completion_decorator,
    astream_chat_to_completion_decorator,
    chat_to_completion_decorator,
    stream_chat_to_completion_decorator,
)
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import LLM, ChatMessage, ChatResponse, CompletionResponse, LLMMetadata, MessageRole
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import BaseTool
from scripted import SCRIPTED, extract, sources_in

__all__ = ["SCRIPTED", "ScriptedLLM", "language_model"]


def language_model(place: str | None, model: str | None) -> LLM:
    """An LLM by its class, such as "llama_index.llms.ollama:Ollama", and its model; without a class the script."""
    if place is None:
        return ScriptedLLM()
    module, _, name = place.partition(":")
    try:
        made: LLM = getattr(import_module(module), name)(**({} if model is None else {"model": model}))
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install {module.replace('_', '-').replace('.', '-')}") from error
    return made


class ScriptedLLM(FunctionCallingLLM):
    """Copies the two sentences of the numbered sources that share most with the question, each with its marker.

    Where it has tools and no sources yet, it calls the first one with the question.
    """

    @classmethod
    def class_name(cls) -> str:
        return "ScriptedLLM"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=100_000, is_chat_model=True, is_function_calling_model=True, model_name="scripted"
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=_said(messages, **kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=_said(messages, **kwargs))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Iterator[ChatResponse]:
        return _streamed(_said(messages, **kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> AsyncIterator[ChatResponse]:
        async def pieces() -> AsyncIterator[ChatResponse]:
            for piece in _streamed(_said(messages, **kwargs)):
                yield piece

        return pieces()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return chat_to_completion_decorator(self.chat)(prompt, **kwargs)

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await achat_to_completion_decorator(self.achat)(prompt, **kwargs)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return stream_chat_to_completion_decorator(self.stream_chat)(prompt, **kwargs)

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return await astream_chat_to_completion_decorator(self.astream_chat)(prompt, **kwargs)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(role=MessageRole.USER, content=user_msg) if isinstance(user_msg, str) else user_msg
        return {"messages": [*(chat_history or ()), *([asked] if asked else ())], "tools": tools}

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **kwargs: Any) -> list[ToolSelection]:
        calls = (block for block in response.message.blocks if isinstance(block, ToolCallBlock))
        return [
            ToolSelection(tool_id=call.tool_call_id or "", tool_name=call.tool_name, tool_kwargs=call.tool_kwargs)
            for call in calls
            if isinstance(call.tool_kwargs, dict)
        ]


def _said(messages: Sequence[ChatMessage], tools: Sequence[BaseTool] = (), **kwargs: Any) -> ChatMessage:
    at = max(at for at, one in enumerate(messages) if one.role == MessageRole.USER)
    text = messages[at].content or ""
    given, _, asked = text.rpartition("\nQuestion: ")
    question = asked.removesuffix("\nAnswer: ").strip()
    answers = [one.content or "" for one in messages[at:] if one.role == MessageRole.TOOL]
    sources = sources_in("\n\n".join([given, *answers]))
    if tools and not answers:
        call = ToolCallBlock(
            tool_call_id=str(uuid.uuid4()), tool_name=tools[0].metadata.get_name(), tool_kwargs={"query": question}
        )
        return ChatMessage(role=MessageRole.ASSISTANT, blocks=[call])
    return ChatMessage(role=MessageRole.ASSISTANT, content=extract(question, sources))


def _streamed(message: ChatMessage) -> Iterator[ChatResponse]:
    """A call in one piece, and an answer word by word."""
    if message.content is None:
        yield ChatResponse(message=message)
    said = ""
    for word in re.findall(r"\S+\s*", message.content or ""):
        said += word
        yield ChatResponse(message=ChatMessage(role=message.role, content=said), delta=word)
