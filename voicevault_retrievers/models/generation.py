"""Prompt templates with fields such as `{query}`; a model's texts and token probabilities; lists in its answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers.errors import RetrievalError


class Token(NamedTuple):
    """A token of a text, and the probability in [0, 1] with which the model chose it."""

    text: str
    probability: float


@dataclass(frozen=True)
class Written:
    """A text, complete or the next part of a stream; `tokens` is None where the model gives no probabilities.

    `problem` is the error where the given probabilities could not be parsed.
    """

    text: str
    tokens: tuple[Token, ...] | None = None
    problem: Exception | None = None

    @classmethod
    def of(cls, text: str, listed: Any) -> Written:
        """A text with the tokens in the format of OpenAI's and Ollama's APIs; without tokens where none are given."""
        try:
            return cls(text, tokens_of(listed))
        except RetrievalError as error:
            return cls(text, problem=error)


def tokens_of(listed: Any) -> tuple[Token, ...] | None:
    """Tokens from a list of `{"token": text, "logprob": number, "bytes": [...]}`; None where there is no list.

    Tokens that are part of a character are joined until it is complete, with their lowest probability. Raises
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
    # Rounding may lift certainty slightly above 0; servers send -9999 or -inf for unknown probabilities.
    if not isinstance(text, str) or not value <= 1e-3:
        raise RetrievalError(f"a token has a text and a log-probability of at most 0, not {str(item)[:200]}")
    return _encoded(text, item.get("bytes")), math.exp(min(value, 0.0))


def _encoded(text: str, given: Any) -> bytes:
    """The bytes of a token, which its text does not give for a part of a character."""
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


LONGEST_ANSWER = 20_000
"""The number of characters of an answer that are parsed, from its end."""
MOST_OPENINGS = 200
"""The most brackets without JSON that are tried in an answer: each takes time, while an event loop waits."""

_THOUGHTS = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.IGNORECASE | re.DOTALL)
_OPENING = re.compile(r"\[(?!\s*\[)|\{")
_PLACE = re.compile(r"\{(\w+)\}")


def filled(prompt: str, **values: object) -> str:
    """The prompt with its fields replaced in one pass: braces in the values, and other braces of the prompt, stay."""
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), prompt)


def as_json(value: Any) -> str:
    """A value as JSON on one line, for a prompt to show as data; surrogates, which no server reads, are replaced."""
    return encodable(json.dumps(value, ensure_ascii=False))


def aloud(answer: str) -> str:
    """The answer without a reasoning model's thoughts."""
    return _THOUGHTS.sub("", answer)


def lists_in(answer: str) -> Iterator[list[Any]]:
    """Yield the JSON lists, bare or as values of a JSON object, in a model's answer after its thoughts."""
    text, decoder, end, failed = aloud(answer)[-LONGEST_ANSWER:], json.JSONDecoder(), 0, 0
    for opening in _OPENING.finditer(text):
        if opening.start() < end or failed == MOST_OPENINGS:
            continue
        try:
            value, end = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            failed += 1
            continue
        values = list(value.values()) if isinstance(value, dict) else [value]
        values += [inner for outer in values if isinstance(outer, dict) for inner in outer.values()]
        yield from (found for found in values if isinstance(found, list))


class CallableTextModel:
    """A text model from any function from a prompt to a text."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self.function = function

    def complete(self, prompt: str) -> str:
        """The function's text."""
        return self.function(prompt)

    def __repr__(self) -> str:
        return f"CallableTextModel({self.function!r})"
