"""Prompts: texts with places in braces, such as `{query}`; and what a model answers."""

from __future__ import annotations

import re
from collections.abc import Callable

_THOUGHTS = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.IGNORECASE | re.DOTALL)
_PLACE = re.compile(r"\{(\w+)\}")


def filled(prompt: str, **values: object) -> str:
    """A prompt with its places filled, each once: braces in the values, and other braces of the prompt, stay."""
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), prompt)


def aloud(answer: str) -> str:
    """What a model said aloud: a reasoning model's thoughts are dropped."""
    return _THOUGHTS.sub("", answer)


class CallableTextModel:
    """Any function from a prompt to a text, as a text model."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self.function = function

    def complete(self, prompt: str) -> str:
        """What the function gives."""
        return self.function(prompt)

    def __repr__(self) -> str:
        return f"CallableTextModel({self.function!r})"
