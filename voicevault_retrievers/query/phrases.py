"""Finds words and phrases in a question, and builds wordings with replacements."""

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
    """Finds phrases as whole words, regardless of case and of the characters between the words.

    `fold` maps the lower-case words of a text to the forms that are compared, such as stems.
    """

    def __init__(self, entries: Mapping[str, T], fold: Callable[[Sequence[str]], Sequence[str]] = tuple) -> None:
        self._fold = fold
        self._entries = {tuple(fold(key(phrase))): entry for phrase, entry in entries.items()}
        self._entries.pop((), None)
        self._longest = max(map(len, self._entries), default=0)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, text: str) -> list[tuple[Place, T]]:
        """The places of phrases and their entries, from left to right; at each place the longest phrase is taken."""
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
    """The words of a phrase as its lookup key."""
    return tuple(word.casefold() for word in _WORD.findall(phrase))


def reworded(query: Query, others: Replaced) -> Variant:
    """A wording with replacements in some places, for vectors; BM25 keeps the query's words and adds the replacements.

    The words of a replacement together weigh as much as those that they replace, and each at most 1.
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
    """The query with further weighted words, for keyword channels."""
    terms = {query.text: 1.0} if query.sparse is None else dict(query.sparse)
    for word, count in words.items():
        terms[word] = terms.get(word, 0.0) + count
    return Variant(" ".join([query.text, *words]), channels=frozenset({"keyword"}), terms=terms)
