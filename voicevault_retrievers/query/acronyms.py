"""Query expansion by acronyms that a corpus explains: "World Health Organization (WHO)"."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.query.corpus import Corpus, Learned
from voicevault_retrievers.query.expansion import FUNCTION_WORDS
from voicevault_retrievers.query.phrases import Phrases, key, reworded
from voicevault_retrievers.text.stopwords import STOPWORDS

SHORTEST, LONGEST = 2, 10
"""The least and the greatest number of characters of an acronym."""

_IN_PARENTHESES = re.compile(r"[(（]([^()（）\n]{2,100})[)）]")
_SENTENCE_END = re.compile(r"[.!?;:()（）]\s")
_IN_WORDS = re.compile(r"[\w\s'’&,-]+")
_BEFORE = 200


class Form(NamedTuple):
    """The replacement for a phrase. `exact` is the required spelling of a phrase whose case matters."""

    other: str
    exact: str | None = None


class AcronymExpansion(Learned[Phrases[Form]]):
    """Adds a wording with the long forms of a query's acronyms, and the acronyms of its long forms.

    The pairs come from a corpus that defines them, as "long form (ACRONYM)" or "ACRONYM (long form)". The most frequent
    definition of an acronym is used where more than the share `least` of its definitions agree: 0 always uses it, 1
    skips every ambiguous acronym. An acronym that is also a word ("WHO", "IT", or any that the corpus has in lower
    case) is only recognised in its exact spelling.

    Schwartz, Hearst (2003), "A Simple Algorithm for Identifying Abbreviation Definitions in Biomedical Text". Here an
    acronym is one word with at least two capital letters.
    """

    name = "acronyms"

    def __init__(self, corpus: Corpus | None = None, *, least: float = 0.5, timeout: float | None = None) -> None:
        super().__init__(corpus, timeout=timeout)
        if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
            raise ConfigError(f"least is the share of explanations that agree, in [0, 1], not {least!r}")
        self.least = least

    def learn(self, texts: Iterable[str]) -> Phrases[Form]:
        explained: Counter[tuple[str, str]] = Counter()
        seen: set[str] = set()
        for text in texts:
            explained.update(pairs(text))
            seen.update(text.split())
        return Phrases(_forms(explained, self.least, seen))

    def variants(self, query: Query, known: Phrases[Form]) -> Iterable[Variant]:
        found = [(place, form) for place, form in known.find(query.text) if form.exact in (None, query.text[place])]
        there = {key(query.text[place]) for place, _ in found}
        new = [(place, form.other) for place, form in found if key(form.other) not in there]
        if new:
            yield reworded(query, new)

    def __repr__(self) -> str:
        return f"AcronymExpansion(least={self.least})"


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield each acronym that a text defines, with its long form, once per definition."""
    for found in _IN_PARENTHESES.finditer(text):
        inside = re.split(r"[,;，；]", found[1])[0].strip()
        before = _SENTENCE_END.split(text[max(0, found.start() - _BEFORE) : found.start()])[-1].split()
        if _is_acronym(inside):
            candidate = " ".join(before[-min(len(inside) + 5, 2 * len(inside)) :])
            short, long = inside, long_form(inside, candidate)
        elif before and _is_acronym(before[-1]):
            short, long = before[-1], long_form(before[-1], inside)
        else:
            continue
        if long is not None:
            yield short, long


def long_form(short: str, candidate: str) -> str | None:
    """The shortest suffix of a text that has an acronym's letters in order, the first at the beginning of a word.

    None where there is no such suffix, or where it is no longer than the acronym, contains the acronym as a word, has
    too many words, or has characters that are not in words.
    """
    letters = _plain(candidate)
    at = len(letters)
    for place, letter in reversed(list(enumerate(_plain(short)))):
        if not letter.isalnum():
            continue
        at = letters.rfind(letter, 0, at)
        while place == 0 and at > 0 and letters[at - 1].isalnum():
            at = letters.rfind(letter, 0, at)
        if at < 0:
            return None
    found = candidate[candidate.rfind(" ", 0, at + 1) + 1 :].strip("\"'“”„«»‘’")
    words = key(found)
    fits = (
        len(found) > len(short)
        and _IN_WORDS.fullmatch(found) is not None
        and len(words) <= min(len(short) + 5, 2 * len(short))
    )
    return found if fits and short.casefold() not in words else None


def _is_acronym(text: str) -> bool:
    capitals = sum(character.isupper() for character in text)
    return SHORTEST <= len(text) <= LONGEST and capitals >= 2 and text[0].isalnum() and len(key(text)) == 1


def _plain(text: str) -> str:
    """The text in lower case without accents, character by character."""
    if text.isascii():
        return text.lower()
    return "".join(unicodedata.normalize("NFD", character)[0].lower()[0] for character in text)


def _forms(explained: Counter[tuple[str, str]], least: float, seen: set[str]) -> dict[str, Form]:
    """The replacement for each acronym and each long form."""
    forms: dict[str, Form] = {}
    for short, long, _ in sorted(_agreed(explained, least), key=lambda entry: entry[2]):  # frequent forms last
        spelt = {short.lower(), short.capitalize()} - {short}
        is_word = len(short) == SHORTEST or not spelt.isdisjoint(seen) or short.casefold() in _stopwords()
        forms[short] = forms[short.casefold()] = Form(long, short if is_word else None)
        forms[long.casefold()] = Form(short)
    return forms


def _agreed(explained: Counter[tuple[str, str]], least: float) -> Iterator[tuple[str, str, tuple[int, str, str]]]:
    """Yield acronyms with the long forms on which enough definitions agree, and a sort key."""
    by_words: defaultdict[str, defaultdict[tuple[str, ...], Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for (short, long), count in explained.items():
        by_words[short][key(long)][long] += count
    for short, meanings in by_words.items():
        counts = {words: spelt.total() for words, spelt in meanings.items()}
        words, most = min(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        if len(counts) == 1 or most > least * sum(counts.values()):
            long, _ = min(meanings[words].items(), key=lambda entry: (-entry[1], entry[0]))
            yield short, long, (most, short, long)


@cache
def _stopwords() -> frozenset[str]:
    return FUNCTION_WORDS.union(*STOPWORDS.values())
