"""Words and phrases in a question, and wordings that have others in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from voicevault_retrievers.core.types import Query, Variant

T = TypeVar("T")
Place: TypeAlias = slice
Replaced: TypeAlias = Sequence[tuple[Place, str]]

_WORD = re.compile(r"\w+(?:['’.-]\w+)*(?:\+\+|#)?")


class Phrases(Generic[T]):
    """Finds phrases as whole words, whatever their case and what stands between the words.

    `fold` gives what each word of a text, in lower case, is found by, such as its stem.
    """

    def __init__(self, entries: Mapping[str, T], fold: Callable[[Sequence[str]], Sequence[str]] = tuple) -> None:
        self._fold = fold
        self._entries = {tuple(fold(key(phrase))): entry for phrase, entry in entries.items()}
        self._entries.pop((), None)
        self._longest = max(map(len, self._entries), default=0)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, text: str) -> list[tuple[Place, T]]:
        """Where phrases are and their entries, from left to right, none within another: the longest is taken."""
        words = list(_WORD.finditer(text))
        folded = self._fold([word[0].casefold() for word in words])
        found: list[tuple[Place, T]] = []
        at = 0
        while at < len(words):
            ends = range(min(len(words), at + self._longest), at, -1)
            end = next((end for end in ends if tuple(folded[at:end]) in self._entries), at)
            if end > at:
                place = slice(words[at].start(), words[end - 1].end())
                found.append((place, self._entries[tuple(folded[at:end])]))
            at = max(end, at + 1)
        return found


def key(phrase: str) -> tuple[str, ...]:
    """The words of a phrase, by which it is found."""
    return tuple(word.casefold() for word in _WORD.findall(phrase))


def reworded(query: Query, others: Replaced) -> Variant:
    """A query with others in some places, for vectors; BM25 keeps its words, and adds those others.

    Their words count together as often as those that they stand for, and at most once each.
    """
    text = query.text
    terms = {text: 1.0}
    for place, other in others:
        weight = min(1.0, len(key(query.text[place])) / max(1, len(key(other))))
        terms[other] = max(weight, terms.get(other, 0.0))
    for place, other in sorted(others, key=lambda pair: -pair[0].start):
        text = text[: place.start] + other + text[place.stop :]
    return Variant(text, terms=terms)


def extended(query: Query, words: Mapping[str, float]) -> Variant:
    """A query with further words for keyword channels, each with how often it counts."""
    terms = {query.text: 1.0} if query.sparse is None else dict(query.sparse)
    for word, count in words.items():
        terms[word] = terms.get(word, 0.0) + count
    return Variant(" ".join([query.text, *words]), channels=frozenset({"keyword"}), terms=terms)
