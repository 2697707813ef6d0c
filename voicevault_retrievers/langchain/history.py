"""The conversation so far, however LangChain has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from voicevault_retrievers.core.turns import Turn
from voicevault_retrievers.errors import ConfigError

_ROLES = ("human", "user", "ai", "assistant", "system", "developer")


def turns_of(history: Sequence[Any]) -> list[Any]:
    """Turns as they are, or of messages each question with the last answer to it."""
    messages = list(history)
    if all(isinstance(turn, BaseMessage) or _says_role(turn) for turn in messages):
        messages = list(convert_to_messages(messages))
    if not any(isinstance(turn, BaseMessage) for turn in messages):
        return messages
    turns: list[Turn] = []
    for message in messages:
        if not isinstance(message, BaseMessage):
            raise ConfigError(f"a history is of messages or of turns, not of both: {message!r:.200}")
        if isinstance(message, HumanMessage):
            turns.append(Turn(str(message.text), ""))
        elif isinstance(message, AIMessage) and message.text and turns:
            turns[-1] = Turn(turns[-1].question, str(message.text))
    return [turn for turn in turns if turn.answer]


def _says_role(turn: object) -> bool:
    """Whether a pair is a message in LangChain's short form, a role with a text, rather than a question and answer."""
    return isinstance(turn, tuple | list) and len(turn) == 2 and turn[0] in _ROLES and isinstance(turn[1], str)
