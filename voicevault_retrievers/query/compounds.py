"""Query expansion by the parts of compound words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import unknown
from voicevault_retrievers.query.corpus import Corpus, Learned, piece_counts, word_counts
from voicevault_retrievers.query.phrases import extended
from voicevault_retrievers.text.stopwords import STOPWORDS

LINKS: Mapping[str, tuple[str, ...]] = {
    "de": ("", "s", "es", "n", "en", "er", "e"),
    "nl": ("", "s", "e", "en", "er"),
    "da": ("", "s", "e"),
    "no": ("", "s", "e"),
    "sv": ("", "s"),
    "fi": ("", "n"),
    "hu": ("",),
}
"""The linking elements between the parts of a compound, by language."""

PARTS = 4
LONGEST = 64
_WORD = re.compile(r"[^\W\d_]+")


class CompoundExpansion(Learned[Mapping[str, int]]):
    """Adds a wording with the parts of a query's compounds, for keyword channels ("Ladegerät" for "Akkuladegerät").

    A word is split where the geometric mean of its parts' frequencies in the corpus exceeds its own frequency, into the
    parts with the highest mean. A part is a word of the corpus with at least `least` letters, and no stopword. Between
    parts, the linking elements of the `language` are allowed (see `LINKS`). The parts together weigh as much as their
    word.

    Koehn, Knight (2003), "Empirical Methods for Compound Splitting", section 4.2. They use parts of at least 3 letters.
    """

    name = "compounds"

    def __init__(
        self, corpus: Corpus | None = None, *, language: str = "de", least: int = 4, timeout: float | None = None
    ) -> None:
        super().__init__(corpus, timeout=timeout)
        if language not in LINKS:
            raise unknown("language of compounds", language, LINKS)
        self.language = language
        self.least = whole("least", least)

    def learn(self, texts: Iterable[str]) -> Mapping[str, int]:
        counts = word_counts(piece_counts(texts))
        stopped = STOPWORDS[self.language]
        return {word: n for word, n in counts.items() if self.least <= len(word) <= LONGEST and word not in stopped}

    def variants(self, query: Query, known: Mapping[str, int]) -> Iterable[Variant]:
        parts: dict[str, float] = {}
        for word in dict.fromkeys(word.casefold() for word in _WORD.findall(query.text)):
            found = split(word, known, LINKS[self.language], self.least)
            for part in found if len(found) > 1 else ():
                parts[part] = max(1 / len(found), parts.get(part, 0.0))
        if parts:
            yield extended(query, parts)

    def __repr__(self) -> str:
        return f"CompoundExpansion(language={self.language!r}, least={self.least})"


def split(word: str, counts: Mapping[str, int], links: Sequence[str], least: int) -> tuple[str, ...]:
    """The parts of a word, at most `PARTS`; the word alone where it is better left whole."""
    if not 2 * least <= len(word) <= LONGEST:
        return (word,)
    best: list[dict[int, tuple[float, tuple[str, ...]]]] = [{} for _ in range(len(word) + 1)]
    best[0][0] = (0.0, ())
    for end in range(least, len(word) + 1):
        for start in range(end - least + 1):
            reached = [(n, *found) for n, found in best[start].items() if n < PARTS]
            for part in _linked(word[start:end], links if end < len(word) else ("",)) if reached else ():
                if part in counts and part != word:
                    for n, score, parts in reached:
                        candidate = (score + math.log(counts[part]), (*parts, part))
                        best[end][n + 1] = max(candidate, best[end].get(n + 1, candidate))
    splits = [(score / n, -n, parts) for n, (score, parts) in best[-1].items()]
    own = math.log(counts[word]) if word in counts else -math.inf
    mean, _, parts = max(splits, default=(-math.inf, 0, ()))
    return parts if mean > own else (word,)


def _linked(text: str, links: Sequence[str]) -> list[str]:
    """The text without each linking element that it ends in."""
    return [text.removesuffix(link) for link in links if text.endswith(link)]
