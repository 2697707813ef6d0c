"""Framework components as stages: the ranking that the component returns becomes the search's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from voicevault_retrievers.core.access_control import with_rights_of, withheld
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.stages import Raising, TopN
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import is_own

_NEW = (
    "{} returned new documents whose metadata this search's `require` does not permit; they are left out: it must keep "
    "the id or the metadata of what it was given"
)


@dataclass(frozen=True)
class Returned:
    """A chunk that a component returned, its score, and the id of the hit it was; None for a new chunk.

    The chunk's text is what a model reads, which may be the hit's context.
    """

    chunk: Chunk
    score: float | None
    known_as: str | None


class ForeignStage(Stage):
    """A framework component as a stage. It is called once, with as many hits as the search needs.

    The component's order, texts, metadata and scores replace those of the search, and everything that it returns is
    returned. Hits that it adds have only its vote, and are dropped where the query's `require` does not permit their
    metadata; where given hits are missing too, which may be the same in another form, a failure says so. Access rights
    to a changed hit are decided by the metadata that it had before. When a component fails that is not this package's,
    the search fails.
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
        """The ranking of the chunks that the component returned for the given hits."""
        known, passes = {hit.id: hit for hit in given}, compile_filter(with_rights_of(query, given).require)
        found = [(one, known.get(one.known_as or "")) for one in returned]
        kept = [(one, before) for one, before in found if before is not None or passes(one.chunk.metadata)]
        taken: set[str] = set()
        hits = tuple(self._hit(rank, one, before, taken) for rank, (one, before) in enumerate(kept, 1))
        ranking = replace(given, hits=hits, arranged=True)
        is_lost = len(kept) < len(found) and known.keys() > {before.id for _, before in kept if before is not None}
        return ranking.failing(withheld(_NEW.format(self.name))) if is_lost else ranking

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
    """The stage of a class of this package, with its `top_n` and `on_error`; None for other classes."""
    if isinstance(part, Stage):
        return part
    stage = getattr(part, "stage", None) if is_own(type(part)) else None
    top_n = getattr(part, "top_n", None)
    if not isinstance(stage, Stage):
        return None
    stage = stage if top_n is None else TopN(stage, top_n)
    return Raising(stage) if getattr(part, "on_error", None) == "raise" else stage


def changing(part: object) -> list[Any]:
    """The values that decide whether a component must be converted again: its stage, and the options around it."""
    return [getattr(part, name, None) for name in ("stage", "top_n", "on_error", "text_of")]


def _changed(before: Hit, chunk: Chunk) -> Hit:
    """A hit after its chunk has changed; the id and the knowledge base stay.

    `chunk.text` is what a model reads. Where it has changed, nothing of the earlier text is kept.
    """
    chunk = replace(chunk, id=before.id, kb=before.chunk.kb, parent_id=before.chunk.parent_id)
    if chunk.metadata != before.chunk.metadata:
        before = replace(before, granted_by=before.access_metadata)
    if chunk.text == before.text:
        return replace(before, chunk=replace(chunk, text=before.chunk.text))
    return replace(before, chunk=chunk, context=None, over_budget=False, votes=tuple(map(_without_via, before.votes)))


def _without_via(vote: Vote) -> Vote:
    """A vote without the texts that led to the hit, such as a question generated from its chunk."""
    return replace(vote, via=(), parts=tuple(map(_without_via, vote.parts)))


def _names(chunk_id: str) -> Iterator[str]:
    """The id, then numbered ids for further chunks of the same hit."""
    yield chunk_id
    yield from (f"{chunk_id}#{number}" for number in count(2))
