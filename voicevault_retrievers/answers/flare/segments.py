"""Where the sentences of a text end; exact, so that they joined again are the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 2000
"""Characters of a sentence; a longer one is cut at a space."""

_MARKER = r"\[[^\[\]\n]{1,300}\]"
_CLOSING = "\"'”’»›)*_`"
_END = re.compile(rf"(?:[.!?؟۔…]+[{_CLOSING}\]]*(?=[\s\[])|[。！？।॥]+[{_CLOSING}」』）]*)(?:[^\S\n]*{_MARKER})*|\n\s*")
_ENUMERATOR = re.compile(r"(?:\A|\n)[^\S\n]*(?:\d{1,3}|[A-Za-z])\.\Z")
_ABBREVIATION = re.compile(
    r"(?:\A|[\s(.])(?:[^\W\d_]|dr|mrs?|ms|prof|st|vs|cf|ca|e\.g|i\.e|z\.b|d\.h|u\.a|bzw|vgl|ggf|inkl|evtl|sog)\.\Z",
    re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"(?:\A|[\s(])(?:nos?|nr|fig|sec|art|abs|para|ch|vol|pp?|eds?|approx|jan|feb|mar|apr|aug|sept?|oct|nov|dec)\.\Z",
    re.IGNORECASE,
)
"""What ends with a full stop before a number."""
_DAY = re.compile(r"(?:\A|\s)\d{1,2}\.\Z")
_MONTH = re.compile(r"(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez)")
_WORD = re.compile(r"\S")
_SPACES = re.compile(r"\s*")


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """The sentences of a text as offsets: each begins where the one before ends, the spaces behind it included."""
    start = 0
    while (end := first_end(text, start)) is not None:
        yield start, end
        start = end
    if start < len(text):
        yield start, len(text)


def first_end(text: str, start: int = 0) -> int | None:
    """Where the sentence that begins at `start` ends, the spaces and source markers behind it included.

    None where more text may belong to it: only what follows tells that "p. 3" or "[1]" does not go on.
    """
    first = _WORD.search(text, start)  # what stands before the first word is part of it
    if first is None:
        return None
    at = first.start()
    for found in _END.finditer(text, at, at + LONGEST):
        end = _behind(text, found.end())
        if end == len(text) or (text[end] == "[" and "]" not in text[end : end + 300]):
            return None
        if "\n" in text[found.start() : end] or not found[0].startswith(".") or _stops(text, at, found, end):
            return end
    return _cut(text, at) if len(text) - at > LONGEST else None


def _stops(text: str, start: int, found: re.Match[str], end: int) -> bool:
    """Whether a full stop ends a sentence, by what stands around it."""
    before = text[max(start - 1, 0, found.start() - 20) : found.start() + 1]
    if _ENUMERATOR.search(before) or _ABBREVIATION.search(before) or text[end].islower():
        return False
    if _NUMBERED.search(before) and text[end].isdigit():
        return False
    return not (_DAY.search(before) and _MONTH.match(text, end))


def _behind(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


def _cut(text: str, at: int) -> int:
    """Behind the last space within the longest sentence, else at its end."""
    end = text.rfind(" ", at + 1, at + LONGEST) + 1
    return end if end > 0 else at + LONGEST
