"""Finds the nearest known word to an unknown word."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_BINS = 32


class Nearest:
    """Finds, among words with frequencies, the word with the same first letter and the fewest edits.

    An edit inserts, deletes or replaces a letter, or swaps two neighbours, and no letter is edited twice: Damerau
    (1964), "A technique for computer detection and correction of spelling errors". Words whose length or letter counts
    differ by too much are skipped first, since an edit adds at most one letter and removes at most one.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._words = sorted(counts, key=lambda word: (len(word), word))
        self._lengths = np.array([len(word) for word in self._words], dtype=np.int64)
        self._letters = np.zeros((len(self._words), _BINS), dtype=np.int8)
        letters = np.array([ord(letter) % _BINS for word in self._words for letter in word], dtype=np.int64)
        np.add.at(self._letters, (np.repeat(np.arange(len(self._words)), self._lengths), letters), 1)

    def of(self, word: str, edits: int) -> str | None:
        """The word with the fewest edits, at most `edits`, or None; ties by frequency, then alphabetically."""
        first, end = np.searchsorted(self._lengths, [len(word) - edits, len(word) + edits + 1])
        own = np.bincount([ord(letter) % _BINS for letter in word], minlength=_BINS).astype(np.int8)
        apart = self._letters[first:end] - own
        near = (np.maximum(apart, 0).sum(axis=1) <= edits) & (np.minimum(apart, 0).sum(axis=1) >= -edits)
        found = [self._words[at] for at in (first + np.flatnonzero(near)).tolist()]
        ranked = [(distance(word, other), -self._counts[other], other) for other in found if other[0] == word[0]]
        least, _, best = min(ranked, default=(edits + 1, 0, ""))
        return best if least <= edits else None


def distance(a: str, b: str) -> int:
    """The number of edits between two words."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, above, row = row, before, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]
