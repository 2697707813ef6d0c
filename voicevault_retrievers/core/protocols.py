"""Protocols for models and stores from outside the package. They are matched by structure; nothing is inherited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import getattr_static
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector


@runtime_checkable
class Embedder(Protocol):
    """Embeds texts as rows of length 1, so that an inner product is the cosine.

    `fingerprint` names the model and all settings that change its vectors: equal fingerprints mean comparable vectors.
    Async searches await `aembed_queries`, where an embedder has it. An embedder with a true `local` attribute only
    computes in this process; an event loop then runs at most as many of its calls at a time as there are cores.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """An array of shape (len(texts), dimension)."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """An array of shape (len(texts), dimension)."""
        ...


def is_embedder(part: object) -> bool:
    """Whether an object has all attributes of an `Embedder`. Does not read the fingerprint, which may read files."""
    return all(getattr_static(part, name, None) is not None for name in _EMBEDDER)


_EMBEDDER = ("fingerprint", "dimension", "embed_documents", "embed_queries")


@runtime_checkable
class VectorSource(Protocol):
    """Vectors of length 1 by chunk id, and the embedder that made them: a vector channel."""

    embedder: Embedder

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        """The vectors of those given chunks that the source holds."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Scores passages against a query, like a cross-encoder. Scores are unbounded; higher is more relevant."""

    @property
    def name(self) -> str: ...

    def score(self, query: str, passages: Sequence[str]) -> Sequence[float]:
        """One score per passage, in the order of the passages."""
        ...


@runtime_checkable
class TextModel(Protocol):
    """A language model: a prompt in, a text out. Async searches await `acomplete`, where a model has it."""

    def complete(self, prompt: str) -> str: ...


class Found(NamedTuple):
    """A chunk found by its vector. `score` is the cosine similarity, in [-1, 1]."""

    chunk: Chunk
    score: float


@runtime_checkable
class VectorIndex(Protocol):
    """Vectors of chunks, searched by vector alone: the index never sees a query's text."""

    @property
    def dimension(self) -> int: ...

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Sequence[Found]:
        """At most k chunks that pass both filters, by falling cosine, ties by ascending id."""
        ...

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> Mapping[str, float] | None:
        """The cosines of those given chunks that pass both filters; None where the index cannot tell."""
        ...
