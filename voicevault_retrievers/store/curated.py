"""A search under the curations of its knowledge bases: with their synonyms and pins, without what they block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from voicevault_retrievers.core.access_control import unblocked
from voicevault_retrievers.core.blocking import blocks
from voicevault_retrievers.core.channel import Channel, Over, Rewritten, Stage, Then, Through
from voicevault_retrievers.core.execution.plan import Plan, off_loop
from voicevault_retrievers.core.filters import Filter, both, compile_filter
from voicevault_retrievers.core.types import Chunk, Failure, Hit, Query, Ranking, Vote
from voicevault_retrievers.query.corpus import added
from voicevault_retrievers.store.live_curation import (
    STAGE,
    CuratedBase,
    CurationRules,
    CurationSource,
    Pin,
    blocked_by,
    in_force,
    of_document,
)

PINNED = "pinned"
"""The stage of the vote on a hit that is pinned."""


class Curated(Through, Over):
    """A search under the curations of the knowledge bases of a `source`.

    Synonyms are further wordings of the query, for all that is searched. What is blocked is not found, whatever a
    channel or stage returns. What is pinned for the question comes first, in the order of the file and of the bases,
    with a vote of the stage "pinned", whose `query` is the question in the file. Only a base's own chunks are pinned,
    and only those that pass the query's filters and access rights. A document is pinned as its best chunk for the
    query: the first in the ranking, else the best of a search of that document, else its first.

    Stages of this package that rank do not see what is pinned. Stages that give hits their text, and all others, do,
    and may leave it out, with a note. Notes say that something pinned is not in its base any more, or that its file
    cannot be read; the latter degrades the result, and the last curation that could be read stays in force.
    """

    def __init__(self, below: Channel, source: CurationSource) -> None:
        super().__init__(below)
        self.source = source

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        asked = yield from off_loop(STAGE, partial(self._prepared, query))
        if not asked.pinned:
            ranking = yield from self.below.plan(asked.query, k)
            return unblocked(ranking, asked.query.blocked).failing(*asked.notes)
        ranked, upper = _apart(self.below)
        pinning = _Pinning(ranked, asked.pinned)
        channel: Channel = pinning
        for stage in upper:
            channel = channel >> stage
        ranking = yield from channel.plan(asked.query, k)
        return pinning.promoted(unblocked(ranking, asked.query.blocked), k).failing(*asked.notes)

    def asked(self, query: Query) -> Query:
        return _asked(query, in_force(self.source.curations()))[0]

    def _prepared(self, query: Query) -> _Prepared:
        """What is read of files for a query."""
        read = in_force(self.source.curations())
        asked, notes = _asked(query, read)
        pinned, gone = list[_Pinned](), list[str]()
        for base, rules in read:
            for pin in rules.pins(query.text) if rules else ():
                chunks = _shown(pin, base, asked)
                if chunks:
                    pinned.append(_Pinned(pin, {chunk.id: chunk for chunk in chunks}))
                elif next(_held(pin, base), None) is None:
                    gone.append(base.snapshot.folder.name)
        return _Prepared(asked, pinned, (*notes, *(_gone(kb, gone.count(kb)) for kb in dict.fromkeys(gone))))

    def describe(self, indent: str = "") -> str:
        return self.below.describe(indent)

    def __repr__(self) -> str:
        return repr(self.below)


def _asked(query: Query, read: Sequence[tuple[CuratedBase, CurationRules | None]]) -> tuple[Query, Sequence[Failure]]:
    """The query with synonyms and with what is blocked for it, and the failures of the curations."""
    guarded, failures = blocked_by(query, read)
    for _, rules in read:
        if rules is not None and rules.curation.synonyms:
            guarded = added(guarded, rules.curation.wordings(guarded))
    return guarded, failures


class _Pinned(NamedTuple):
    """What is pinned, with those of its chunks that may be shown, by the ids that they have in a search."""

    pin: Pin
    chunks: Mapping[str, Chunk]

    def narrowed(self, query: Query) -> Query:
        """The query for the chunks of the document alone."""
        return replace(query, where=both(query.where, of_document(self.pin.name)))


class _Prepared(NamedTuple):
    """A query as it is searched, what is pinned for it, and the notes."""

    query: Query
    pinned: Sequence[_Pinned]
    notes: Sequence[Failure]


def _shown(pin: Pin, base: CuratedBase, query: Query) -> list[Chunk]:
    """The chunks that are pinned, pass the query's filters and access rights, and are not blocked."""
    passes = [compile_filter(query.where), compile_filter(query.require)]
    return [
        chunk.prefixed(base.prefix)
        for chunk in _held(pin, base, query.where, query.require)
        if all(passing(chunk.metadata) for passing in passes) and not blocks(query.blocked, chunk)
    ]


def _held(pin: Pin, base: CuratedBase, *narrowed: Filter | None) -> Iterator[Chunk]:
    """The chunks that are pinned; of a document those that pass the filters."""
    where: Filter = {"$and": [of_document(pin.name), *filter(None, narrowed)]}
    ids = base.snapshot.matching(where) if pin.is_document else (pin.name,)
    return (chunk for one in ids if (chunk := base.snapshot.get(one)) is not None)


def _gone(kb: str, count: int) -> Failure:
    """The note that a base does not have what is pinned; without names, which not everybody may know."""
    said = f"{count} pinned here is not in knowledge base {kb!r}: `voicevault kb curation {kb}` names it"
    return Failure(PINNED, "missing", said, degrades=False)


class _Pinning(Over):
    """A search with the pinned hits first; for one query, so that they are chosen once."""

    def __init__(self, below: Channel, pinned: Sequence[_Pinned]) -> None:
        super().__init__(below)
        self.pinned = pinned
        self.chosen: list[Hit] | None = None
        self.failures: list[Failure] = []

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        ranking = yield from self.below.plan(query, k)
        if self.chosen is None:
            self.chosen = yield from self._choose(query, ranking)
        ids = {hit.id for hit in self.chosen}
        rest = [hit for hit in ranking if hit.id not in ids]
        return Ranking((*self.chosen, *rest)[:k], (*ranking.errors, *self.failures), arranged=True)

    def promoted(self, ranking: Ranking, k: int) -> Ranking:
        """The ranking with the pinned hits first, in their order; a note where a stage has left out some."""
        held = {hit.id: hit for hit in ranking}
        wanted = [hit.id for hit in (self.chosen or ())[:k]]
        first = [held[one] for one in wanted if one in held]
        hits = (*first, *(hit for hit in ranking if hit.id not in wanted))
        said = f"{len(wanted) - len(first)} of {len(wanted)} pinned chunks were left out by a stage"
        notes = [Failure(PINNED, "left out", said, degrades=False)] if len(first) < len(wanted) else []
        return replace(ranking, hits=hits, arranged=True).failing(*notes) if wanted else ranking

    def _choose(self, query: Query, ranking: Ranking) -> Plan[list[Hit]]:
        """The hits to show first: those of the ranking where it has them, else without a score."""
        held = {hit.id: hit for hit in ranking}
        best = [next((one for one in held if one in pinned.chunks), None) for pinned in self.pinned]
        sought = [at for at, one in enumerate(best) if one is None and len(self.pinned[at].chunks) > 1]
        bottom = _bottom(self.below)
        outcomes = yield tuple(bottom.plan(self.pinned[at].narrowed(query), _SOUGHT) for at in sought)
        for at, outcome in zip(sought, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self.failures.append(Failure.recorded(PINNED, outcome, "a document's first chunk is shown"))
            else:
                best[at] = next((one for one in outcome.ids if one in self.pinned[at].chunks), None)
        found: dict[str, Hit] = {}
        for (pin, chunks), one in zip(self.pinned, best, strict=True):
            chosen = one or min(chunks, key=lambda chunk_id: _place(chunks[chunk_id]))
            hit = held.get(chosen) or Hit(chunks[chosen])
            found.setdefault(chosen, hit.voted(Vote(PINNED, len(found) + 1, query=pin.query)))
        return list(found.values())


_SOUGHT = 10
"""How many hits a search of a pinned document is asked for: other channels may have chunks of a file of that name."""


def _apart(channel: Channel) -> tuple[Channel, list[Stage]]:
    """The search up to the first stage that sees what is pinned, and the stages from there on; see `Curated`."""
    stages: list[Stage] = []
    below, ranked = channel, channel
    upper: list[Stage] = []
    while isinstance(below, Then):
        stages.append(below.stage)
        below = below.below
        if stages[-1].gives_text or not stages[-1].own:
            ranked, upper = below, stages[::-1]
    return ranked, upper


def _bottom(channel: Channel) -> Channel:
    """A search without this package's rewriters and stages, which choose no chunk of a document better."""
    while isinstance(channel, Then) or (isinstance(channel, Rewritten) and channel.rewriter.own):
        channel = channel.below
    return channel


def _place(chunk: Chunk) -> tuple[float, ...]:
    """Where a chunk begins in its document; what is unknown counts as the beginning."""
    numbers = (chunk.metadata.get(key) for key in ("page_number", "page", "chunk_index", "start"))
    return tuple(float(one) if isinstance(one, int | float) else 0.0 for one in numbers)
