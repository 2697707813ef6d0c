"""Analyzers: from text to the terms that are indexed and searched."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import Stemmer

from voicevault_retrievers.errors import unknown
from voicevault_retrievers.text.stopwords import STOPWORDS

LANGUAGES = {
    "ar": "arabic", "ca": "catalan", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish",
    "eu": "basque", "fi": "finnish", "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian",
    "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch",
    "no": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish",
    "ta": "tamil", "tr": "turkish",
}  # fmt: skip
"""ISO 639-1 codes of the languages that the Snowball stemmers know."""

# Scripts written without spaces between words, and Hangul, whose particles cling to words.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")

# Written or left out at will: joiners, Arabic vowel signs and the stroke that lengthens, the dot of a folded İ.
_OPTIONAL = {ord("\u2019"): "'"} | dict.fromkeys([0x0307, 0x0640, 0x0670, 0x200C, 0x200D, *range(0x064B, 0x0660)], None)

# Their terms tell versions of this module, or of a stemmer, apart whose results differ.
_PROBES = (
    "running generously relational flies dying organization häuser größe schmierstoffwechsel prüfungen mächtiger "
    "nationales continuellement chevaux corriendo canciones книгами किताबें தமிழ் كِتَاب İstanbul it's 电池维护 ภาษาไทย x_1"
)

_local = threading.local()


@dataclass(frozen=True)
class Analyzer:
    """Unicode words, case folded, stemmed by Snowball, without stopwords; character bigrams where no spaces are.

    `language` is an ISO 639-1 code of `LANGUAGES`, or None for no stemming and no stopwords. Chinese, Japanese,
    Korean and Thai are read in every language. A value is its own recipe: equal ones give equal terms.
    """

    language: str | None = "en"
    stemming: bool = True
    stopwords: bool = True

    def __post_init__(self) -> None:
        if self.language is not None and self.language not in LANGUAGES:
            raise unknown("language", self.language, LANGUAGES)

    def __call__(self, text: str) -> list[str]:
        """The terms of a text, in order, repeats kept."""
        return [term for _, term in self.pairs(text)]

    def pairs(self, text: str) -> list[tuple[str, str]]:
        """Each word that is indexed, as it stands in the text but for case, and its term."""
        dropped = STOPWORDS.get(self.language or "", frozenset()) if self.stopwords else frozenset()
        words = [word for word in _words(text) if word not in dropped]
        return list(zip(words, self._stems(words), strict=True))

    def recipe(self) -> dict[str, Any]:
        """What makes an equal analyzer again: `Analyzer(**recipe)`."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """A digest of the recipe and of what the installed stemmer does; equal ones mean comparable terms."""
        stops = sorted(STOPWORDS.get(self.language or "", ())) if self.stopwords else []
        return hashlib.sha256(json.dumps([self.recipe(), self(_PROBES), stops]).encode()).hexdigest()[:16]

    def _stems(self, words: Sequence[str]) -> list[str]:
        if self.language is None or not self.stemming:
            return list(words)
        stems: list[str] = _stemmer(LANGUAGES[self.language]).stemWords(words)
        return stems


def _words(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_OPTIONAL)
    words: list[str] = []
    for run in _word().findall(folded):
        if len(run) > 2 and _IS_UNSPACED.match(run):
            words.extend(run[at : at + 2] for at in range(len(run) - 1))
        else:
            words.append(run)
    return words


@cache
def _word() -> re.Pattern[str]:
    """Runs of a script without spaces, or letters and digits with the marks that belong to them."""
    marks = "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    letters = rf"(?:[^\W_{_UNSPACED}][{re.escape(marks)}]*)+"
    return re.compile(rf"[{_UNSPACED}]+|{letters}(?:'{letters})*")


def _stemmer(language: str) -> Any:
    """This thread's stemmer: they are not safe to share between threads."""
    stemmers: dict[str, Any] = _local.__dict__.setdefault("stemmers", {})
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(language)
    return stemmers[language]
