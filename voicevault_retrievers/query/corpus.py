"""What rewriters share that go by the words of a corpus: of a knowledge base, a keyword channel, or any texts."""

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
"""What is known of so many corpora, or commits of one, is kept: an old one may be searched while a new one is."""


class Learned(Rewriter, Generic[T]):
    """A rewriter that goes by what it reads in a corpus: chunks or texts, such as a KnowledgeBase, or a BM25 channel.

    Without one it reads the chunks of the keyword channel that it stands before (`expansion >> channel`). It reads at
    its first query, and anew at the first one after the base or channel has changed; `learned()` does so beforehand.
    What it reads may come from any chunk, so it leaves a query with access rights (`Query.require`) as it is, and
    says so. `timeout` is in seconds, None waits.
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
        """What is to be known of a corpus; the texts are in no order to rely on."""

    @abstractmethod
    def variants(self, query: Query, known: T) -> Iterable[Variant]:
        """What is added to a query."""

    def rewrite(self, query: Query) -> Query:
        return query if query.require is not None else added(query, self.variants(query, self.learned()))

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        if query.require is None:
            return (yield from super().plan(query))
        said = "it was read from chunks of which this search's `require` may permit only some"
        return query, (Failure(self.name, "not applied", said, degrades=False),)

    def learned(self) -> T:
        """What is known of the corpus as it is now."""
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
    """The query with those variants whose text is new to it."""
    known = {query.text, *(variant.text for variant in query.variants)}
    new = {variant.text: variant for variant in variants if variant.text not in known}
    return replace(query, variants=(*query.variants, *new.values())) if new else query


def keyword_channel(channel: Channel) -> Channel | None:
    """The first keyword channel of a composition; it is looked for where no filters of their own are in between."""
    if channel.kind == "keyword":
        return channel
    parts = () if isinstance(channel, Through) else channel.children().values()
    return next((found for part in parts if (found := keyword_channel(part)) is not None), None)


def _parts(corpus: Corpus | None) -> tuple[Any, ...]:
    """The parts of a base or channel, which are others after each change; none for plain texts."""
    if not isinstance(corpus, Channel):
        return getattr(corpus, "parts", ())
    return tuple(part for channel in _read_by(corpus) for part in channel.index.segments)


def _read_by(channel: Channel) -> list[BM25]:
    """The BM25 channels of a composition; none of those below filters, which what is read would not pass through."""
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
