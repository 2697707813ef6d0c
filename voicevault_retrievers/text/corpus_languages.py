"""Detects the languages of texts."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from voicevault_retrievers.text.analyzer import Analyzer
from voicevault_retrievers.text.languages import TAGS

_SCRIPTS = {
    "CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "THAI": "th", "HEBREW": "he", "GEORGIAN": "ka",
    "BENGALI": "bn", "GUJARATI": "gu", "TELUGU": "te", "KANNADA": "kn", "MALAYALAM": "ml", "KHMER": "km", "LAO": "lo",
    "MYANMAR": "my", "ETHIOPIC": "am", "SINHALA": "si", "GURMUKHI": "pa",
}  # fmt: skip
"""For each script without stemmers, the language most common on the web, by the prefix of its letters' names."""
_READ = 400
"""The number of letters of a text by which its script is detected."""


def languages_of(texts: Sequence[str]) -> Counter[str]:
    """The number of texts in each language, as ISO 639-1 codes; texts without a detected language are left out.

    Languages are detected by stopwords, like in the analyzer, or for scripts without stemmers by the script alone.
    """
    codes = {1 << ord(tag): language for language, tag in TAGS.items()}
    found: Counter[str] = Counter()
    for text, bits in zip(texts, Analyzer().analyse(texts).languages.tolist(), strict=True):
        named = {language for bit, language in codes.items() if bits & bit}
        if by_script := _by_script(text):
            named = {by_script}
        found.update(named)
    return found


def _by_script(text: str) -> str | None:
    """The language of the script of most of a text's letters; None for a script with stemmers."""
    letters = list(islice((letter for letter in text if letter.isalpha()), _READ))
    scripts = Counter(_SCRIPTS.get(unicodedata.name(letter, " ").split(maxsplit=1)[0]) for letter in letters)
    if scripts["ja"]:  # Japanese also uses Chinese characters
        scripts["ja"] += scripts.pop("zh", 0)
    return scripts.most_common(1)[0][0] if scripts else None
