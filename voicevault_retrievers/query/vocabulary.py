"""The words of a corpus, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from voicevault_retrievers.text.pieces import encoded, split
from voicevault_retrievers.text.words import words


def piece_counts(texts: Iterable[str]) -> Counter[bytes]:
    """How often each piece of text is there (see `text.pieces`)."""
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(split(encoded(text)))
    return counts


def word_counts(pieces: Mapping[bytes, int]) -> Counter[str]:
    """How often each word of letters is in some pieces, case folded."""
    counts: Counter[str] = Counter()
    for piece, count in pieces.items():
        for word in words(piece):
            if word.isalpha():
                counts[word] += count
    return counts
