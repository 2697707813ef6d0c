"""Keyword search over a copy of a framework's index; every search checks the copy against that index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import both, compile_filter
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.types import Chunk, Failure, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25, LexicalIndex
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.lexical.bm25 import Matches
from voicevault_retrievers.lexical.expansion_notes import Noted
from voicevault_retrievers.store.live_curation import CurationSource, LiveGuard
from voicevault_retrievers.store.saved_index import live_chunks

_LOG = logging.getLogger(__name__)
_REFUSALS = (NotImplementedError, TypeError, ValueError, AssertionError)
"""The errors of vector stores that have no lookup by id."""


@dataclass(frozen=True, eq=False)
class CopiedIndex:
    """The source of a copy: how its chunks are listed and looked up.

    `held` is the store itself, `name` its class. `get` returns those of some ids that exist now; None where the store
    has no lookup by id. `ids` returns all ids at once, without a request to a server; None where the store cannot.
    `curated` has the curation of the knowledge base in the store, where there is one.
    """

    name: str
    held: object
    listed: Callable[[], Sequence[Chunk]]
    get: Callable[[Sequence[str]], Iterable[Chunk]] | None = None
    ids: Callable[[], Collection[str]] | None = None
    curated: object = None

    def now(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """The current chunks with these ids, without parents, which no search returns."""
        wanted = list(ids)
        found = () if self.get is None or not wanted else self.get(wanted)
        return {chunk.id: chunk for chunk in found if not chunk.is_parent}

    def followed(self, chunks: Sequence[Chunk]) -> CopiedIndex:
        """This source, without `get` where the first lookup does not find one of its own chunks; a warning says so."""
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
    """BM25 over a copy of the chunks of a `CopiedIndex`, kept up to date by every search.

    A search looks up its hits in the source. Deleted chunks leave the copy, changed chunks are replaced in it, and the
    search is repeated, so that texts, filters and access rights are current. Where the source has `ids`, new chunks are
    found too; otherwise `refresh` reads them. A source that cannot be reached fails the search. A source without a
    lookup by id is not followed until `refresh`.
    """

    def __init__(
        self, index: LexicalIndex, analyzer: AnyAnalyzer | None = None, *, source: CopiedIndex, **options: Any
    ) -> None:
        super().__init__(index, analyzer, **options)
        self.source = source
        self._lacking: set[str] = set()  # shared, like the index, by all copies of this channel
        self._known: tuple[LexicalIndex | None, frozenset[str]] = (None, frozenset())

    @classmethod
    def of(
        cls, source: CopiedIndex, chunks: Sequence[Chunk], analyzer: AnyAnalyzer | None = None, **options: Any
    ) -> KeywordCopy:
        """A copy of the chunks that the source lists now; `options` are those of `BM25`."""
        searched = [chunk for chunk in chunks if not chunk.is_parent]
        made: KeywordCopy = cls.from_chunks(searched, analyzer, source=source.followed(searched), **options)  # type: ignore[assignment]
        made.guard = LiveGuard(source.curated) if isinstance(source.curated, CurationSource) else None
        return made

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
        return [
            _Current([match for match in _current(matches, now) if passes(match.chunk.metadata)][:k], matches)
            for matches in found
        ]

    def search_many(self, queries: Iterable[str], k: int) -> list[list[tuple[str, float]]]:
        return [[(hit.id, hit.score or 0.0) for hit in self.search(query, k)] for query in queries]

    def refresh(self) -> bool:
        """Copy what the source lists now. Returns whether anything was new, changed or deleted."""
        there = {chunk.id: chunk for chunk in self.source.listed() if not chunk.is_parent}
        held = {chunk.id: chunk for chunk in live_chunks(self.index)}
        there |= self.source.now(held.keys() - there)  # a source listed by ids does not list later additions
        stale = [one for one in {**there, **held} if not _same(held.get(one), there.get(one))]
        self._lacking.clear()
        self._put(stale, there)
        return bool(stale)

    def read(self, ids: Sequence[str]) -> None:
        """Update the copy's chunks with these ids from the source."""
        now = self.source.now(ids)
        self._put(dict.fromkeys([*ids, *now]), now)  # a store may spell an id differently

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
        """Copy the chunks that are new in a source with `ids`, and drop those that it has deleted."""
        if self.source.ids is None:
            return
        there, index = self.source.ids(), self.index
        if self._known[0] is not index:
            self._known = index, frozenset(one for segment in index.segments for one in _live(segment.rows))
        held = self._known[1]
        gone = held.difference(there)
        if not gone and not self._lacking and len(there) == len(held):
            return  # as many ids as before, and none gone: nothing is new
        new = [one for one in list(there) if one not in held and one not in self._lacking]
        if new or gone:
            now = self.source.now(new)
            self._lacking.update(one for one in new if one not in now)
            self._put([*new, *gone], now)

    def _put(self, ids: Iterable[str], now: Mapping[str, Chunk]) -> None:
        """Replace the copy's chunks with these ids by the current ones."""
        wanted = list(ids)
        super().delete([one for one in wanted if one not in now])
        super().add([now[one] for one in wanted if one in now])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, source={self.source.name})"


class _Current(list[Match], Noted):
    """The current matches among some matches, with their notes."""

    def __init__(self, current: Iterable[Match], found: Sequence[Match]) -> None:
        super().__init__(current)
        self._found = found

    def notes(self, stage: str) -> Mapping[str, Failure]:
        """As of `Matches`."""
        return self._found.notes(stage, self) if isinstance(self._found, Matches) else {}


def copies_in(channel: Channel) -> Iterator[KeywordCopy]:
    """The keyword copies among the channels below a channel."""
    return (leaf for leaf in channel.leaves() if isinstance(leaf, KeywordCopy))


def refreshed(channel: Channel) -> bool:
    """Refresh all keyword copies below a channel. Returns whether anything changed."""
    return any([copy.refresh() for copy in copies_in(channel)])  # a list: every copy must be refreshed


def _live(rows: Any) -> Iterable[str]:
    return rows.ids if rows.live is None else (rows.ids[at] for at in rows.living)


def _current(matches: Iterable[Match], now: Mapping[str, Chunk]) -> Iterator[Match]:
    """The matches whose chunks exist, with their current chunks."""
    return (match._replace(chunk=now[match.chunk.id]) for match in matches if match.chunk.id in now)


def _same(held: Chunk | None, now: Chunk | None) -> bool:
    """Whether a chunk is unchanged; metadata that cannot be compared, such as arrays, counts as changed."""
    try:
        return bool(held == now)
    except ValueError:
        return False
