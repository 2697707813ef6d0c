"""The result of a search in an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicevault_retrievers.core.types import Chunk


class Scored(NamedTuple):
    """A chunk that was found, its score, and the frequency in it of each of the query's `asked` terms."""

    chunk: Chunk
    score: float
    frequencies: Sequence[int]
    asked: Sequence[Sequence[str]]

    @property
    def terms(self) -> tuple[str, ...]:
        """The query's terms that the chunk contains, each in its first form."""
        return tuple(forms[0] for forms, f in zip(self.asked, self.frequencies, strict=True) if f)
