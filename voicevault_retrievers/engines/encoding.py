"""Texts and terms in forms that every database stores, and every tokenizer leaves alone, without loss.

Neither text nor JSON of a database can hold NUL or a lone surrogate. Those, and the characters that begin codes, are
written as codes. Codes of a kind have one length, are never part of another text's code, and sort as their characters
do. So equality, order by code point and substrings keep their meaning. All other text is unchanged.
"""

from __future__ import annotations

import hashlib
import re
from itertools import product

_SIGNS = "\x03\x04\x05\x06\x07\x08"
_LOW = [chr(code) for code in range(9)]
_HIGH = [chr(code) for code in range(0xD7FE, 0xE000)]


def _codes(letters: list[str], leads: str, signs: int) -> dict[str, str]:
    return dict(zip(letters, map("".join, product(leads, *[_SIGNS] * signs)), strict=False))


_CODES = {**_codes(_LOW, "\x01\x02", 1), **_codes(_HIGH, "\ud7fe\ud7ff", 4)}
_LETTERS = {code: letter for letter, code in _CODES.items()}
_TABLE = str.maketrans(_CODES)
_ODD = re.compile("[\0-\x08\ud7fe-\udfff]")
_CODED = re.compile("[\x01\x02].|[\ud7fe\ud7ff].{4}", re.DOTALL)
_PLAIN = re.compile("[a-z]+")
_NIBBLES = str.maketrans("0123456789abcdef", "abcdefghijklmnop")

LONGEST_TERM = 1000
"""The most bytes of a term that is one word of its own letters: PostgreSQL's words have at most 2046 characters."""


def escaped(text: str) -> str:
    """A text in the form that databases can store."""
    return text.translate(_TABLE) if _ODD.search(text) else text


def unescaped(text: str) -> str:
    """The original of an escaped text."""
    if "\x01" in text or "\x02" in text or "\ud7fe" in text or "\ud7ff" in text:  # an expression searches slowly
        return _CODED.sub(lambda found: _LETTERS.get(found[0], found[0]), text)
    return text


def encoded(term: str) -> str:
    """A term as one word of the letters a to z. Different terms have different words.

    A prefix says how: `w` the term itself, `h` its UTF-8 bytes as two letters each, `d` the digest of an overlong term.
    """
    if _PLAIN.fullmatch(term) and len(term) <= LONGEST_TERM:
        return f"w{term}"
    key = escaped(term).encode()
    if len(key) > LONGEST_TERM:
        return f"d{hashlib.blake2b(key, digest_size=32).hexdigest().translate(_NIBBLES)}"
    return f"h{key.hex().translate(_NIBBLES)}"
