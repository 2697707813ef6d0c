"""A model's text as sentences with their confidence, read part by part; the sentences join to the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from voicevault_retrievers.answers.flare.writers import Marks, Segment, TextSpan, confidence_of, masked, spans_of
from voicevault_retrievers.models.generation import Written, aloud

LONGEST = 2000
"""The most characters of a sentence; a longer one is cut at a space."""

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
"""Abbreviations that end with a full stop before a number."""
_DAY = re.compile(r"(?:\A|\s)\d{1,2}\.\Z")
_MONTH = re.compile(r"(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez)")
_WORD = re.compile(r"\S")
_SPACES = re.compile(r"\s*")


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """The sentences of a text as adjoining offsets, each with the white space after it."""
    start = 0
    while (end := first_end(text, start)) is not None:
        yield start, end
        start = end
    if start < len(text):
        yield start, len(text)


def first_end(text: str, start: int = 0) -> int | None:
    """The end of the sentence that begins at `start`, with the white space and source markers after it.

    None where more text may belong to it: only the following text shows that "p. 3" or "[1]" does not go on.
    """
    first = _WORD.search(text, start)  # white space before the first word is part of the sentence
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
    """Whether a full stop ends a sentence, judged by the text around it."""
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
    """The position after the last space within the longest sentence, else its end."""
    end = text.rfind(" ", at + 1, at + LONGEST) + 1
    return end if end > 0 else at + LONGEST


_THINKING = ("<think>", "<thinking>")
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


@dataclass(frozen=True)
class Drafted:
    """A sentence that may be written again; `sure` is its text without the doubtful words."""

    segment: Segment
    sure: str


class Draft:
    """Splits a text that comes in parts into sentences, each as soon as it is complete.

    Removes a reasoning model's thoughts, the answer so far (`after`) where the model repeats it, white space before the
    first word and, with `marks`, the marks.
    """

    def __init__(self, threshold: float, *, marks: bool, after: str = "") -> None:
        self._threshold = threshold
        self._marks = Marks() if marks else None
        self._after = after.strip()
        self._opening: str | None = ""
        self._opened: list[tuple[str, float | None]] = []
        self._text = ""
        self._spans: list[TextSpan] = []
        self._at = 0
        self._ended = False

    def feed(self, part: Written) -> None:
        """Add the next part."""
        pieces = spans_of(part)
        if self._opening is None:
            self._take(pieces)
            return
        self._opening += part.text
        self._opened += pieces
        skip = self._skipped(self._opening)
        if skip is not None:
            self._open(skip)

    def end(self) -> None:
        """End the text."""
        if self._opening is not None:
            self._open(len(self._opening) - len(aloud(self._opening).lstrip()))
        if self._marks is not None:
            self._append(self._marks.end())
        self._ended = True

    def next(self) -> Drafted | None:
        """The next sentence; None where it is incomplete, or there is none."""
        end = first_end(self._text, self._at)
        if end is None and self._ended and self._text[self._at :].strip():
            end = len(self._text)
        if end is None:
            return None
        start, self._at = self._at, end
        text = self._text[start:end]
        spans = [
            TextSpan(max(span.start, start) - start, min(span.end, end) - start, span.probability)
            for span in self._spans
            if span.start < end and span.end > start
        ]
        self._spans = [span for span in self._spans if span.end > end]
        segment = Segment(text, confidence_of(text, spans))
        return Drafted(segment, masked(text, spans, self._threshold))

    def _skipped(self, text: str) -> int | None:
        """The number of leading characters that are not the answer; None where more text is needed to tell."""
        blank = len(text) - len(text.lstrip())
        said = text[blank:]
        if not said or any(tag.startswith(said.lower()) and tag != said.lower() for tag in _THINKING):
            return None
        if said.lower().startswith(_THINKING):
            thought = _THOUGHT.search(text)
            if thought is None or not text[thought.end() :].strip():
                return None
            said = text[thought.end() :].lstrip()
        if self._after and self._after.startswith(said.rstrip()):
            return None
        if self._after and said.startswith(self._after):
            said = said[len(self._after) :].lstrip()
            return len(text) - len(said) if said else None
        return len(text) - len(said)

    def _open(self, skip: int) -> None:
        """Begin the answer after the first `skip` characters."""
        pieces, self._opened, self._opening = self._opened, [], None
        kept: list[tuple[str, float | None]] = []
        for text, probability in pieces:
            cut = min(skip, len(text))
            skip -= cut
            if text[cut:]:
                kept.append((text[cut:], probability))
        self._take(kept)

    def _take(self, pieces: list[tuple[str, float | None]]) -> None:
        if self._marks is not None:
            pieces = self._marks.feed("".join(text for text, _ in pieces))
        self._append(pieces)

    def _append(self, pieces: list[tuple[str, float | None]]) -> None:
        at, texts = len(self._text), []
        for text, probability in pieces:
            texts.append(text)
            self._spans.append(TextSpan(at, at + len(text), probability))
            at += len(text)
        self._text += "".join(texts)
