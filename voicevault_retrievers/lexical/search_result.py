"""What a search in an index finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicevault_retrievers.core.types import Chunk


class Scored(NamedTuple):
    """A chunk that was found, its score, and how often it has each of the query's `asked` terms."""

    chunk: Chunk
    score: float
    frequencies: Sequence[int]
    asked: Sequence[Sequence[str]]

    @property
    def terms(self) -> tuple[str, ...]:
        """Those of the query's terms that it has, in the first of their forms."""
        return tuple(forms[0] for forms, f in zip(self.asked, self.frequencies, strict=True) if f)
