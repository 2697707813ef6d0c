"""Parts of a framework as stages: what such a part returns is what a search gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.stages import TopN
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import is_own


@dataclass(frozen=True)
class Returned:
    """What a part returned: the chunk as it is now, its score, and the id of the hit that it was, None of a new one.

    The chunk's text is what a model reads, which may be the context of the hit.
    """

    chunk: Chunk
    score: float | None
    known_as: str | None


class ForeignStage(Stage):
    """A part of a framework, asked once with as many hits as are wanted.

    Its order, texts, metadata and scores are those of the search from then on, and all that it returns is returned:
    hits that it adds have its vote alone, and are left out where the query's `require` does not permit their metadata.
    Of what a hit becomes, access rights go by the metadata that it had. Where a part fails that is not this package's,
    the search does.
    """

    blocking = True
    refills = False

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part
        self.name = type(part).__name__
        self.bounded = self.own

    @property
    def own(self) -> bool:
        return is_own(type(self.part))

    def arrived(self, query: Query, given: Ranking, returned: Iterable[Returned]) -> Ranking:
        """The ranking of what the part returned for the hits that it was given."""
        known, passes = {hit.id: hit for hit in given}, compile_filter(query.require)
        kept = [(one, known.get(one.known_as or "")) for one in returned]
        kept = [(one, before) for one, before in kept if before is not None or passes(one.chunk.metadata)]
        taken: set[str] = set()
        hits = tuple(self._hit(rank, one, before, taken) for rank, (one, before) in enumerate(kept, 1))
        return replace(given, hits=hits, arranged=True)

    def _hit(self, rank: int, one: Returned, before: Hit | None, taken: set[str]) -> Hit:
        scored = before is None or one.score != before.score
        vote = Vote(self.name, rank, one.score if scored else None)
        hit = Hit(one.chunk) if before is None else _changed(before, one.chunk)
        free = next(name for name in _names(hit.id) if name not in taken)
        taken.add(free)
        return replace(hit.voted(vote), score=one.score, chunk=replace(hit.chunk, id=free))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def own_stage(part: object) -> Stage | None:
    """The stage that a class of this package has made of its options, which keeps its `top_n`; of any other None."""
    if isinstance(part, Stage):
        return part
    stage = getattr(part, "stage", None) if is_own(type(part)) else None
    top_n = getattr(part, "top_n", None)
    if not isinstance(stage, Stage):
        return None
    return stage if top_n is None else TopN(stage, top_n)


def changing(part: object) -> list[Any]:
    """What of a part may be another one later: its stage, of its present options, and how many it keeps."""
    return [getattr(part, "stage", None), getattr(part, "top_n", None)]


def _changed(before: Hit, chunk: Chunk) -> Hit:
    """A hit after its chunk has changed, of which the id and the knowledge base stay.

    `chunk.text` is what a model reads. Where that has changed, nothing of the text before is kept.
    """
    chunk = replace(chunk, id=before.id, kb=before.chunk.kb, parent_id=before.chunk.parent_id)
    if chunk.metadata != before.chunk.metadata:
        before = replace(before, granted_by=before.access_metadata)
    if chunk.text == before.text:
        return replace(before, chunk=replace(chunk, text=before.chunk.text))
    return replace(before, chunk=chunk, context=None, over_budget=False, votes=tuple(map(_without_via, before.votes)))


def _without_via(vote: Vote) -> Vote:
    """A vote without the texts that led to the hit, such as a question that was made from its chunk."""
    return replace(vote, via=(), parts=tuple(map(_without_via, vote.parts)))


def _names(chunk_id: str) -> Iterator[str]:
    """The id, and those of its further parts."""
    yield chunk_id
    yield from (f"{chunk_id}#{number}" for number in count(2))
