"""Languages: their scripts, stemmers and term tags, and the detection of a document's language."""

from __future__ import annotations

import re
import threading
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import Stemmer
from numpy.typing import NDArray

from voicevault_retrievers.text.stopwords import ENGLISH, STOPWORDS

LANGUAGES = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho", "sv": "swedish",
    "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
"""The languages of the Snowball stemmers, by ISO 639-1 code."""

NEUTRAL, LATIN, CYRILLIC, ARABIC, DEVANAGARI, GREEK, ARMENIAN, TAMIL, OTHER = range(9)

CANDIDATES: dict[int, tuple[str, ...]] = {
    LATIN: (
        "en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "tr", "da", "no", "fi", "cs", "hu", "ro", "id", "ca",
        "et", "eu", "ga", "lt", "sr",
    ),
    CYRILLIC: ("ru", "sr"),
    ARABIC: ("ar", "fa"),
    DEVANAGARI: ("hi", "ne"),
    GREEK: ("el",),
    ARMENIAN: ("hy",),
    TAMIL: ("ta",),
}  # fmt: skip
"""The languages that `auto` distinguishes in each script; the first is the default without evidence.

Esperanto, Sesotho and Yiddish must be named: there is more Hebrew than Yiddish in Hebrew letters.
"""

TAGS = {
    language: chr(number)
    for number, language in enumerate(
        "ar ca cs da de el en es et eu fa fi fr ga hi hu hy id it lt ne nl no pl pt ro ru sr sv ta tr".split(), start=1
    )
}
"""The control character before a language's terms. Indexes on disk contain them, so the order must not change."""

_IS_TAGGED = frozenset(TAGS.values())
_SIGNS = re.compile(r"[\d@._+#§-]")
_BLOCKS = (
    (0x0, LATIN), (0x370, GREEK), (0x400, CYRILLIC), (0x530, ARMENIAN), (0x590, OTHER), (0x600, ARABIC),
    (0x700, OTHER), (0x750, ARABIC), (0x780, OTHER), (0x8A0, ARABIC), (0x900, DEVANAGARI), (0x980, OTHER),
    (0xB80, TAMIL), (0xC00, OTHER), (0x1C80, CYRILLIC), (0x1C90, OTHER), (0x1E00, LATIN), (0x1F00, GREEK),
    (0x2000, OTHER), (0x2C60, LATIN), (0x2C80, OTHER), (0xA640, CYRILLIC), (0xA6A0, OTHER), (0xA720, LATIN),
    (0xA800, OTHER), (0xA8E0, DEVANAGARI), (0xA900, OTHER),
)  # fmt: skip
_STARTS = [start for start, _ in _BLOCKS]

_local = threading.local()


def script(word: str) -> int:
    """The script of a word; `NEUTRAL` for a number or an identifier, `OTHER` for a script without stemmers."""
    if _SIGNS.search(word):
        return NEUTRAL
    return _BLOCKS[bisect(_STARTS, ord(word[0])) - 1][1]


def untagged(term: str) -> str:
    """The term without its language tag."""
    return term[1:] if term[:1] in _IS_TAGGED else term


@cache
def candidates() -> dict[int, tuple[str, ...]]:
    """`CANDIDATES` without the languages that the installed PyStemmer lacks."""
    known = installed()
    return {
        script: tuple(language for language in languages if language in known)
        for script, languages in CANDIDATES.items()
    }


def installed() -> frozenset[str]:
    """The languages of the installed PyStemmer."""
    return frozenset(code for code, name in LANGUAGES.items() if name in Stemmer.algorithms())


def stems(language: str, words: Iterable[str]) -> list[str]:
    """The stem of each word."""
    found: list[str] = _stemmer(language).stemWords(words)
    return found


def _stemmer(language: str) -> Any:
    """This thread's stemmer, as stemmers are not thread-safe."""
    stemmers: dict[str, Any] = _local.__dict__.setdefault("stemmers", {})
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(LANGUAGES[language], 0)
    return stemmers[language]


UNIT = 5040
"""The vote of a word that occurs in one language; n languages share it. Divisible by 1 to 10."""

PRIOR = 0.75
"""The lead of a script's first candidate, in votes: names and code contain a foreign word or two."""

_LETTERS = {
    "de": "äöüß", "fr": "àâçéèêëîïôùûœ", "es": "áéíñóú", "it": "àèìòù", "pt": "áâãçéêíóôõú", "nl": "ëï",
    "pl": "ąćęłńóśźż", "sv": "åäö", "tr": "çğıöşü", "da": "æøå", "no": "æøå", "fi": "äö", "cs": "áčďéěíňřšťúůýž",
    "hu": "áéíóöőúüű", "ro": "ăâîșțşţ", "ca": "àçèéíïòóúü", "et": "äõöüšž", "eu": "ñ", "ga": "áéíóú", "lt": "ąčėęįšūųž",
    "sr": "čćđšž",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Ballots:
    """Votes of words for languages. `of` maps a word to its row in `votes` (b, c), with a column for each candidate.

    `languages` has the tag numbers of the columns; `columns` the columns of each script.
    """

    of: dict[str, int]
    letters: dict[str, int]
    votes: NDArray[np.float64]
    languages: NDArray[np.uint8]
    columns: dict[int, slice]

    def number(self, word: str) -> int:
        """The word's row; 0, a row without votes, where the word is no evidence.

        For an elided form (l'acqua) the row is that of the elided word (l'). For a word that is no stopword, it is that
        of the letter that the fewest languages have.
        """
        row = self.of.get(word) or ("'" in word and self.of.get(word.partition("'")[0] + "'"))
        return row or (0 if word.isascii() else self._by_letter(word))

    def _by_letter(self, word: str) -> int:
        rows = [self.letters[letter] for letter in set(word) & self.letters.keys()]
        return max(rows, key=lambda row: (self.votes[row].max(), row), default=0)


def languages(ballots: Ballots, sums: NDArray[np.float64], prior: float = PRIOR) -> NDArray[np.uint8]:
    """The languages of d documents in each script (d, OTHER + 1), as tag numbers; 0 for scripts without candidates.

    `sums` (d, c) are the votes of each document for each column; the first candidate of a script gets `prior` extra
    votes, and wins ties.
    """
    found = np.zeros((len(sums), OTHER + 1), dtype=np.uint8)
    for kind, columns in ballots.columns.items():
        ahead = sums[:, columns] - UNIT * prior * (np.arange(columns.stop - columns.start) > 0)
        found[:, kind] = ballots.languages[columns][np.argmax(ahead, axis=1)]
    return found


@cache
def ballots() -> Ballots:
    """The ballots of all stopwords. Single letters do not vote, since they are variables as often as words."""
    places = [(kind, language) for kind, languages in candidates().items() for language in languages]
    voters: dict[str, list[int]] = defaultdict(list)
    for column, (kind, language) in enumerate(places):
        for word in ENGLISH if language == "en" else STOPWORDS[language]:
            if script(word) == kind:
                voters[f"{word}'" if kind == LATIN and len(word) == 1 else word].append(column)
    letters: dict[str, list[int]] = defaultdict(list)
    for column, (kind, language) in enumerate(places):
        for letter in _LETTERS.get(language, "") if kind == LATIN else "":
            letters[letter].append(column)
    return _ballots(places, voters, letters)


def _ballots(places: list[tuple[int, str]], words: dict[str, list[int]], letters: dict[str, list[int]]) -> Ballots:
    sets = sorted({tuple(columns) for columns in (*words.values(), *letters.values())})
    rows = {columns: row for row, columns in enumerate(sets, start=1)}
    votes = np.zeros((len(rows) + 1, len(places)))
    for columns, row in rows.items():
        votes[row, list(columns)] = UNIT // len(columns)
    kinds = [kind for kind, _ in places]
    return Ballots(
        {word: rows[tuple(columns)] for word, columns in words.items()},
        {letter: rows[tuple(columns)] for letter, columns in letters.items()},
        votes,
        np.array([ord(TAGS[language]) for _, language in places], dtype=np.uint8),
        {kind: slice(kinds.index(kind), kinds.index(kind) + kinds.count(kind)) for kind in dict.fromkeys(kinds)},
    )
