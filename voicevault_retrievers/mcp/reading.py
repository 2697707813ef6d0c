"""One source in full: the parent that its chunk is of, else the chunk with its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.pages import PAGE_KEYS, file_of
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.mcp.configuration import Offer
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.structure.parent_links import Kinship


@dataclass(frozen=True)
class Passage:
    """Chunks as they follow one another in their document; `at` is the place of the one that was asked for."""

    hits: tuple[Hit, ...]
    at: int = 0

    @property
    def ranks(self) -> list[int]:
        """What is left out last: the one that was asked for, then what comes before it and behind it."""
        order = sorted(range(len(self.hits)), key=lambda place: (abs(place - self.at), place))
        return [order.index(place) for place in range(len(self.hits))]


def passage(base: KnowledgeBase | Engine | None, offer: Offer, chunk_id: str, neighbours: int) -> Passage | None:
    """A chunk with its parent's text, or with so many neighbours on either side; None where it is not there.

    What the offer does not permit is not there. An engine's collection tells no neighbours.
    """
    found = {} if base is None else base.get([chunk_id])
    chunk = found.get(chunk_id)
    if base is None or chunk is None or not offer.passes(chunk.metadata):
        return None
    parent = base.parents([chunk.parent_id]).get(chunk.parent_id) if chunk.parent_id else None
    if parent is not None and parent.text and offer.permits(parent.metadata):
        return Passage((_hit(Kinship().joined(chunk, parent), offer, parent.text),))
    around = _around(base, chunk, offer, neighbours) if isinstance(base, KnowledgeBase) else []
    chunks = around or [chunk]
    at = next(place for place, one in enumerate(chunks) if one.id == chunk.id)
    return Passage(tuple(_hit(one, offer) for one in chunks), at)


def _around(base: KnowledgeBase, chunk: Chunk, offer: Offer, neighbours: int) -> Sequence[Chunk]:
    """The chunk among those beside it in its document that the offer passes, in order; nothing where they have none.

    What the offer does not pass has no part in this, not even in whether the numbers tell an order.
    """
    at, file = chunk.metadata.get("chunk_index"), file_of(chunk.metadata)
    if not neighbours or file is None or not isinstance(at, int) or isinstance(at, bool):
        return []
    key = next(key for key, _ in PAGE_KEYS if chunk.metadata.get(key) is not None)
    beside: Filter = {key: file, "chunk_index": {"$gte": at - neighbours, "$lte": at + neighbours}}
    found = base.get(base.view().snapshot.matching(beside)).values()
    chunks = {chunk.id: chunk, **{one.id: one for one in found if offer.passes(one.metadata)}}
    if len({one.metadata["chunk_index"] for one in chunks.values()}) < len(chunks):  # counted anew on each page, say
        return []
    return sorted(chunks.values(), key=_place)


def _place(chunk: Chunk) -> tuple[int, str]:
    return chunk.metadata["chunk_index"], chunk.id


def _hit(chunk: Chunk, offer: Offer, context: str | None = None) -> Hit:
    return Hit(Chunk(chunk.id, chunk.text, chunk.parent_id, chunk.metadata, offer.name), context=context)
