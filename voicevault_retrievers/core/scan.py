"""The scan of a channel: what it tells about chunks and terms beyond its best hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Scan(Protocol):
    """What a channel can tell about chunks and terms beyond its best hits.

    It may also have a `source`, such as an engine: fused channels with one source have their ids in common.
    """

    @property
    def local(self) -> bool:
        """Whether the scan waits for nothing remote."""
        ...

    @property
    def coverage(self) -> float | None:
        """The share of the query's terms that occur in some chunk, in [0, 1]; None where the channel cannot tell."""
        ...

    def scores(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        """The exact scores of given chunks, 0 where a keyword channel matches none; None where it cannot tell."""
        ...


@dataclass(frozen=True)
class KnownScores:
    """A `Scan` from a function, for channels of your own."""

    scores: Callable[[Sequence[str]], Mapping[str, float] | None]
    coverage: float | None = None
    local: bool = False
