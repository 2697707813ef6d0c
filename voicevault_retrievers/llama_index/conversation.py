"""The conversation before a question: LlamaIndex's messages and memories as turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory

from voicevault_retrievers.core.queries import Turn, as_turn
from voicevault_retrievers.errors import ConfigError

History: TypeAlias = Sequence[Any] | BaseMemory | None
"""The conversation so far: turns, pairs of question and answer, ChatMessages, or a memory, which each search reads."""


def checked(history: History) -> History:
    """The history; ConfigError where it is none."""
    if history is None or isinstance(history, BaseMemory):
        return history
    if isinstance(history, str) or not isinstance(history, Sequence):
        raise ConfigError(f"history is turns, chat messages or a memory, not a {type(history).__name__}")
    turns_of(history)
    return history


def turns(history: History) -> tuple[Turn, ...]:
    """The turns of a history."""
    return turns_of(history.get_all() if isinstance(history, BaseMemory) else history or ())


async def aturns(history: History) -> tuple[Turn, ...]:
    """`turns` on the running event loop."""
    return turns_of(await history.aget_all() if isinstance(history, BaseMemory) else history or ())


def before_question(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages before the last question."""
    last = max((at for at, one in enumerate(messages) if one.role == MessageRole.USER), default=len(messages))
    return list(messages[:last])


def turns_of(history: Sequence[Any]) -> tuple[Turn, ...]:
    """Turns unchanged, or from messages each question with its last answer; a question without one is left out."""
    if not any(isinstance(one, ChatMessage) for one in history):
        return tuple(map(as_turn, history))
    found: list[Turn] = []
    for message in history:
        if not isinstance(message, ChatMessage):
            raise ConfigError(f"a history is of messages or of turns, not of both: {message!r:.200}")
        text = message.content or ""
        if message.role == MessageRole.USER:
            found.append(Turn(text, ""))
        elif message.role in (MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL) and text and found:
            found[-1] = Turn(found[-1].question, text)
    return tuple(turn for turn in found if turn.answer)
