"""Misspelled words: which words of a text are corrected, how far the correct word may be, and which words are near."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.text.pieces import encoded
from voicevault_retrievers.text.terms import words

SHORTEST, LONGEST = 5, 40
"""The least and the greatest number of letters of a word that is corrected."""
TWO_EDITS_FROM = 8
"""The number of letters from which a word may be two edits away instead of one."""
MOST = 2
"""The most edits that are searched."""

_STANDING_ALONE = re.compile(r"(?<![^\s(\[{\"'“‘«„])[^\W\d_]+(?=[.,;:!?)\]}\"'”’»]*(?:\s|$))")


def plain_matches(text: str) -> list[tuple[slice, str]]:
    """The places and spellings of the words of a text that may be misspelled.

    These are the words that stand alone; not identifiers, words in capitals, and words in camelCase.
    """
    found = ((slice(*match.span()), match[0]) for match in _STANDING_ALONE.finditer(text))
    return [
        (place, word)
        for place, word in found
        if word[1:] == word[1:].lower() and words(encoded(word)) == [word.casefold()]
    ]


def edits_allowed(word: str) -> int:
    """The number of edits that a word of this length may be away: 0, 1 or 2, like Elasticsearch's "AUTO"."""
    if not SHORTEST <= len(word) <= LONGEST:
        return 0
    return 2 if len(word) >= TWO_EDITS_FROM else 1


class WordList:
    """Words as code points, to compare one word with all of them at once."""

    def __init__(self, given: Sequence[str]) -> None:
        self._letters = np.frombuffer("".join(given).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        self._lengths = np.fromiter(map(len, given), np.int64, len(given))
        self._starts = np.cumsum(self._lengths) - self._lengths

    def distances(self, word: str, most: int, among: slice = slice(None)) -> NDArray[np.int64]:
        """The number of edits between a word and each of the words `among`; `most + 1` where there are more.

        An edit inserts, deletes or replaces a letter, or swaps two neighbours, and no letter is edited twice (optimal
        string alignment): Damerau (1964), "A technique for computer detection and correction of spelling errors".
        """
        lengths, starts = self._lengths[among], self._starts[among]
        found = np.full(len(lengths), most + 1, dtype=np.int64)
        near = np.flatnonzero(np.abs(lengths - len(word)) <= most)
        if len(near):
            columns = self._columns(starts[near], lengths[near], len(word) + most)
            found[near] = np.minimum(_last_row(word, columns, most)[lengths[near], np.arange(len(near))], most + 1)
        return found

    def _columns(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int) -> NDArray[np.uint32]:
        """The letters of some words by position (width, words); 0 after a word's end."""
        places = np.arange(width)[:, None]
        letters = self._letters.take(starts + places, mode="clip")
        return np.where(places < lengths, letters, 0).astype(np.uint32, copy=False)


def _last_row(word: str, columns: NDArray[np.uint32], most: int) -> NDArray[np.uint8]:
    """The edits between a word and the first j letters of each word (width + 1, words); only near the diagonal."""
    width, count = columns.shape
    far = np.uint8(most + 1)
    above = before = np.full((width + 1, count), far, dtype=np.uint8)
    row = np.minimum(np.arange(width + 1), far)[:, None].repeat(count, axis=1).astype(np.uint8)
    for i, letter in enumerate(map(ord, word), 1):
        above, before, row = before, row, np.full((width + 1, count), far, dtype=np.uint8)
        row[0] = min(i, most + 1)
        for j in range(max(1, i - most), min(width, i + most) + 1):
            cost = np.minimum(before[j], row[j - 1]) + np.uint8(1)
            np.minimum(cost, before[j - 1] + (columns[j - 1] != letter), out=cost)
            if i > 1 and j > 1:
                swapped = (columns[j - 1] == ord(word[i - 2])) & (columns[j - 2] == letter)
                np.minimum(cost, above[j - 2] + np.uint8(1), out=cost, where=swapped)
            row[j] = cost
    return row


class Nearest:
    """Finds, among words with frequencies, the word with the same first letter and the fewest edits."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._words = sorted(counts)
        self._letters = WordList(self._words)

    def of(self, word: str, edits: int) -> str | None:
        """The word with the fewest edits, at most `edits`, or None; ties by frequency, then alphabetically."""
        first = bisect_left(self._words, word[0])
        end = bisect_left(self._words, chr(ord(word[0]) + 1), lo=first)
        apart = self._letters.distances(word, edits, slice(first, end))
        near = ((int(apart[at]), self._words[first + at]) for at in np.flatnonzero(apart <= edits).tolist())
        ranked = [(distance, -self._counts[other], other) for distance, other in near]
        return min(ranked)[2] if ranked else None
