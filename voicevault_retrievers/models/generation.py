"""What a language model wrote, with how probable each of its tokens was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from voicevault_retrievers.errors import RetrievalError


class Token(NamedTuple):
    """A token of a text, and the probability in [0, 1] with which the model chose it."""

    text: str
    probability: float


@dataclass(frozen=True)
class Written:
    """A text, whole or the next part of a stream; `tokens` is None where the model gives no probabilities.

    `problem` is why they could not be read where it gave some.
    """

    text: str
    tokens: tuple[Token, ...] | None = None
    problem: Exception | None = None

    @classmethod
    def of(cls, text: str, listed: Any) -> Written:
        """A text with the tokens that OpenAI's and Ollama's APIs list beside it, None where they do not."""
        try:
            return cls(text, tokens_of(listed))
        except RetrievalError as error:
            return cls(text, problem=error)


def tokens_of(listed: Any) -> tuple[Token, ...] | None:
    """Tokens from a list of `{"token": text, "logprob": number, "bytes": [...]}`; None where there is no list.

    Tokens that are part of a character are joined until it is whole, with the least of their probabilities. Raises
    RetrievalError for anything else: a log-probability is a number of at most 0.
    """
    if listed is None:
        return None
    if not isinstance(listed, list | tuple):
        raise RetrievalError(f"log-probabilities are a list, one for each token, not a {type(listed).__name__}")
    return tuple(_joined(map(_token, listed)))


def _token(item: Any) -> tuple[bytes, float]:
    text = item.get("token") if isinstance(item, Mapping) else None
    logprob = item.get("logprob") if isinstance(item, Mapping) else None
    value = logprob if isinstance(logprob, int | float) and not isinstance(logprob, bool) else math.nan
    # A hair above 0 is what rounding leaves of certainty; servers say -9999 or -inf for what they did not count.
    if not isinstance(text, str) or not value <= 1e-3:
        raise RetrievalError(f"a token has a text and a log-probability of at most 0, not {str(item)[:200]}")
    return _encoded(text, item.get("bytes")), math.exp(min(value, 0.0))


def _encoded(text: str, given: Any) -> bytes:
    """The bytes of a token: of a part of a character its text does not tell them."""
    try:
        return bytes(given) if isinstance(given, list) and given else text.encode("utf-8", "replace")
    except (TypeError, ValueError) as error:
        raise RetrievalError(f"the bytes of a token are numbers from 0 to 255, not {str(given)[:200]}") from error


def _joined(tokens: Iterable[tuple[bytes, float]]) -> Iterator[Token]:
    held, least = b"", 1.0
    for raw, probability in tokens:
        held, least = held + raw, min(least, probability)
        try:
            text = held.decode()
        except UnicodeDecodeError as error:
            if len(held) - error.start < 4 and "unexpected end" in error.reason:
                continue
            text = held.decode("utf-8", "replace")
        yield Token(text, least)
        held, least = b"", 1.0
    if held:
        yield Token(held.decode("utf-8", "replace"), least)
