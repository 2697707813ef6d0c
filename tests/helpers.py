"""Parts that tests share."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray

from voicevault_retrievers.leaf import Leaf, Match
from voicevault_retrievers.types import ChannelKind, Chunk, Query, Variant


def examples(share: float) -> settings:
    """As many examples as this part of the profile's; HYPOTHESIS_PROFILE=nightly draws 25 times as many."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


class HashEmbedder:
    """Rows of length 1 from hashed words: texts that share words are near. Stands in for a model in unit tests."""

    def __init__(self, dimension: int = 16, name: str = "hash") -> None:
        self.dimension = dimension
        self.name = name

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.dimension}"

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.array([self._row(text) for text in texts], dtype=np.float32).reshape(len(texts), self.dimension)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.embed_documents(texts)

    def _row(self, text: str) -> NDArray[np.float64]:
        total = np.full(self.dimension, 0.01)
        for word in text.casefold().split():
            seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big")
            total += np.random.default_rng(seed).standard_normal(self.dimension)
        return total

    def __repr__(self) -> str:
        return f"HashEmbedder({self.dimension})"


class ListChannel(Leaf):
    """Finds what it was given, in that order, whatever is asked."""

    def __init__(
        self, found: Sequence[tuple[str, float | None]], *, name: str = "list", kind: ChannelKind = "semantic",
        timeout: float | None = None, metadata: dict[str, dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, kind, timeout=timeout)
        self.found = found
        self.metadata = metadata or {}
        self.asked: list[tuple[str, int]] = []

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.asked.extend((wording.text, k) for wording in wordings)
        matches = [
            Match(Chunk(chunk_id, chunk_id, metadata=self.metadata.get(chunk_id, {})), score)
            for chunk_id, score in self.found[:k]
        ]
        return [matches for _ in wordings]


class Cosines(ListChannel):
    """Tells the cosines of some chunks by their ids, and finds nothing."""

    def __init__(self, known: Mapping[str, float]) -> None:
        super().__init__([])
        self.known = known

    def scores(self, query: Query, ids: Iterable[str]) -> Mapping[str, float] | None:
        return {chunk_id: self.known[chunk_id] for chunk_id in ids if chunk_id in self.known}


class Careless(Leaf):
    """Forgets the rights of a search."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        ours, theirs = Chunk("ours", "pump a", metadata={"of": "a"}), Chunk("secret", "pump b", metadata={"of": "b"})
        return [[Match(theirs, 2.0), Match(ours, 1.0)] for _ in wordings]


class FailingChannel(Leaf):
    """Raises whenever it is asked."""

    def __init__(self, error: Exception, *, name: str = "failing") -> None:
        super().__init__(name, "semantic")
        self.error = error

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        raise self.error


class Asked:
    """A model that is a function: it answers in turn, and notes what it was asked and in which thread."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.prompts: list[str] = []
        self.threads: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.threads.append(threading.current_thread().name)
        return self.answers[(len(self.prompts) - 1) % len(self.answers)]


def no_model(prompt: str) -> str:
    raise RuntimeError("no model")
