"""From words to the terms of a language: without stopwords, stemmed, without accents."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

from voicevault_retrievers.text.languages import stems
from voicevault_retrievers.text.stopwords import STOPWORDS

_ELIDING = frozenset({"ca", "fr", "ga", "it"})
_STROKES = {"ı": "i", "ł": "l", "ø": "o", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe", "ё": "е"}


def terms(words: Sequence[str], language: str | None, *, stemming: bool = True, stopwords: bool = True) -> list[str]:
    """The term of each word in a language, untagged; "" for a stopword."""
    bare = [_bare(word, language) if "'" in word else word for word in words]
    dropped = STOPWORDS.get(language or "", frozenset()) if stopwords else frozenset()
    kept = [word for word in bare if word not in dropped]
    found = iter(stems(language, kept) if language and stemming else kept)
    return ["" if word in dropped else _plain(next(found)) or word for word in bare]


def _bare(word: str, language: str | None) -> str:
    """Without an article before the apostrophe (l'acqua), or the endings of a Turkish name after it."""
    head, _, rest = word.partition("'")
    if language == "tr":
        return head
    return rest if language in _ELIDING and head in STOPWORDS[language] else word


def _plain(word: str) -> str:
    return word if word.isascii() else word.translate(_accents())


@cache
def _accents() -> dict[int, str | None]:
    """Latin and Greek letters without their accents; marks of other scripts are letters of their own."""
    folded: dict[int, str | None] = {code: None for code in range(0x300, 0x370)}
    for code in (*range(0xC0, 0x250), *range(0x370, 0x400), *range(0x1E00, 0x2000)):
        folded[code] = unicodedata.normalize("NFD", chr(code))[0]
    return folded | {ord(letter): plain for letter, plain in _STROKES.items()}
