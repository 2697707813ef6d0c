"""The conversation before a question: LlamaIndex's messages and memories as turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory

from voicevault_retrievers.core.queries import Turn, as_turn, turns_from
from voicevault_retrievers.errors import ConfigError

History: TypeAlias = Sequence[Any] | BaseMemory | None
"""The conversation so far: turns, pairs of question and answer, ChatMessages, or a memory, which each search reads."""

_ANSWERS = (MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL)


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
    return turns_from(history, ChatMessage, _said)


def _said(message: ChatMessage) -> tuple[bool, str] | None:
    """Whether a message is a question, and its text; None for one that is neither question nor answer."""
    is_question = message.role == MessageRole.USER
    return (is_question, message.content or "") if is_question or message.role in _ANSWERS else None
