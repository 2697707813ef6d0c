"""Analyzers: map text to the terms that are indexed and searched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.text import batch
from voicevault_retrievers.text.analyzed_texts import Analyzed
from voicevault_retrievers.text.languages import (
    LANGUAGES,
    NEUTRAL,
    OTHER,
    TAGS,
    ballots,
    candidates,
    installed,
    languages,
    script,
    stems,
)
from voicevault_retrievers.text.pieces import encoded, split
from voicevault_retrievers.text.probes import PROBES, TEXT
from voicevault_retrievers.text.stopwords import AMBIGUOUS, STOPWORDS
from voicevault_retrievers.text.terms import joined, plain_words, terms, words

AUTO = "auto"

_NEUTRAL = 0
_NAMED = 1
_BY_TAG = {ord(tag): language for language, tag in TAGS.items()}


class QueryTerm(NamedTuple):
    """A word of a query, unchanged but for case, and its terms: one for each language of the index."""

    word: str
    forms: tuple[str, ...]


@dataclass(frozen=True)
class Analyzer:
    """Unicode words and identifiers, with case and accents folded, stemmed by Snowball, without stopwords.

    `language` is one of three. An ISO 639-1 code of `LANGUAGES`. None, for lowercase words without stemming and
    stopwords, split at all punctuation, so that an identifier (`GPT-4`) gives its parts only. Or "auto", which detects
    each document's language in each script by its stopwords (English, where there are none), and puts the language's
    tag, a control character, before its terms. Identifiers, numbers, and the n-grams of Chinese, Japanese, Korean, Thai
    and similar scripts are the same in every language. Equal analyzers give equal terms. Raises ConfigError for a
    language that is unknown, or that the installed PyStemmer does not support.
    """

    language: str | None = AUTO
    stemming: bool = True
    stopwords: bool = True

    def __post_init__(self) -> None:
        if self.language in (None, AUTO):
            return
        if self.language not in LANGUAGES:
            raise unknown("language", self.language, (AUTO, *LANGUAGES))
        if self.language not in installed():
            raise ConfigError(
                f"the installed PyStemmer has no stemmer for {LANGUAGES[self.language]}: pip install -U PyStemmer"
            )

    def __call__(self, text: str) -> list[str]:
        """The terms of a text, in order, with repeats."""
        return self.analyse([text]).document(0)

    def analyse(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> Analyzed:
        """The terms of many texts, at millions of terms per second; calls `progress(done, total)` after each batch."""
        if self.language == AUTO:
            return batch.analyse(batch.Reader(words, self._terms, None, ballots()), texts, progress)
        reading = [_NEUTRAL] + [_NAMED] * OTHER
        return batch.analyse(batch.Reader(self._words, self._terms, reading, None), texts, progress)

    def query(self, text: str, tags: str) -> list[QueryTerm]:
        """The terms of a query in order, with repeats, for an index whose terms carry these language `tags`.

        A word has a form for each language of its script in the index. A stopword of any of these languages is left
        out. A stopword that is a content word of another language ("war") is kept, unless the rest of the query is in
        the language that has it as a stopword.
        """
        asked = [_asked(self, piece, tags) for piece in split(encoded(text))]
        found = [term for terms in asked for term in terms]
        if not any(term.stopped for term in found):
            return [term.term for term in found]
        spoken = _spoken(text)
        return [term.term for term in found if not term.stopped & spoken]

    def recipe(self) -> dict[str, Any]:
        """The arguments of an equal analyzer: `Analyzer(**recipe)`."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """A digest of the recipe and of the installed stemmers' output; equal digests mean comparable terms."""
        return _fingerprint(self)

    @property
    def _words(self) -> Callable[[bytes], list[str]]:
        """The function that splits a piece of text into words."""
        return plain_words if self.language is None else words

    def _terms(self, found: Sequence[str], language: int, *, bare: bool = False) -> list[str]:
        """The terms of words in the language with this number, which with "auto" is that of its tag.

        A stopword has the term "". With `bare`, words are not stemmed, and there are no stopwords.
        """
        if language == _NEUTRAL:
            return terms([joined(word) for word in found], None)
        options = {"stemming": self.stemming and not bare, "stopwords": self.stopwords and not bare}
        if self.language != AUTO:
            return terms(found, self.language, **options)
        tag = chr(language)
        return [tag + term if term else "" for term in terms(found, _BY_TAG[language], **options)]

    def _languages(self, word: str, tags: str) -> list[int]:
        """The numbers of the languages in which a document may contain a word."""
        kind = script(word)
        if kind == NEUTRAL:
            return [_NEUTRAL]
        if self.language != AUTO:
            return [_NAMED]
        if kind == OTHER:
            return [_NEUTRAL]
        return [ord(TAGS[language]) for language in candidates()[kind] if TAGS[language] in tags]


class _Asked(NamedTuple):
    """A term, and the numbers of the index's languages in which it is a stopword."""

    term: QueryTerm
    stopped: frozenset[int]


@lru_cache(maxsize=1 << 14)
def _asked(analyzer: Analyzer, piece: bytes, tags: str) -> tuple[_Asked, ...]:
    """The terms of a piece of a query.

    A stopword of one language is left out for all languages. Documents in its own language lack it, so the few
    documents of other languages that contain it would make it look rare; often these are misdetected documents in its
    own language.
    """
    found: list[_Asked] = []
    for word in analyzer._words(piece):
        forms = {language: analyzer._terms([word], language)[0] for language in analyzer._languages(word, tags)}
        stopped = frozenset(language for language, form in forms.items() if not form)
        kept = tuple(form for form in forms.values() if form)
        if kept and (not stopped or word in AMBIGUOUS):
            found.append(_Asked(QueryTerm(word, kept), stopped))
    return tuple(found)


def _spoken(text: str) -> frozenset[int]:
    """The languages of a query, one per script, as detected by its unambiguous words."""
    found = [word for piece in split(encoded(text)) for word in words(piece)]
    cast = [ballots().number(word) for word in found if word not in AMBIGUOUS]
    sums = ballots().votes[cast].sum(axis=0, keepdims=True)
    return frozenset(languages(ballots(), sums, prior=0)[0].tolist())


@cache
def _fingerprint(analyzer: Analyzer) -> str:
    auto = analyzer.language == AUTO
    names = sorted(installed() & TAGS.keys()) if auto else [analyzer.language] if analyzer.language else []
    made = {name: stems(name, [*PROBES[name], *sorted(STOPWORDS[name])]) for name in names if analyzer.stemming}
    stops = {name: sorted(STOPWORDS[name]) for name in names}
    return digest([analyzer.recipe(), made, stops, sorted(ballots().of) if auto else None, analyzer(TEXT)])


def digest(value: Any) -> str:
    """16 hexadecimal digits that identify a plain value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]
