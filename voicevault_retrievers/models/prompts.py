"""Prompts: texts with places in braces, such as `{query}`; and what a model answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

LONGEST_ANSWER = 20_000
"""How many characters of an answer are read, the last ones."""
MOST_OPENINGS = 200
"""An answer with more brackets that begin no JSON is not read on: each costs time, and an event loop waits."""

_THOUGHTS = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.IGNORECASE | re.DOTALL)
_OPENING = re.compile(r"\[(?!\s*\[)|\{")
_PLACE = re.compile(r"\{(\w+)\}")


def filled(prompt: str, **values: object) -> str:
    """A prompt with its places filled, each once: braces in the values, and other braces of the prompt, stay."""
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), prompt)


def aloud(answer: str) -> str:
    """What a model said aloud: a reasoning model's thoughts are dropped."""
    return _THOUGHTS.sub("", answer)


def lists_in(answer: str) -> Iterator[list[Any]]:
    """The JSON lists, bare or as values of a JSON object, in what a model says behind its thoughts."""
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
    """Any function from a prompt to a text, as a text model."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self.function = function

    def complete(self, prompt: str) -> str:
        """What the function gives."""
        return self.function(prompt)

    def __repr__(self) -> str:
        return f"CallableTextModel({self.function!r})"
