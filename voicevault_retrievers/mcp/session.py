"""The sources of one session: a number names one source as long as it lasts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from voicevault_retrievers.answers.citations import citation_of
from voicevault_retrievers.answers.source_numbers import kept_numbers
from voicevault_retrievers.core.types import Citation, Hit

KEPT = 1000
"""How many sources a session remembers; the numbers of older ones are not given anew."""


class Session:
    """What one client was given since it connected."""

    def __init__(self) -> None:
        self._last = 0
        self._given: list[Citation] = []

    def found(self, hits: Sequence[Hit]) -> list[int]:
        """A number for each hit of a search: a source that was given before in the same words has its own."""
        return self._counted(kept_numbers(hits, self._given, self._last + 1))

    def read(self, hits: Sequence[Hit]) -> list[int]:
        """A number for each passage that is read: a chunk has the one under which it was last given, in any words.

        A search that finds it in its own words gives it that number too.
        """
        known = {(one.kb, one.chunk_id): one.index for one in self._given}
        fresh = iter(range(self._last + 1, self._last + 1 + len(hits)))
        numbers = self._counted([known.get((hit.chunk.kb, hit.id)) or next(fresh) for hit in hits])
        self.remember(citation_of(number, hit, hit.chunk.text) for number, hit in zip(numbers, hits, strict=True))
        return numbers

    def remember(self, citations: Iterable[Citation]) -> None:
        """Keep what was given."""
        self._given = [*self._given, *(one for one in citations if one not in self._given)][-KEPT:]

    def source(self, number: int) -> Citation | None:
        """What a number names; None where that is not known, or no longer."""
        return next((one for one in self._given if one.index == number), None)

    def _counted(self, numbers: list[int]) -> list[int]:
        self._last = max([self._last, *numbers])
        return numbers
