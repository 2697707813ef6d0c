"""Characters that untrusted text must not have where a person or a model reads it."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    r"(?P<blank>[\x0b\x0c\x1c-\x1f\x85]|\r(?!\n))"
    r"|[\x00-\x08\r\x0e-\x1b\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def without_controls(text: str) -> str:
    """A text without control characters, except newlines and tabs, and without bidirectional characters.

    A terminal obeys the former; the latter show a text in another order than a model reads it. Those that count as
    white space become a space, so that words stay apart.
    """
    return _UNSEEN.sub(lambda found: " " if found["blank"] else "", text)


def encodable(text: str) -> str:
    """A text with `?` for each lone surrogate, as broken PDFs give them: nothing that takes UTF-8 takes one."""
    return text.encode("utf-8", "replace").decode()
