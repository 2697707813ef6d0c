"""The texts that a model will read: none twice, together within a budget."""

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
"""What stands between a header and the text below it."""

GAP, WIDEST_GAP = 2, 100
"""How many characters may be between two chunks that adjoin: where nothing else tells that, and where their order does.

A splitter trims white space, and nothing else.
"""


@dataclass(frozen=True)
class CharacterSpan:
    """From which character of a document to which a text goes. `at` names it there, `next` the one that follows."""

    document: Hashable
    start: int
    end: int
    at: str
    next: str | None = None


@dataclass(frozen=True)
class Text:
    """A text in parts, each with the character that it begins at, where it stands, and the header above it.

    Without a `span` it is not known where it stands. One that is `whole` adjoins no other.
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
        """The text without its header; what is not known between two parts is white space."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        ends = (None, *(start + len(part) for start, part in self.parts))
        gaps = (0 if end is None else start - end for end, (start, _) in zip(ends, self.parts, strict=False))
        return "".join(BETWEEN[:gap] + part for gap, (_, part) in zip(gaps, self.parts, strict=True))

    @property
    def read(self) -> str:
        """The header and the text."""
        return f"{self.head}{BETWEEN}{self.body}" if self.head else self.body


class Room:
    """What is left of a budget."""

    def __init__(self, chars: int | None, tokens: int | None, count: TokenCounter) -> None:
        self._chars = math.inf if chars is None else chars
        self._tokens = math.inf if tokens is None else tokens
        self._count = cache(count)  # children that do not fit ask for their parent again and again

    @classmethod
    def of(cls, query: Query, chars: int | None, tokens: int | None, count: TokenCounter) -> Room:
        """The room that a stage has, and a query, which may have less."""
        limits = [limit for limit in (tokens, query.max_context_tokens) if limit is not None]
        return cls(chars, min(limits, default=None), count)

    def takes(self, text: str, freed: Iterable[str] = ()) -> bool:
        """Whether a text still fits, in the place of some that are in; it is in then."""
        freed = list(freed)
        chars, tokens = self._needed(text, freed)
        if chars > self._chars or tokens > self._tokens:
            return False
        self._chars -= chars
        self._tokens -= tokens
        return True

    def fits(self, text: str) -> bool:
        """Whether a text would still fit."""
        chars, tokens = self._needed(text, [])
        return chars <= self._chars and tokens <= self._tokens

    def _needed(self, text: str, freed: list[str]) -> tuple[int, int]:
        chars = len(text) - sum(map(len, freed))
        return chars, 0 if math.isinf(self._tokens) else self._count(text) - sum(map(self._count, freed))


class Shown:
    """The texts of hits, by their places in the ranking."""

    def __init__(self, room: Room, *, merge: bool) -> None:
        self.texts: dict[int, Text] = {}
        self._room = room
        self._merge = merge
        self._documents: defaultdict[Hashable, set[int]] = defaultdict(set)

    def add(self, place: int, text: Text) -> bool:
        """Show a text, as one with those that it overlaps or adjoins, at the best of their places; whether it fits."""
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
        """Show as much of a text as fits, up to a sentence's end where one does; whether its header is above it."""
        for head in (text.head, ""):
            body = beginning(text.body, partial(self._fits, head))
            if body and self.add(place, Text.of(body, head=head)):
                return bool(head)
        return False

    def _fits(self, head: str, body: str) -> bool:
        return self._room.fits(Text.of(body, head=head).read)

    def _joined(self, text: Text) -> tuple[Text, list[int]]:
        """The text as one with those near it, and where these are."""
        others: list[int] = []
        left = sorted(self._documents[text.span.document]) if self._merge and text.span is not None else []
        while (near := next(((at, both) for at in left if (both := together(self.texts[at], text))), None)) is not None:
            at, text = near
            others.append(at)
            left.remove(at)
        return text, others


def together(first: Text, second: Text) -> Text | None:
    """Two texts of one document as one where they overlap, or adjoin and neither is whole; the header of the first."""
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
    """Parts in their order, those that overlap as one; None where they are not of one text."""
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
