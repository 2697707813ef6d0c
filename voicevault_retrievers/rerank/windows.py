"""The window of a long passage that matches a query best: the part that a reranker reads.

Callan (1994), SIGIR, "Passage-level evidence in document retrieval": a document is as relevant as its best window of
fixed length. Kaszkiel and Zobel (2001), JASIST 52(4), "Effective ranking with arbitrary passages": windows may begin at
any word, as they do here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.text.analyzer import Analyzer
from voicevault_retrievers.text.languages import OTHER, TAGS, script, untagged
from voicevault_retrievers.text.stopwords import AMBIGUOUS, ENGLISH
from voicevault_retrievers.text.terms import LONGEST

Window: TypeAlias = tuple[int, int]

_Match: TypeAlias = tuple[int, int, int]
"""The start and end of a query word in a passage, and the number of its term."""

_SCALE = 1 << 20
"""The factor that makes weights whole numbers, so that sums do not depend on their order and ties are exact."""

_NEAR = 8
"""A border is searched within this fraction of a window."""

_SENTENCE_ENDS = (". ", "? ", "! ", "\n", "。", "？", "！", "।", "؟ ", "۔ ")
_FOLDED = (*range(0x2000), *range(0xFF00, 0xFFF0))
_ASCII = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
_PIECE = re.compile(rf"[\w.@'’+#-]{{1,{LONGEST}}}")
_TAGS = frozenset(TAGS.values())

# Normal forms write a Thai or Lao vowel as two signs: the ring is removed, the stroke kept.
_RINGS = str.maketrans("", "", "\u0e4d\u0ecd")
_STROKES = {0xE33: 0xE32, 0xEB3: 0xEB2}


class _Term(NamedTuple):
    """The beginning of a term's words in a folded passage, and its forms; no forms where it may occur inside a word."""

    key: str
    forms: frozenset[str]


class _Asked(NamedTuple):
    """A query's terms, with the analyzer and the language tags for reading words."""

    terms: list[_Term]
    analyzer: Analyzer
    tags: str


class WindowSelector:
    """Finds the window of each passage that matches a query best. The query is analysed once, if a passage is long.

    A window has at most `max_chars` characters, and is the whole passage where that fits. Its score is the sum of its
    query terms' weights; each further occurrence of a term adds half of the one before. Terms are those of `Analyzer`
    in the query's own languages: stems without stopwords, and pairs of characters in scripts without spaces.
    """

    def __init__(self, query: str, max_chars: int) -> None:
        self.query = query
        self.max_chars = whole("max_chars", max_chars)
        self._known: dict[str, frozenset[str]] = {}

    def windows(self, passages: Sequence[str]) -> list[Window]:
        """The start and end of each passage's best window, in characters; the earliest among equals.

        A term's weight is log(1 + n / d), where d of the n passages contain it: more for terms that are rare among
        them. Windows start and end between sentences, else words, where such a border is near and no match is cut.
        """
        if all(len(passage) <= self.max_chars for passage in passages):
            return [(0, len(passage)) for passage in passages]
        matches = [self._matches(passage) for passage in passages]
        weights = _weights(matches, len(self._asked.terms))
        return [
            _placed(passage, _best(found, weights, self.max_chars), self.max_chars)
            for passage, found in zip(passages, matches, strict=True)
        ]

    @cached_property
    def _asked(self) -> _Asked:
        return _asked(self.query)

    def _matches(self, passage: str) -> list[_Match]:
        found: list[_Match] = []
        folded, spaced = "", ""
        for number, term in enumerate(self._asked.terms):
            if term.forms:
                text = spaced = spaced or _spaced(passage)
            else:
                text = folded = folded or _folded(passage)
            at = text.find(term.key)
            while at >= 0:
                end = self._end(passage, at, term)
                if end:
                    found.append((at, min(end, at + self.max_chars), number))
                at = text.find(term.key, end or at + 1)
        return sorted(found)

    def _end(self, passage: str, at: int, term: _Term) -> int:
        """The end of the word whose key starts at this position; 0 where the word is not the term's."""
        if not term.forms:
            return at + len(term.key)
        piece = _PIECE.match(passage, at)
        return piece.end() if piece and not term.forms.isdisjoint(self._forms(piece[0])) else 0

    def _forms(self, piece: str) -> frozenset[str]:
        if piece not in self._known:
            asked = self._asked.analyzer.query(piece, self._asked.tags)
            self._known[piece] = frozenset(chain.from_iterable(term.forms for term in asked))
        return self._known[piece]

    def __repr__(self) -> str:
        return f"WindowSelector({self.query!r}, {self.max_chars})"


def best_window(query: str, text: str, max_chars: int) -> Window:
    """The start and end of the window of a text that matches a query best, with equal weights for all terms."""
    return WindowSelector(query, max_chars).windows([text])[0]


def _asked(query: str) -> _Asked:
    """The terms of a query. Stopwords are terms only in a query without other words."""
    analyzer = Analyzer()
    found = analyzer(query)
    if not found:
        analyzer = Analyzer(stopwords=False)
        found = analyzer(query)
    tags = "".join(sorted({term[0] for term in found} & _TAGS))
    asked = analyzer.query(query, tags)
    telling = [term for term in asked if not _common(term.word)] or asked
    words = {term.forms: term.word for term in telling}
    return _Asked([_term(word, forms) for forms, word in words.items()], analyzer, tags)


def _common(word: str) -> bool:
    """Whether a word is only interrogative (what, how), or a single Chinese character, which is unspecific."""
    return (word in ENGLISH and word not in AMBIGUOUS) or (len(word) == 1 and script(word) == OTHER)


def _term(word: str, forms: Iterable[str]) -> _Term:
    """A word's term. The key is the common prefix of the word and its stems, cut before a varying spelling (ss, ß)."""
    if script(word) == OTHER:
        return _Term(_folded(word.translate(_RINGS)), frozenset())
    if len(word) == 1 or word.isdigit():
        return _Term(_spaced(word), frozenset(forms))
    folded = key = _folded(word)
    for form in forms:
        while not _folded(untagged(form)).startswith(key):
            key = key[:-1]
    key = key if len(key) > 1 else folded
    return _Term(_spaced(key[: key.find("ss") + 1] or key)[:-1], frozenset(forms))


def _weights(matches: Sequence[Sequence[_Match]], terms: int) -> list[int]:
    counts = Counter(number for found in matches for number in {number for _, _, number in found})
    return [int(_SCALE * math.log1p(len(matches) / max(1, counts[number]))) for number in range(terms)]


def _best(matches: Sequence[_Match], weights: Sequence[int], max_chars: int) -> Window | None:
    """The start and end of the matches in the best window; None where there are none."""
    counts = [0] * len(weights)
    score = best = last = reach = 0
    found: Window | None = None
    for start, _, number in matches:
        while last < len(matches) and matches[last][1] <= start + max_chars:
            entering = matches[last][2]
            score += weights[entering] >> counts[entering]
            counts[entering] += 1
            reach = max(reach, matches[last][1])
            last += 1
        if score > best:
            best, found = score, (start, reach)
        counts[number] -= 1
        score -= weights[number] >> counts[number]
    return found


def _placed(text: str, matched: Window | None, max_chars: int) -> Window:
    """The window centred on the matched range, or at the start of the text where that contains the range."""
    first, last = matched or (0, 0)
    near = max_chars // _NEAR
    start = 0
    if last > max_chars:
        start = max(0, min(first - (max_chars - (last - first)) // 2, len(text) - max_chars))
        start = start and _border(text, start, min(first, start + near), ahead=True)
    end = min(len(text), start + max_chars)
    return start, end if end == len(text) else _border(text, max(last, end - near), end, ahead=False)


def _border(text: str, low: int, high: int, *, ahead: bool) -> int:
    """The first position from `low` (`ahead`), or the last up to `high`, after a sentence, a word, or
    else the bound.
    """
    find, nearest = (text.find, min) if ahead else (text.rfind, max)
    for marks in (_SENTENCE_ENDS, (" ",)):
        found = [(find(mark, max(0, low - len(mark)), high), mark) for mark in marks]
        if places := [at + len(mark) for at, mark in found if at >= 0]:
            return nearest(places)
    return low if ahead else high


def _folded(text: str) -> str:
    """The text without case and accents, folded character by character, so that offsets stay valid."""
    if text.isascii():
        return text.lower()
    codes = _codes(text)
    return _decoded(np.where(codes < len(_plain()), _plain()[codes & 0xFFFF], codes))


def _spaced(text: str) -> str:
    """The folded text with a space at both ends, and in place of each character that is not part of a word."""
    if text.isascii():
        return f" {text.translate(_ASCII)} "
    return f" {_decoded(_lettered()[np.minimum(_codes(text), 0xFFFF)])} "


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _decoded(codes: NDArray[np.uint32]) -> str:
    return codes.astype("<u4", copy=False).tobytes().decode("utf-32-le", "surrogatepass")


@cache
def _plain() -> NDArray[np.uint32]:
    """`_folded` of each character of the basic plane."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for code in _FOLDED:
        table[code] = ord(normalize("NFKD", chr(code).casefold())[0])
    table[list(_STROKES)] = list(_STROKES.values())
    return table


@cache
def _lettered() -> NDArray[np.uint32]:
    """`_spaced` of each character of the basic plane."""
    table = np.full(1 << 16, ord(" "), dtype=np.uint32)
    inside = [code for code in _FOLDED if category(chr(code))[0] in "LMN" and script(chr(code)) != OTHER]
    table[inside] = _plain()[inside]
    return table
