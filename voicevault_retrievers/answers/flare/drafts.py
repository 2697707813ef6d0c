"""What a model writes, part by part, as sentences with their confidence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voicevault_retrievers.answers.flare.segments import first_end
from voicevault_retrievers.answers.flare.uncertainty import Marks, Segment, TextSpan, confidence_of, masked, spans_of
from voicevault_retrievers.models.generation import Written
from voicevault_retrievers.models.prompts import aloud

_THINKING = ("<think>", "<thinking>")
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


@dataclass(frozen=True)
class Drafted:
    """A sentence that may yet be written again; `sure` is its text without what the model is not sure of."""

    segment: Segment
    sure: str


class Draft:
    """Takes the parts of a text and gives its sentences, as soon as each is complete.

    Left out are a reasoning model's thoughts, the answer so far (`after`) where the model repeats it, blanks before the
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
        """Take the next part."""
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
        """There is no further part."""
        if self._opening is not None:
            self._open(len(self._opening) - len(aloud(self._opening).lstrip()))
        if self._marks is not None:
            self._append(self._marks.end())
        self._ended = True

    def next(self) -> Drafted | None:
        """The next sentence; None where it is not complete yet, or there is none."""
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
        """How much of the beginning is not the answer; None where more must be read to tell."""
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
        """Begin with what stands behind the first `skip` characters."""
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
