"""Prompts: texts with places in braces, such as `{query}`."""

from __future__ import annotations

import re

_PLACE = re.compile(r"\{(\w+)\}")


def filled(prompt: str, **values: object) -> str:
    """A prompt with its places filled, each once: braces in the values, and other braces of the prompt, stay."""
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), prompt)
