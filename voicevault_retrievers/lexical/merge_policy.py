"""The lifecycle of segments: new chunks gather in a memtable, and segments of about equal size are merged.

Log-structured, as in O'Neil et al. (1996), "The log-structured merge-tree". Segments are immutable, so a running search
keeps its segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.lexical import builder
from voicevault_retrievers.lexical.builder import Moved
from voicevault_retrievers.lexical.memtable import Memtable
from voicevault_retrievers.lexical.segment import Analyse, IndexSegment
from voicevault_retrievers.text.analyzed_texts import Analyzed

SEAL_AT = 1024
"""The number of chunks at which the memtable becomes a segment with postings."""

TIER = 8
"""The number of segments of about one size that are merged. This keeps segments few, and rewrites a chunk rarely."""


def added(segments: Sequence[IndexSegment], chunks: Sequence[Chunk], analyzed: Analyzed) -> tuple[IndexSegment, ...]:
    """The segments with chunks added to the memtable, which is the last segment."""
    waiting = segments[-1] if segments and isinstance(segments[-1].postings, Memtable) else None
    forward = waiting.postings if waiting is not None and isinstance(waiting.postings, Memtable) else Memtable()
    held = [] if waiting is None else list(zip(waiting.rows.ids, forward.order, waiting.rows.chunks, strict=True))
    new = [(chunk.id, forward.came + number, chunk) for number, chunk in enumerate(chunks)]
    merged = sorted(held + new, key=lambda entry: entry[0])
    rows = Rows([chunk for _, _, chunk in merged], [chunk_id for chunk_id, _, _ in merged])
    documents = (analyzed.document(number) for number in range(len(analyzed)))
    postings = forward.extended(documents, [came for _, came, _ in merged])
    last = IndexSegment(rows, postings.compacted() if postings.came > 2 * len(rows) + SEAL_AT else postings)
    before = tuple(segments if waiting is None else segments[:-1])
    return tidied((*before, merge([last]))) if len(rows) >= SEAL_AT else (*before, last)


def without(segment: IndexSegment, ids: Iterable[str], analyse: Analyse | None) -> IndexSegment:
    """A segment without some of its chunks; rewritten where more than half are gone."""
    if isinstance(segment.postings, Memtable):
        gone = set(ids)
        kept = [at for at, chunk_id in enumerate(segment.rows.ids) if chunk_id not in gone]
        if len(kept) == len(segment.rows):
            return segment
        rows = Rows([segment.rows.chunks[at] for at in kept], [segment.rows.ids[at] for at in kept])
        return IndexSegment(rows, segment.postings.reordered([segment.postings.order[at] for at in kept]))
    after = segment.without(ids, analyse)
    return merge([after]) if 0 < 2 * after.rows.count < len(after.rows) and after is not segment else after


def tidied(segments: Sequence[IndexSegment]) -> tuple[IndexSegment, ...]:
    """The segments, merged where too many have the same size; the memtable stays last."""
    waiting = [segment for segment in segments if isinstance(segment.postings, Memtable)]
    sealed = [segment for segment in segments if not isinstance(segment.postings, Memtable)]
    groups = plan([segment.rows.count for segment in sealed], SEAL_AT)
    made = (sealed[group[0]] if len(group) == 1 else merge([sealed[place] for place in group]) for group in groups)
    return (*made, *waiting)


def plan(counts: Sequence[int], least: int) -> list[list[int]]:
    """Groups of segments to merge into one each, as positions in the list of live counts.

    Segments without live chunks are left out. Each tier is `TIER` times as large as the one before; the first is of
    about `least` chunks.
    """
    groups = [[place] for place, count in enumerate(counts) if count]
    while True:
        tiers: dict[int, list[list[int]]] = {}
        for group in groups:
            tiers.setdefault(_tier(sum(counts[place] for place in group), least), []).append(group)
        alike = next((some for some in tiers.values() if len(some) >= TIER), None)
        if alike is None:
            return groups
        groups = [group for group in groups if group not in alike] + [[place for group in alike for place in group]]


def _tier(count: int, least: int) -> int:
    tier = 0
    while count > least * TIER ** (tier + 0.5):
        tier += 1
    return tier


def merge(segments: Sequence[IndexSegment]) -> IndexSegment:
    """One segment of all live chunks."""
    entries = sorted(
        ((segment.rows.ids[at], number, at) for number, segment in enumerate(segments) for at in segment.rows.living),
    )
    places = [np.zeros(len(segment.rows), dtype=np.int64) for segment in segments]
    for place, (_, number, at) in enumerate(entries):
        places[number][at] = place
    rows = Rows(
        [segments[number].rows.chunks[at] for _, number, at in entries], [chunk_id for chunk_id, _, _ in entries]
    )
    moved = [Moved(s.postings, where, s.rows.live) for s, where in zip(segments, places, strict=True)]
    return IndexSegment(rows, builder.merge(moved, len(rows)))
