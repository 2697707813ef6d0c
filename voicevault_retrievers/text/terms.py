"""Splits text into words, and maps words to the terms of a language: without stopwords and accents, stemmed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from unicodedata import category, normalize

from voicevault_retrievers.text.languages import stems
from voicevault_retrievers.text.stopwords import STOPWORDS

_ELIDING = frozenset({"ca", "fr", "ga", "it"})
_STROKES = {"ı": "i", "ł": "l", "ø": "o", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe", "ё": "е"}


def terms(words: Sequence[str], language: str | None, *, stemming: bool = True, stopwords: bool = True) -> list[str]:
    """The term of each word in a language, without a tag; "" for a stopword."""
    bare = [_bare(word, language) if "'" in word else word for word in words]
    dropped = STOPWORDS.get(language or "", frozenset()) if stopwords else frozenset()
    kept = [word for word in bare if word not in dropped]
    found = iter(stems(language, kept) if language and stemming else kept)
    return ["" if word in dropped else _plain(next(found)) or word for word in bare]


def _bare(word: str, language: str | None) -> str:
    """The word without an article before the apostrophe (l'acqua), or without the suffix of a Turkish name after it."""
    head, _, rest = word.partition("'")
    if language == "tr":
        return head
    return rest if language in _ELIDING and head in STOPWORDS[language] else word


def _plain(word: str) -> str:
    return word if word.isascii() else word.translate(_accents())


@cache
def _accents() -> dict[int, str | None]:
    """A mapping of Latin and Greek letters to letters without accents; marks of other scripts are significant."""
    folded: dict[int, str | None] = {code: None for code in range(0x300, 0x370)}
    for code in (*range(0xC0, 0x250), *range(0x370, 0x400), *range(0x1E00, 0x2000)):
        folded[code] = unicodedata.normalize("NFD", chr(code))[0]
    return folded | {ord(letter): plain for letter, plain in _STROKES.items()}


LONGEST = 64
"""The most characters of a word that count; a longer word is a hash or a blob, and is not split."""

# Scripts without spaces between words, and Hangul, where particles are attached to words.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_UNSPACED = rf"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\uac00-\ud7af{_HAN}"
_IS_HAN = re.compile(f"[{_HAN}]")

_ZEROS = (0x660, 0x6F0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xE50, 0xED0, 0x1040, 0x17E0)

# Optional characters: joiners, soft hyphens, Arabic vowel signs and the lengthening stroke.
_OPTIONAL = (0xAD, 0x640, 0x670, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0x64B, 0x660))

# The ranges of marks. Testing every character would take longer than the rest of the analyzer's start.
_MARKED = ((0x300, 0x1E00), (0x20D0, 0x2100), (0x2CE0, 0x2E00), (0x3020, 0x30A0), (0xA660, 0xAC00), (0xFB1E, 0xFB1F),
           (0xFE00, 0xFE30), (0x10A00, 0x11F60))  # fmt: skip

_SAME: dict[int, str | None] = {
    **dict.fromkeys(_OPTIONAL),
    **{zero + value: str(value) for zero in _ZEROS for value in range(10)},
    **dict.fromkeys((0x2018, 0x2019, 0x2BC), "'"),
    **dict.fromkeys((0x2010, 0x2011), "-"),
}

# The borders within an identifier: at its signs, between letters and digits, and within camelCase.
_SIGNS = r"[._@-]|(?<=\d)'|'(?=\d)"
_AT_SIGNS = re.compile(_SIGNS)
_AT_CHANGES = re.compile(
    rf"{_SIGNS}|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)|(?<=[a-z]{{2}})(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z]{{2}})"
)
_INITIALS = re.compile(r"(?:[^\W\d]\.)+[^\W\d]")
_LETTER = re.compile(r"[^\W\d_]")
_RUNS = re.compile(r"\d+|[a-z]+")
_DASHES = str.maketrans("", "", "-_")


class _Patterns(NamedTuple):
    token: re.Pattern[str]
    plain: re.Pattern[str]
    unit: re.Pattern[str]


def words(piece: bytes) -> list[str]:
    """The words of an encoded piece of text, in order, unchanged but for case.

    `ERR_2043` gives `err_2043`, `err` and `2043`. Chinese, Japanese, Korean, Thai and similar scripts give each pair of
    neighbours, and Chinese characters also singly.
    """
    core = piece.strip(b".-'_@")
    if core.isalnum() and len(core) <= LONGEST and core[1:] in (core[1:].lower(), core[1:].upper()):
        word = core.lower().decode()
        return [word] if core.isalpha() or core.isdigit() else [word, *_RUNS.findall(word)]
    return _read(piece.decode("utf-8", "surrogatepass"))


def plain_words(piece: bytes) -> list[str]:
    """The words of an encoded piece of text as runs of letters and digits, split at all other characters.

    `GPT-4` gives `gpt` and `4`, `abc123` itself. For scripts without spaces see `words`.
    """
    if piece.isalnum():
        return [piece.lower().decode()[:LONGEST]]
    text = normalize("NFKC", piece.decode("utf-8", "surrogatepass")).translate(_SAME)
    found: list[str] = []
    for run in _patterns().plain.finditer(text):
        found += _grams(run["grams"]) if run["grams"] else [_folded(run[0])]
    return found


def _read(piece: str) -> list[str]:
    """The words of a piece that is not a single word of plain letters or digits; these take a fast path."""
    text = normalize("NFKC", piece).translate(_SAME)
    found: list[str] = []
    for token in _patterns().token.finditer(text):
        if token["grams"]:
            found += _grams(token["grams"])
        elif token["section"]:
            found += [_folded("§" + token["section"]), *_parts(token["section"])]
        else:
            found += _parts(token[0])
    return found


def joined(word: str) -> str:
    """The term of an identifier: `IL-6` and `IL6` have the same term, `1-6` and `16` do not."""
    return word.translate(_DASHES) if _LETTER.search(word) else word


def _parts(token: str) -> list[str]:
    """The whole identifier, where it has digits or an @, and its parts."""
    if _INITIALS.fullmatch(token):
        return [_folded(token.replace(".", ""))]
    name = token.rstrip("+#")
    if len(name) < len(token):
        return [_folded(token), *_parts(name)]
    has_digit = any(character.isdigit() for character in token)
    whole = token[:-2] if has_digit and token[-2:] in ("'s", "'S") else token
    parts = [_folded(part) for part in (_AT_SIGNS if len(whole) > LONGEST else _AT_CHANGES).split(whole) if part]
    identifier = "@" in whole or (has_digit and (len(parts) > 2 or _LETTER.search(whole)))
    return [_folded(whole), *parts] if identifier and len(parts) > 1 and len(whole) <= LONGEST else parts


def _folded(word: str) -> str:
    """The word case folded, without the dot that a folded İ leaves behind."""
    return word.casefold().replace("\u0307", "")[:LONGEST]


def _grams(run: str) -> list[str]:
    units = _patterns().unit.findall(run)
    if len(units) == 1:
        return units
    pairs = [first + second for first, second in pairwise(units)]
    return pairs + [unit for unit in units if _IS_HAN.match(unit)]


@cache
def _patterns() -> _Patterns:
    """Patterns of unspaced runs, sections of a law, and letters and digits with or without joining signs."""
    mark = f"[{''.join(_marks())}]"
    atom = rf"(?:[^\W_{_UNSPACED}]{mark}*)+"
    compound = rf"{atom}(?:[._@'-]{atom})*(?:(?:\+\+|#)(?!\w))?"
    token = rf"(?P<grams>[{_UNSPACED}]+)|(?<!§)§+\s*(?P<section>{atom})|{compound}"
    plain = rf"(?P<grams>[{_UNSPACED}]+)|{atom}"
    return _Patterns(re.compile(token), re.compile(plain), re.compile(rf".{mark}*"))


def _marks() -> Iterator[str]:
    """Runs of marks for a character class: a pattern of single marks compiles slowly."""
    for first, last in _MARKED:
        kinds = "".join("m" if category(chr(code)) in ("Mn", "Mc") else "-" for code in range(first, last))
        for run in re.finditer("m+", kinds):
            yield f"{chr(first + run.start())}-{chr(first + run.end() - 1)}"
