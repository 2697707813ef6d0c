"""Highlighting: which parts of a text have the terms of given words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TypeAlias
from unicodedata import category

from voicevault_retrievers.lexical.analysis import AnyAnalyzer, analyse, query_terms
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.analyzed_texts import tags_of

Span: TypeAlias = tuple[int, int]

_LONGEST = 256
"""The most characters of a piece that is analysed as a whole; longer ones are only cut up, to keep the work linear."""

_CHUNK = re.compile(r"(?:\S*§ )*\S+")
_JOINERS = "._@'‘’ʼ-‐‑"
_SIGNS = re.compile(
    rf"[{re.escape(_JOINERS)}+#§]+"
    r"|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)|(?<=[a-z]{2})(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z]{2})"
)
# Scripts without spaces begin at Thai; later scripts that use spaces are seldom mixed with earlier ones.
_SCRIPTS = re.compile(r"(?<=[\u0e00-\U0010ffff])(?=[\x00-\u0dff])|(?<=[\x00-\u0dff])(?=[\u0e00-\U0010ffff])")


def marked(text: str, words: Sequence[str], analyzer: AnyAnalyzer | None = None) -> list[tuple[str, bool]]:
    """The text in pieces, which join to it; True where a piece has the terms of one of the words.

    A word of several terms is marked as a whole where the analyzer has a term for it (`ERR_2043`), else by its parts.
    The text is analysed as a document, so that its language decides which words are equal. The default analyzer is
    `Analyzer()`. Terms that an analyzer joins from several words are not marked.
    """
    spans = _Reading(text, Analyzer() if analyzer is None else analyzer).spans(words)
    pieces: list[tuple[str, bool]] = []
    end = 0
    for first, last in _joined(spans):
        pieces += [(text[end:first], False)] if first > end else []
        pieces.append((text[first:last], True))
        end = last
    return [*pieces, (text[end:], False)] if end < len(text) else pieces


class _Reading:
    """An analysed text, in pieces that are cut into smaller ones while they have several terms."""

    def __init__(self, text: str, analyzer: AnyAnalyzer) -> None:
        self._text = text
        found = analyse(analyzer, [text])
        self._terms = frozenset(found.vocabulary)
        tags = tags_of(int(found.languages[0]))
        self._of: Callable[[str], frozenset[str]] = lru_cache(maxsize=None)(
            lambda piece: frozenset(form for term in query_terms(analyzer, piece, tags) for form in term.forms)
        )
        self._wanted: frozenset[str] = frozenset()
        self._known: dict[tuple[str, int], tuple[Span, ...]] = {}

    def spans(self, words: Iterable[str]) -> Iterator[Span]:
        """The spans of the words, where the text has their terms; spans may overlap."""
        chunks = {chunk for word in words for chunk in _CHUNK.findall(word)}
        self._wanted = self._terms & frozenset[str]().union(*(self._outermost(chunk, 0) for chunk in chunks))
        for chunk in _CHUNK.finditer(self._text) if self._wanted else ():
            yield from _shifted(self._within(chunk[0], 0), chunk.start())

    def _outermost(self, piece: str, level: int) -> frozenset[str]:
        """The terms that only the whole piece has, or, without such terms, those of its parts."""
        parts = [piece[first:last] for first, last in _cut(piece, level)]
        if len(piece) <= _LONGEST:
            own = self._of(piece).difference(*map(self._of, parts))
            if own or self._terms.isdisjoint(self._of(piece)):
                return own
        return frozenset[str]().union(*(self._outermost(part, level + 1) for part in parts))

    def _within(self, piece: str, level: int) -> tuple[Span, ...]:
        key = piece, level
        if key not in self._known:
            self._known[key] = tuple(self._looked_into(piece, level))
        return self._known[key]

    def _looked_into(self, piece: str, level: int) -> Iterator[Span]:
        """The spans of the smallest pieces with wanted terms; the whole piece for a term that no part has."""
        short = len(piece) <= _LONGEST
        left = self._of(piece) & self._wanted if short else frozenset()
        for first, last in _cut(piece, level) if left or not short else ():
            if spans := self._within(piece[first:last], level + 1):
                left = left and left - self._of(piece[first:last])
                yield from _shifted(spans, first)
        if left:
            yield 0, len(piece)


def _cut(piece: str, level: int) -> Iterator[Span]:
    """The next smaller pieces, down to single characters."""
    return _LEVELS[level](piece) if level < len(_LEVELS) else iter(())


def _runs(chunk: str) -> Iterator[Span]:
    """The words and identifiers in a chunk, without the signs around them."""
    if chunk.isalnum():
        yield 0, len(chunk)
        return
    for joins, run in groupby(range(len(chunk)), lambda at: _joins(chunk[at])):
        places = list(run)
        first, last = places[0], places[-1] + 1
        bare = chunk[first:last].rstrip(_JOINERS)
        if joins and bare.lstrip(_JOINERS):
            yield first + len(bare) - len(bare.lstrip(_JOINERS)), first + len(bare)


def _parts(run: str) -> Iterator[Span]:
    """The parts of an identifier."""
    return _between(_SIGNS, run)


def _scripts(part: str) -> Iterator[Span]:
    return _between(_SCRIPTS, part)


def _pairs(part: str) -> Iterator[Span]:
    """Pairs of neighbouring characters, as scripts without spaces are indexed."""
    units = list(_units(part))
    return ((first, last) for (first, _), (_, last) in pairwise(units))


def _units(part: str) -> Iterator[Span]:
    """Each character with its combining marks."""
    first = 0
    for at, character in enumerate(part):
        if at and not _is_mark(character):
            yield first, at
            first = at
    yield first, len(part)


_LEVELS: tuple[Callable[[str], Iterator[Span]], ...] = (_runs, _parts, _scripts, _pairs, _units)


@lru_cache(maxsize=1 << 14)
def _joins(character: str) -> bool:
    return character.isalnum() or character in _JOINERS or character in "+#§" or _is_mark(character)


def _is_mark(character: str) -> bool:
    return not character.isascii() and (category(character)[0] == "M" or category(character) == "Cf")


def _between(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    end = 0
    for sign in pattern.finditer(text):
        if sign.start() > end:
            yield end, sign.start()
        end = sign.end()
    if end < len(text):
        yield end, len(text)


def _shifted(spans: Iterable[Span], by: int) -> Iterator[Span]:
    return ((first + by, last + by) for first, last in spans)


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans in order, with touching ones merged."""
    held: Span | None = None
    for first, last in sorted(spans):
        if held is not None and first <= held[1]:
            held = held[0], max(held[1], last)
            continue
        if held is not None:
            yield held
        held = first, last
    if held is not None:
        yield held
