"""Splits a text after a paragraph or a sentence, else a line, else a word, else anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_CLOSING = r"""['")\]}\u2019\u201d\u00bb\u203a]*"""
_SHORT = "".join(rf"(?<!\b{word})" for word in ("Art", "Dr", "Fig", "Mr", "Mrs", "Ms", "No", "Prof", "Sec", "St", "vs"))
_FULL_STOP = rf"(?<!\b[^\W\d]){_SHORT}(?<!^\d)(?<!^\d\d)(?<!\n\d)(?<!\n\d\d)\."
"""A full stop that ends a sentence: not after one letter (`J.`, `v.`), an abbreviation, or a list item's number."""

SENTENCE = re.compile(
    rf"(?:{_FULL_STOP}|[!?\u2026\u061f\u06d4]){_CLOSING}(?=\s+[^\sa-z]|\s*\Z)"
    r"|[\u3002\uff01\uff1f\u0964\u0965][\u300d\u300f\uff09\u201d]*"
)
PARAGRAPH, LINE, WORD, ANYWHERE = map(re.compile, (r"(?=\n[^\S\n]*\n)", r"(?=\n)", r"(?=\s)", r"(?s)."))

_SEEN = re.compile(r"\S")

_AHEAD = 100
"""The number of characters after a position that may show that no sentence ends there."""


def pieces(text: str, size: int) -> Iterator[tuple[int, str]]:
    """Yield a text's pieces of at most `size` characters, trimmed and not empty, with their starts.

    Each piece is as long as possible. Where that would leave a short rest, both pieces get about half. Appended text
    changes at most the last two pieces.
    """
    last = len(text.rstrip())
    start = 0
    while (seen := _SEEN.search(text, start, last)) is not None:
        start, rest = seen.start(), last - seen.start()
        end = last if rest <= size else _end(text, start, size, rest // 2 if rest <= 2 * size else size)
        yield start, text[start:end].rstrip()
        start = end


def beginning(text: str, fits: Callable[[str], bool]) -> str:
    """The longest prefix that fits, up to the end of a sentence, else a word, else a character; empty if none fits."""
    found = (_longest(text, pattern, fits) for pattern in (SENTENCE, WORD, ANYWHERE))
    return next((part for part in found if part.strip()), "")


def _end(text: str, start: int, size: int, aim: int) -> int:
    """The border nearest to `aim` characters on, more than half of `size` or `aim` from the start."""
    least, most = start + min(size, aim) // 2, start + size
    for pattern in (PARAGRAPH, SENTENCE, LINE, WORD):
        ends = (match.end() for match in pattern.finditer(text, start, min(len(text), most + _AHEAD)))
        places = [end for end in ends if least < end <= most]
        if places:
            return min(places, key=lambda end: abs(end - start - aim))
    return start + aim


def _longest(text: str, pattern: re.Pattern[str], fits: Callable[[str], bool]) -> str:
    ends = [match.end() for match in pattern.finditer(text)]
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[: ends[middle - 1]]) else (low, middle - 1)
    return text[: ends[low - 1]] if low else ""
