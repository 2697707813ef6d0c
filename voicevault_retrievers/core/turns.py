"""What a conversation is made of."""

from __future__ import annotations

from dataclasses import dataclass

from voicevault_retrievers.errors import ConfigError


@dataclass(frozen=True)
class Turn:
    """A question with its answer."""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"User: {self.question}\nAssistant: {self.answer}"


def as_turn(turn: object) -> Turn:
    """A turn from one or from a pair of texts; ConfigError for what is neither."""
    if isinstance(turn, Turn):
        return turn
    if isinstance(turn, tuple | list) and len(turn) == 2 and all(isinstance(part, str) for part in turn):
        return Turn(*turn)
    raise ConfigError(f"a turn of the history is a Turn, or a question with its answer as a pair, not {turn!r}")
