"""What engines write and list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from voicevault_retrievers.core.types import Chunk, Vector


@dataclass(frozen=True)
class Capabilities:
    """What an engine does as a knowledge base does, and what it does otherwise.

    `exact_keywords`: BM25 scores are those of a knowledge base of the same chunks, but for their last bits.
    `exact_vectors`: no near neighbour is missed. `atomic`: a batch is written whole or not at all. `native_async`: the
    event loop waits for the server itself, not for a thread. `server_fusion`: one request can search and fuse.
    """

    exact_keywords: bool
    exact_vectors: bool
    atomic: bool
    native_async: bool
    server_fusion: bool = False


@dataclass(frozen=True, eq=False)
class Record:
    """A chunk as it is written: its vector of length 1, its terms and how often it has each, and its digest.

    Two records of one digest are alike in text, metadata, parent, and in what made their vectors and terms.
    """

    chunk: Chunk
    vector: Vector | None
    terms: Mapping[str, int]
    digest: str

    @property
    def length(self) -> int:
        """How many terms it has, repeats counted."""
        return sum(self.terms.values())


class Stored(NamedTuple):
    """A chunk as it is listed."""

    id: str
    digest: str


class WriteCounts(NamedTuple):
    """How many chunks were new, took another's place, and were there already."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
