"""The base class of rewriters that learn from a corpus: a knowledge base, a keyword channel, or any texts."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.channel import Channel, Rewriter, Through
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.types import Chunk, Failure, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.text.pieces import encoded, split
from voicevault_retrievers.text.terms import words

T = TypeVar("T")
L = TypeVar("L", bound="Learned[Any]")
Corpus: TypeAlias = Iterable[Chunk | str] | Channel
KEPT = 2
"""The number of corpora, or versions of one, that are cached: an old and a new version may be searched together."""


class Learned(Rewriter, Generic[T]):
    """A rewriter that learns from a corpus: chunks or texts, such as a KnowledgeBase, or a BM25 channel.

    Without a corpus it uses the keyword channel behind it (`expansion >> channel`). It learns at its first query, and
    again at the first query after the base or channel has changed; `learned()` does so beforehand. What it learns may
    come from any chunk, so it leaves a query with access rights (`Query.require`) unchanged, with a note. `timeout` is
    in seconds, None waits.
    """

    blocking = True

    def __init__(self, corpus: Corpus | None = None, *, timeout: float | None = None) -> None:
        super().__init__()
        if isinstance(corpus, str) or not isinstance(corpus, Iterable | Channel | None):
            raise ConfigError(f"a corpus is chunks or texts, a knowledge base or a BM25 channel, not {corpus!r}")
        self.corpus = tuple(corpus) if isinstance(corpus, Iterator) else corpus
        self.timeout = seconds_or_none("timeout", timeout)
        self._known: LRUCache[tuple[Any, ...], T] = LRUCache(KEPT)
        self._reading = Mutex()

    @abstractmethod
    def learn(self, texts: Iterable[str]) -> T:
        """Learn from a corpus. The order of the texts is not defined."""

    @abstractmethod
    def variants(self, query: Query, known: T) -> Iterable[Variant]:
        """The variants to add to a query."""

    def rewrite(self, query: Query) -> Query:
        return query if query.require is not None else added(query, self.variants(query, self.learned()))

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        if query.require is None:
            return (yield from super().plan(query))
        said = "it was read from chunks of which this search's `require` may permit only some"
        return query, (Failure(self.name, "not applied", said, degrades=False),)

    def learned(self) -> T:
        """The knowledge from the current corpus."""
        parts = _parts(self.corpus)
        with self._reading:
            known = self._known.get(parts)
            if known is None:
                known = self.learn(_texts(self.corpus, parts))
                self._known.put(parts, known)
            return known

    def over(self: L, channel: Channel) -> L:
        if self.corpus is not None:
            return self
        twin = copy.copy(self)
        twin.corpus = keyword_channel(channel)
        return twin


def added(query: Query, variants: Iterable[Variant]) -> Query:
    """The query with those variants whose text is new."""
    known = {query.text, *(variant.text for variant in query.variants)}
    new = {variant.text: variant for variant in variants if variant.text not in known}
    return replace(query, variants=(*query.variants, *new.values())) if new else query


def keyword_channel(channel: Channel) -> Channel | None:
    """The first keyword channel of a composition; channels below a filter are not searched."""
    if channel.kind == "keyword":
        return channel
    fused = getattr(channel, "bm25", None)  # of a channel whose engine fuses keywords and vectors
    if isinstance(fused, Channel):
        return fused
    parts = () if isinstance(channel, Through) else channel.children().values()
    return next((found for part in parts if (found := keyword_channel(part)) is not None), None)


def _parts(corpus: Corpus | None) -> tuple[Any, ...]:
    """The parts of a base or channel, which identify its version; empty for plain texts."""
    if not isinstance(corpus, Channel):
        return getattr(corpus, "parts", ())
    return tuple(part for channel in _read_by(corpus) for part in channel.index.segments)


def _read_by(channel: Channel) -> list[BM25]:
    """The BM25 channels of a composition; not those below filters, whose chunks the filters may exclude."""
    if isinstance(channel, BM25):
        return [channel]
    parts = () if isinstance(channel, Through) else channel.children().values()
    return [found for part in parts for found in _read_by(part)]


def _texts(corpus: Corpus | None, parts: tuple[Any, ...]) -> Iterator[str]:
    if parts:
        return (part.rows.chunks[at].text for part in parts for at in part.rows.living)
    if corpus is None or (isinstance(corpus, Channel) and not _read_by(corpus)):
        raise ConfigError(
            "an expansion by a corpus reads the chunks of a BM25 channel, and here is none: give a corpus"
        )
    texts: Iterable[Chunk | str] = () if isinstance(corpus, Channel) else corpus
    return (text if isinstance(text, str) else text.text for text in texts)


def piece_counts(texts: Iterable[str]) -> Counter[bytes]:
    """The number of occurrences of each piece of text (see `text.pieces`)."""
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(split(encoded(text)))
    return counts


def word_counts(pieces: Mapping[bytes, int]) -> Counter[str]:
    """The number of occurrences of each word of letters in some pieces, case folded."""
    counts: Counter[str] = Counter()
    for piece, count in pieces.items():
        for word in words(piece):
            if word.isalpha():
                counts[word] += count
    return counts
