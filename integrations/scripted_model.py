"""A chat model that is a script, so that the examples run without a key: no language model has any part in it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from scripted import SCRIPTED, extract, sources_in

__all__ = ["SCRIPTED", "ScriptedModel", "chat_model"]

_END = re.compile(r"\(End of the sources [0-9a-f]+\.\)")


def chat_model(name: str | None) -> BaseChatModel:
    """A chat model by its name, such as "openai:gpt-5"; without one, the script."""
    if name is None:
        return ScriptedModel()
    from langchain.chat_models import init_chat_model

    return init_chat_model(name)


class ScriptedModel(BaseChatModel):
    """Copies the two sentences of the numbered sources that share most with the question, each with its marker.

    Where it has tools and no sources yet, it calls the first one with the question. Asked to rewrite a question, it
    puts the one before in front.
    """

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        **kwargs: Any,
    ) -> ChatResult:
        message = self._said(messages, tools)
        message.response_metadata = {"model_name": "scripted"}
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _said(self, messages: list[BaseMessage], tools: Sequence[dict[str, Any]]) -> AIMessage:
        asked = [one for one in messages if isinstance(one, HumanMessage)]
        *given, question = map(str.strip, _END.split(asked[-1].text))
        rules = "\n".join(one.text for one in messages if isinstance(one, SystemMessage))
        if rules.startswith("Rewrite"):
            return AIMessage(" ".join(one.text for one in asked[-2:]))
        answers = [one for one in messages[messages.index(asked[-1]) :] if isinstance(one, ToolMessage)]
        read = "\n\n".join([rules, *given, *(one.text for one in answers)])
        sources = sources_in(read)
        if tools and not answers and not sources:
            call = {"name": tools[0]["function"]["name"], "args": {"query": question}, "id": str(uuid.uuid4())}
            return AIMessage("", tool_calls=[call])
        return AIMessage(extract(question, sources))
