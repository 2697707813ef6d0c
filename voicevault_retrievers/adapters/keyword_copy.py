"""Keyword search over a copy of what an index of a framework holds, checked against that index in each search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import both, compile_filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25, LexicalIndex
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.store.saved_index import live_chunks

_LOG = logging.getLogger(__name__)
_REFUSALS = (NotImplementedError, TypeError, ValueError, AssertionError)
"""What vector stores raise that do not look up by id."""


@dataclass(frozen=True, eq=False)
class CopiedIndex:
    """The index that a copy is taken of: how it is listed, and how chunks are looked up there.

    `held` is the store itself, `name` its class. `get` gives those of some ids that are there now, None where the index
    does not look up by id. `ids` gives all ids at once, without asking a server; None where the index cannot.
    """

    name: str
    held: object
    listed: Callable[[], Sequence[Chunk]]
    get: Callable[[Sequence[str]], Iterable[Chunk]] | None = None
    ids: Callable[[], Collection[str]] | None = None

    def now(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """Those of some chunks that the index holds and a search finds, as they are there now."""
        wanted = list(ids)
        found = () if self.get is None or not wanted else self.get(wanted)
        return {chunk.id: chunk for chunk in found if not chunk.is_parent}

    def followed(self, chunks: Sequence[Chunk]) -> CopiedIndex:
        """This source, without `get` where a first look-up does not find one of its own chunks; a warning says so."""
        try:
            if self.get is not None and (not chunks or chunks[0].id in self.now([chunks[0].id])):
                return self
        except _REFUSALS:
            pass
        _LOG.warning(
            "%s gives nothing by id, so what is deleted or changed there is found by keywords as it was, until "
            "refresh()", self.name,
        )  # fmt: skip
        return replace(self, get=None, ids=None)


class KeywordCopy(BM25):
    """BM25 over a copy of the chunks of a `CopiedIndex`, which says in each search what still holds.

    A search looks its hits up there. What is gone leaves the copy, what has changed takes its old place in it, and the
    search is made again, so that text, filters and rights are those of now. Where the source tells its ids, what is new
    is found too; else `refresh` reads it. A source that cannot be asked fails the search; one that does not look up by
    id is not followed until `refresh`.
    """

    def __init__(
        self, index: LexicalIndex, analyzer: AnyAnalyzer | None = None, *, source: CopiedIndex, **options: Any
    ) -> None:
        super().__init__(index, analyzer, **options)
        self.source = source
        self._lacking: set[str] = set()  # shared, as the index is, by all names of this channel
        self._known: tuple[LexicalIndex | None, frozenset[str]] = (None, frozenset())

    @classmethod
    def of(
        cls, source: CopiedIndex, chunks: Sequence[Chunk], analyzer: AnyAnalyzer | None = None, **options: Any
    ) -> KeywordCopy:
        """A copy of the chunks that the source lists now; `options` are those of `BM25`."""
        searched = [chunk for chunk in chunks if not chunk.is_parent]
        return cls.from_chunks(searched, analyzer, source=source.followed(searched), **options)  # type: ignore[return-value]

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        if self.source.get is None:
            return super().find(query, wordings, k)
        self._keep_up()
        depth, checked = k, set[str]()
        while True:
            found = super().find(query, wordings, depth)
            ids = dict.fromkeys(match.chunk.id for matches in found for match in matches)
            now = self.source.now(ids)
            stale = [one for one in ids if one not in checked and not _same(self.index.get(one), now.get(one))]
            if not stale:
                break
            self._put(stale, now)
            checked.update(stale)
            depth *= 2
        passes = compile_filter(both(query.require, query.where))
        return [[match for match in _current(matches, now) if passes(match.chunk.metadata)][:k] for matches in found]

    def search_many(self, queries: Iterable[str], k: int) -> list[list[tuple[str, float]]]:
        return [[(hit.id, hit.score or 0.0) for hit in self.search(query, k)] for query in queries]

    def refresh(self) -> bool:
        """Take over what the source lists now; whether anything was new, changed or gone."""
        there = {chunk.id: chunk for chunk in self.source.listed() if not chunk.is_parent}
        held = {chunk.id: chunk for chunk in live_chunks(self.index)}
        there |= self.source.now(held.keys() - there)  # a source of some ids alone does not list what was added since
        stale = [one for one in {**there, **held} if not _same(held.get(one), there.get(one))]
        self._lacking.clear()
        self._put(stale, there)
        return bool(stale)

    def read(self, ids: Sequence[str]) -> None:
        """Take over what the source holds of some ids now."""
        now = self.source.now(ids)
        self._put(dict.fromkeys([*ids, *now]), now)  # a store may spell an id in its own way

    def add(self, chunks: Iterable[Chunk]) -> None:
        raise self._refusal()

    def delete(self, ids: Iterable[str]) -> int:
        raise self._refusal()

    def _refusal(self) -> ConfigError:
        return ConfigError(
            f"{self.name} searches a copy of a {self.source.name} and follows it: add and delete there, or with a "
            "HybridRetriever that searches both"
        )

    def _keep_up(self) -> None:
        """Take over what has come to a source that tells its ids, and leave out what has gone."""
        if self.source.ids is None:
            return
        there, index = self.source.ids(), self.index
        if self._known[0] is not index:
            self._known = index, frozenset(one for segment in index.segments for one in _live(segment.rows))
        held = self._known[1]
        gone = held.difference(there)
        if not gone and not self._lacking and len(there) == len(held):
            return  # nothing is new either
        new = [one for one in list(there) if one not in held and one not in self._lacking]
        if new or gone:
            now = self.source.now(new)
            self._lacking.update(one for one in new if one not in now)
            self._put([*new, *gone], now)

    def _put(self, ids: Iterable[str], now: Mapping[str, Chunk]) -> None:
        """Let the copy hold of some ids what there is of them now."""
        wanted = list(ids)
        super().delete([one for one in wanted if one not in now])
        super().add([now[one] for one in wanted if one in now])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, source={self.source.name})"


def copies_in(channel: Channel) -> Iterator[KeywordCopy]:
    """The copies that a composition searches."""
    return (leaf for leaf in channel.leaves() if isinstance(leaf, KeywordCopy))


def refreshed(channel: Channel) -> bool:
    """Refresh all copies that a composition searches; whether there was anything new."""
    return any([copy.refresh() for copy in copies_in(channel)])  # of each, whatever the first one says


def _live(rows: Any) -> Iterable[str]:
    return rows.ids if rows.live is None else (rows.ids[at] for at in rows.living)


def _current(matches: Iterable[Match], now: Mapping[str, Chunk]) -> Iterator[Match]:
    """The matches whose chunks are there, with these as they are now."""
    return (match._replace(chunk=now[match.chunk.id]) for match in matches if match.chunk.id in now)


def _same(held: Chunk | None, now: Chunk | None) -> bool:
    """Whether a chunk is as it was; metadata that does not compare, such as arrays, counts as changed."""
    try:
        return bool(held == now)
    except ValueError:
        return False
