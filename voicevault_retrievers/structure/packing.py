"""The texts that a model reads: without repetition, within a budget."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

from voicevault_retrievers.core.types import Query
from voicevault_retrievers.text.sentences import beginning
from voicevault_retrievers.text.tokens import TokenCounter

BETWEEN = "\n\n"
"""The separator between a header and the text below it."""

GAP, WIDEST_GAP = 2, 100
"""The most characters between adjoining chunks: if only positions tell, and if `next` confirms the order.

A splitter trims nothing but white space.
"""


@dataclass(frozen=True)
class CharacterSpan:
    """The characters of a document that a text covers. `at` names the text, `next` the following one."""

    document: Hashable
    start: int
    end: int
    at: str
    next: str | None = None


@dataclass(frozen=True)
class Text:
    """A text in parts, each with its first character's position, with its span and the header above it.

    Without a `span` its position is unknown. A `whole` text adjoins no other.
    """

    parts: tuple[tuple[int, str], ...]
    span: CharacterSpan | None = None
    whole: bool = False
    head: str = ""

    @classmethod
    def of(cls, body: str, span: CharacterSpan | None = None, *, whole: bool = False, head: str = "") -> Text:
        """A text in one part."""
        return cls(((0 if span is None else span.start, body),), span, whole, head)

    @property
    def body(self) -> str:
        """The text without its header; unknown characters between two parts are taken for white space."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        ends = (None, *(start + len(part) for start, part in self.parts))
        gaps = (0 if end is None else start - end for end, (start, _) in zip(ends, self.parts, strict=False))
        return "".join(BETWEEN[:gap] + part for gap, (_, part) in zip(gaps, self.parts, strict=True))

    @property
    def read(self) -> str:
        """The text with its header."""
        return f"{self.head}{BETWEEN}{self.body}" if self.head else self.body


class Room:
    """What remains of a budget."""

    def __init__(self, chars: int | None, tokens: int | None, count: TokenCounter) -> None:
        self._chars = math.inf if chars is None else chars
        self._tokens = math.inf if tokens is None else tokens
        self._count = cache(count)  # children that do not fit count their parent again and again

    @classmethod
    def of(cls, query: Query, chars: int | None, tokens: int | None, count: TokenCounter) -> Room:
        """The budget of a stage, reduced by that of the query."""
        limits = [limit for limit in (tokens, query.max_context_tokens) if limit is not None]
        return cls(chars, min(limits, default=None), count)

    def takes(self, text: str, freed: Iterable[str] = ()) -> bool:
        """Reserve space for a text that replaces the `freed` ones; returns whether it fits."""
        freed = list(freed)
        chars, tokens = self._needed(text, freed)
        if chars > self._chars or tokens > self._tokens:
            return False
        self._chars -= chars
        self._tokens -= tokens
        return True

    def fits(self, text: str) -> bool:
        """Whether a text still fits."""
        chars, tokens = self._needed(text, [])
        return chars <= self._chars and tokens <= self._tokens

    def _needed(self, text: str, freed: list[str]) -> tuple[int, int]:
        chars = len(text) - sum(map(len, freed))
        return chars, 0 if math.isinf(self._tokens) else self._count(text) - sum(map(self._count, freed))


class Shown:
    """The texts of hits, by their rank."""

    def __init__(self, room: Room, *, merge: bool) -> None:
        self.texts: dict[int, Text] = {}
        self._room = room
        self._merge = merge
        self._documents: defaultdict[Hashable, set[int]] = defaultdict(set)

    def add(self, place: int, text: Text) -> bool:
        """Add a text, merged with those it overlaps or adjoins, at their best rank; returns whether it fits."""
        joined, others = self._joined(text)
        if not self._room.takes(joined.read, (self.texts[other].read for other in others)):
            return False
        for other in others:
            del self.texts[other]
        best = min([place, *others])
        self.texts[best] = joined
        if joined.span is not None:
            self._documents[joined.span.document] = self._documents[joined.span.document] - set(others) | {best}
        return True

    def cut(self, place: int, text: Text) -> bool:
        """Add as much of a text as fits, up to a sentence's end if possible; returns whether its header is included."""
        for head in (text.head, ""):
            body = beginning(text.body, partial(self._fits, head))
            if body and self.add(place, Text.of(body, head=head)):
                return bool(head)
        return False

    def _fits(self, head: str, body: str) -> bool:
        return self._room.fits(Text.of(body, head=head).read)

    def _joined(self, text: Text) -> tuple[Text, list[int]]:
        """The text merged with those near it, and the ranks of these."""
        others: list[int] = []
        left = sorted(self._documents[text.span.document]) if self._merge and text.span is not None else []
        while (near := next(((at, both) for at in left if (both := together(self.texts[at], text))), None)) is not None:
            at, text = near
            others.append(at)
            left.remove(at)
        return text, others


def together(first: Text, second: Text) -> Text | None:
    """Two texts of one document merged, if they overlap, or adjoin and neither is whole; else None."""
    one, other = first.span, second.span
    if one is None or other is None or one.document != other.document:
        return None
    if other.start < one.start:
        one, other = other, one
    if other.start >= one.end and (first.whole or second.whole or not _adjoin(one, other)):
        return None
    parts = _joined((*first.parts, *second.parts))
    last = other if other.end > one.end else one
    span = replace(one, end=last.end, next=last.next)
    return None if parts is None else Text(parts, span, first.whole or second.whole, first.head or second.head)


def _joined(parts: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...] | None:
    """The parts in order, overlapping ones merged; None where they contradict each other."""
    joined: list[tuple[int, str]] = []
    for start, part in sorted(parts, key=lambda part: part[0]):
        begin, text = joined[-1] if joined else (start, "")
        end = begin + len(text)
        if start > end:
            joined.append((start, part))
        elif text.startswith(part[: end - start], start - begin):
            joined[-1:] = [(begin, text + part[end - start :])]
        else:
            return None
    return tuple(joined)


def _adjoin(one: CharacterSpan, other: CharacterSpan) -> bool:
    gap = other.start - one.end
    return gap <= GAP if one.next is None else one.next == other.at and gap <= WIDEST_GAP
