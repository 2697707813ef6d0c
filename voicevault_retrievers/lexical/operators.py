"""Operators in a query: `"an exact phrase"`, `+must`, `-not`, `prefix*` and `misspeled~`.

- An operator stands at the start of a word; elsewhere its sign is part of the word: `HS-4410-B`, `a+b`, `C++`.
- A chunk must contain `"…"` word after word. Typographic quotes work as well; a quote that is not closed is text.
- A chunk must contain `+word`, and must not contain `-word` or `-"…"`. A sign that stands alone, or before another sign
  (`--verbose`), is text. A word that the analyzer splits (`e-mail`) is a phrase of its parts.
- Words are compared after analysis: case, accents, endings, stopwords, and signs between words are ignored. So the
  query `"state of the art"` also matches "state: art". A stopword demands nothing.
- An identifier matches in any spelling, but not as two words: `ERR_2043` matches `err-2043`, and not `err 2043`.
- A single Chinese character may occur anywhere in the text: only pairs of characters have an order.
- Required words score like other words, excluded words do not. A query with `-not` alone finds nothing.
- `instal*` stands for every word that begins with it, `misspeled~` for the words of the index that are as near as their
  length allows (see `text.spelling`), `~1` and `~2` for those with at most so many edits. Either may follow `+` or `-`.
  They apply to a single word of at least two letters or digits; elsewhere, and within quotes, `*` and `~` are text.

The terms are looked up in the postings. The postings hold no positions, so the order of words is checked in the texts
of the best chunks that contain all of them. A phrase of frequent words that are rarely adjacent is therefore slow.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import and_, or_
from typing import NamedTuple, TypeAlias

import numpy as np

from voicevault_retrievers.core.selection import Mask, Ordinals, Selection
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, analyse, query_terms
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.languages import TAGS, candidates
from voicevault_retrievers.text.prefixes import SHORTEST, whole_word
from voicevault_retrievers.text.spelling import edits_allowed

UNHEARD = "\0"
"""A term that no index has."""

_QUOTES = '"“”„«»'
_PHRASE = rf"(?P<sign>[+-]?)[{_QUOTES}](?=\s*[^\s{_QUOTES}])(?P<phrase>[^{_QUOTES}]*)[{_QUOTES}]"
_PATTERN = rf"(?P<before>[+-]?)(?P<stem>[^\W_][^\s*~{_QUOTES}]*)(?P<after>\*|~[12]?)(?=[.,;:!?)\]}}]*(?!\S))"
_OPERATOR = re.compile(rf"(?<!\S)(?:{_PHRASE}|{_PATTERN}|(?P<mark>[+-])(?=[^\s+\-{_QUOTES}])(?P<word>\S+))")


@dataclass(frozen=True)
class TermPattern:
    """A word that stands for several terms of an index: with the operator `*`, `~`, `~1` or `~2`."""

    word: str
    operator: str

    @property
    def is_prefix(self) -> bool:
        return self.operator == "*"

    def edits(self, word: str) -> int:
        """The number of edits that a term of this length may be away: at least 1."""
        return int(self.operator[1:]) if self.operator[1:] else max(1, edits_allowed(word))

    def __str__(self) -> str:
        return self.word + self.operator


Operand: TypeAlias = str | TermPattern
Standing: TypeAlias = Callable[[TermPattern], Iterable[str]]
"""A function that returns the terms of an index that a pattern stands for."""


@dataclass(frozen=True)
class Operators:
    """A parsed query: the `text` and the `patterns` that score, and what chunks must or must not contain."""

    text: str
    must: tuple[Operand, ...] = ()
    phrases: tuple[str, ...] = ()
    never: tuple[Operand, ...] = ()
    patterns: tuple[TermPattern, ...] = ()

    @classmethod
    def parse(cls, query: str, analyzer: AnyAnalyzer | None = None) -> Operators:
        """Parse the operators of a query. Any text is valid.

        A pattern whose word the analyzer splits is a plain word.
        """
        must, phrases, never, patterns = list[Operand](), list[str](), list[Operand](), list[TermPattern]()

        def plain(found: re.Match[str]) -> str:
            word = found["stem"] or found["word"] or ""
            pattern = TermPattern(word, found["after"]) if found["stem"] else None
            if pattern and not _is_one_word(word, analyzer):
                pattern = None
            operand = found["phrase"] or pattern or word
            sign = found["sign"] or found["mark"] or found["before"]
            if sign == "-":
                never.append(operand)
                return ""
            if found["phrase"]:
                phrases.append(found["phrase"])
            elif sign == "+":
                must.append(operand)
            if pattern:
                patterns.append(pattern)
                return ""
            return f"{operand} "

        text = _OPERATOR.sub(plain, query)
        return cls(text, tuple(must), tuple(phrases), tuple(never), tuple(patterns))

    def under(self, other: Operators) -> Operators:
        """These operators with the demands of another query added."""
        must, never = other.must + self.must, other.never + self.never
        return Operators(self.text, must, other.phrases + self.phrases, never, self.patterns)

    def demands(self, analyzer: AnyAnalyzer, tags: str, standing: Standing) -> Demands | None:
        """The demands on chunks of an index with this analyzer and these language tags; None where there are none."""

        def passage(operand: Operand) -> _Passage:
            if isinstance(operand, TermPattern):
                return _Passage.of_terms(standing(operand) or [UNHEARD])
            return _Passage.of(analyzer, operand, tags)

        required = [passage(operand) for operand in self.must + self.phrases]
        excluded = [passage(operand) for operand in self.never]
        found = Demands(analyzer, tuple(filter(None, required)), tuple(filter(None, excluded)))
        return found if found.required or found.excluded else None


class _Reading(NamedTuple):
    """A passage's terms in documents of certain languages.

    `order` are the terms that must be adjacent. A text with a term that has a tag in `foreign` is in another language.
    """

    terms: tuple[str, ...]
    order: tuple[str, ...]
    foreign: frozenset[str]


class _Passage(tuple[_Reading, ...]):
    """A word or a phrase, with its readings in the languages of an index.

    A document has one language per script, and a stopword of one language is a word of another. Languages with the same
    terms share a reading. A passage without readings consists of stopwords in every language.
    """

    @classmethod
    def of(cls, analyzer: AnyAnalyzer, text: str, tags: str) -> _Passage:
        spoken: dict[tuple[str, ...], set[str]] = {}
        for choice in product(*_choices(tags)):
            terms = tuple(term.forms[0] for term in query_terms(analyzer, text, "".join(choice)))
            spoken.setdefault(terms, set()).update(choice)
        longest = max(map(len, spoken))
        return cls(
            _Reading(
                terms,
                tuple(term for term in terms if _is_placed(analyzer, term)),
                # A reading that lost a stopword must not match documents in languages that keep that word.
                frozenset(tags) - own if len(terms) < longest else frozenset(),
            )
            for terms, own in spoken.items()
            if terms
        )

    @classmethod
    def of_terms(cls, terms: Iterable[str]) -> _Passage:
        """A word that is any of some terms."""
        return cls(_Reading((term,), (term,), frozenset()) for term in terms)

    @property
    def is_word(self) -> bool:
        """Whether the postings alone decide a match."""
        return all(len(reading.order) < 2 and not reading.foreign for reading in self)

    def candidates(self, segment: IndexSegment, among: Selection) -> Selection:
        """The rows that contain all terms of a reading."""
        return Selection.union(among.size, [_having(segment, reading.terms, among) for reading in self])

    def stands_in(self, texts: _Texts) -> Mask:
        """Which texts contain the passage."""
        return reduce(or_, (texts.have(reading) for reading in self))


class Demands(NamedTuple):
    """The demands on chunks: passages that each must contain, and passages that none may contain."""

    analyzer: AnyAnalyzer
    required: tuple[_Passage, ...]
    excluded: tuple[_Passage, ...]

    def narrow(self, segment: IndexSegment, rows: Selection | None) -> Selection:
        """The rows (None for all) that may satisfy the demands, as far as the postings decide."""
        left = Selection.everything(len(segment.rows)) if rows is None else rows
        for passage in self.required:
            left = passage.candidates(segment, left)
        for passage in self.excluded:
            left = left & ~passage.candidates(segment, left) if passage.is_word else left
        return left

    def met(self, chunks: Sequence[Chunk]) -> list[bool]:
        """Which chunks satisfy the demands, of those that `narrow` leaves."""
        required = [passage for passage in self.required if not passage.is_word]
        excluded = [passage for passage in self.excluded if not passage.is_word]
        met = np.ones(len(chunks), dtype=np.bool_)
        if required or excluded:
            texts = _Texts(self.analyzer, [chunk.indexed_text for chunk in chunks])
            for passage in required:
                met &= passage.stands_in(texts)
            for passage in excluded:
                met &= ~passage.stands_in(texts)
        return met.tolist()

    def passing(self, segments: Iterable[IndexSegment], ids: Sequence[str]) -> list[str]:
        """The given chunks that are live and satisfy the demands."""
        found: list[Chunk] = []
        for segment in segments:
            places = sorted(segment.rows.places(ids).values())
            if places:
                left = self.narrow(segment, Selection(len(segment.rows), np.array(places, dtype=np.uint32)))
                found += [segment.rows.chunks[at] for at in left.ordinals.tolist()]
        return [chunk.id for chunk, met in zip(found, self.met(found), strict=True) if met]


class _Texts:
    """Texts as a stream of term numbers: `terms` of all texts, and `owners`, the text of each term."""

    def __init__(self, analyzer: AnyAnalyzer, texts: Sequence[str]) -> None:
        analyzed = analyse(analyzer, texts)
        self.count = len(texts)
        self.numbers = {term: number for number, term in enumerate(analyzed.vocabulary)}
        self.terms = analyzed.terms
        self.owners = np.repeat(np.arange(len(texts)), analyzed.lengths)
        self.placed = self._places(lambda term: _is_placed(analyzer, term))

    def have(self, reading: _Reading) -> Mask:
        """Which texts contain all terms of a reading, with ordered terms adjacent, and no foreign tags."""
        found = ~self._owning(self._places(lambda term: term[:1] in reading.foreign))
        for wanted in set(reading.terms) - set(reading.order):
            found &= self._owning(self.terms == self._number(wanted))
        return found & self._in_order(reading.order) if reading.order else found

    def _in_order(self, order: Sequence[str]) -> Mask:
        terms, owners = self.terms[self.placed], self.owners[self.placed]
        starts = np.arange(max(0, len(terms) - len(order) + 1))
        for offset, term in enumerate(order):
            starts = starts[terms[starts + offset] == self._number(term)]
        starts = starts[owners[starts] == owners[starts + len(order) - 1]]
        return np.bincount(owners[starts], minlength=self.count) > 0

    def _owning(self, places: Mask) -> Mask:
        """Which texts own any of these positions."""
        return np.bincount(self.owners[places], minlength=self.count) > 0

    def _places(self, holds: Callable[[str], bool]) -> Mask:
        """The positions of the terms that satisfy a condition."""
        return np.fromiter(map(holds, self.numbers), np.bool_, len(self.numbers))[self.terms]

    def _number(self, term: str) -> int:
        return self.numbers.get(term, len(self.numbers))


def _is_one_word(word: str, analyzer: AnyAnalyzer | None) -> bool:
    """Whether a word has the letters of a pattern, and the analyzer (None: any) does not split it."""
    if sum(map(str.isalnum, word)) < SHORTEST:
        return False
    if isinstance(analyzer, Analyzer):
        return whole_word(analyzer, word) is not None
    return analyzer is None or len(query_terms(analyzer, word, "")) == 1


def _is_placed(analyzer: AnyAnalyzer, term: str) -> bool:
    """Whether a term's position is that of its word: single Chinese characters come after the pairs of their run."""
    alone = len(term) == 1 and unicodedata.name(term, "").startswith("CJK")
    return not (alone and isinstance(analyzer, Analyzer))


def _choices(tags: str) -> list[list[str]]:
    """For each script the tags of its languages in the index; where there is none, a tag that matches nothing."""
    scripts = [[TAGS[language] for language in languages] for languages in candidates().values()]
    return [[tag for tag in some if tag in tags] or some[:1] for some in scripts]


def _having(segment: IndexSegment, terms: Sequence[str], among: Selection) -> Ordinals:
    """The rows among `among` that contain all terms; the rarest term is looked up first."""
    looked = sorted(segment.postings.look(list(dict.fromkeys(terms))), key=lambda entry: entry[1])
    if not looked[0][1]:
        return np.empty(0, dtype=np.uint32)
    found = (Selection(among.size, segment.postings.find(number)[0]) for number, _ in looked)
    return (reduce(and_, found) & among).ordinals
