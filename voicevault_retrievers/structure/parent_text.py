"""Which text a model reads of each hit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voicevault_retrievers.core.types import Chunk, Failure, Hit, Ranking
from voicevault_retrievers.errors import ContextExpansionError
from voicevault_retrievers.structure.packing import Shown, Text
from voicevault_retrievers.structure.parent_links import Ancestors, Key, Kinship

OWN_TEXT = "the hits keep their own text"
"""What is read where a parent cannot be had."""


@dataclass(frozen=True)
class OverBudget(Failure):
    """A note of hits that do not fit into a budget, not even with their own text; `ids` are theirs where it has any."""

    ids: tuple[str, ...] = ()


def over_budget(stage: str, over: int, ranking: Ranking, ids: Sequence[str] = ()) -> Iterator[Failure]:
    """A note that so many hits of a ranking do not fit; none where all do."""
    if over:
        message = f"{over} of {len(ranking)} hits do not fit into the budget, not even with their own text"
        yield OverBudget(stage, "over budget", message, degrades=False, ids=tuple(ids))


class ParentTexts:
    """The texts of a ranking's hits, given in the order of their ranks.

    A hit has the text of the highest parent that stands for it and fits, else its own, each below its header, if that
    was not given before; else its own without. The first is cut if nothing fits; others have none. Both are marked
    `over_budget`, and named in a note. With a parent's text comes its metadata, over that of the hit's chunk.
    """

    def __init__(self, ranking: Ranking, known: Ancestors, kinship: Kinship, shown: Shown) -> None:
        self._ranking = ranking
        self._known = known
        self._kinship = kinship
        self._shown = shown
        self._given: set[Key] = set()
        self._covered: set[Key] = set()
        self._headed: set[tuple[Key, str | None]] = set()
        self._over: dict[str, None] = {}
        self._read_as: dict[int, Chunk] = {}

    def ranking(self, stage: str) -> Ranking:
        """The hits with their texts; those whose text another has are gone. Failures and notes are the stage's."""
        for place, hit in enumerate(self._ranking):
            self._read(place, hit)
        read = (self._with_text(place, hit) for place, hit in enumerate(self._ranking))
        hits = tuple(hit for hit in read if hit is not None)
        notes = over_budget(stage, len(self._over), self._ranking, tuple(self._over))
        missing = (*_missing(stage, "parents", self._known.parents), *_missing(stage, "headers", self._known.headers))
        return replace(self._ranking, hits=hits).failing(*missing, *notes)

    def _read(self, place: int, hit: Hit) -> None:
        own, above = self._known.own(hit.chunk), self._known.above(hit.chunk)
        if own in self._covered or not (self._given.isdisjoint(above) and self._covered.isdisjoint(above)):
            return
        self._given.add(own)
        parents = list(self._known.standing(above))
        texts = [self._text(parent, hit.chunk.kb, whole=True) for parent in parents]
        alone = Text.of(hit.text) if hit.context is not None else self._text(hit.chunk, hit.chunk.kb)
        headed, head = self._header(hit.chunk)
        for level in range(len(texts), -1, -1):
            text = texts[level - 1] if level else alone
            if self._shown.add(place, replace(text, head=head) if head else text):
                self._covered.update(above[:level])
                self._read_as |= {place: self._known.joined(hit.chunk, parents[level - 1])} if level else {}
                self._headed |= {headed} if headed and head else set()
                return
        if head and self._shown.add(place, alone):
            return
        self._over[hit.id] = None
        if not self._shown.texts and self._shown.cut(place, replace(alone, head=head)) and headed:
            self._headed.add(headed)

    def _header(self, chunk: Chunk) -> tuple[tuple[Key, str | None] | None, str]:
        """A chunk's header of its document, and the text of it where that is there and not given yet."""
        key = self._known.header(chunk)
        if key is None:
            return None, ""
        headed = key, chunk.metadata.get("source_file")
        header = None if headed in self._headed else self._known.headers.get(key)
        return headed, "" if header is None else header.text

    def _text(self, chunk: Chunk, kb: str, *, whole: bool = False) -> Text:
        span = self._kinship.span_of(chunk) if chunk.text else None
        return Text.of(chunk.text, span and replace(span, document=(kb, span.document)), whole=whole)

    def _with_text(self, place: int, hit: Hit) -> Hit | None:
        text = self._shown.texts.get(place)
        if text is None:
            return replace(hit, context=None, over_budget=True) if hit.id in self._over else None
        if place in self._read_as:
            hit = replace(hit, chunk=self._read_as[place], granted_by=hit.access_metadata)
        if hit.id in self._over:
            return replace(hit, context=text.read, over_budget=True)
        unchanged = not text.whole and text.read == hit.text
        return hit if unchanged else replace(hit, context=text.read, over_budget=False)


def _missing(stage: str, what: str, found: Mapping[Key, Any]) -> Iterator[Failure]:
    missing = sum(chunk is None for chunk in found.values())
    if missing:
        yield Failure.of(
            stage, ContextExpansionError(f"{missing} of {len(found)} {what} are not in the store"), OWN_TEXT
        )
