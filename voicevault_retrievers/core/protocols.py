"""What other people's parts must offer: models and stores. Anything of this shape will do; nothing is inherited."""

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
    """Turns texts into rows of length 1, so that an inner product is the cosine.

    `fingerprint` names the model and all that changes its vectors: equal fingerprints mean comparable vectors. One that
    has an async `aembed_queries` too is awaited by async searches. One whose `local` is there and true does nothing but
    compute in this process: an event loop then runs no more of its calls at a time than there are cores.
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
    """Whether a part has all of an `Embedder`, told without asking for its fingerprint, which may read files."""
    return all(getattr_static(part, name, None) is not None for name in _EMBEDDER)


_EMBEDDER = ("fingerprint", "dimension", "embed_documents", "embed_queries")


@runtime_checkable
class VectorSource(Protocol):
    """What holds vectors of chunks by id, of length 1, and the embedder that made them: a vector channel."""

    embedder: Embedder

    def vectors(self, ids: Iterable[str]) -> Mapping[str, Vector]:
        """The vectors of those of the given chunks that it holds."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Scores passages against a query, as a cross-encoder does: unbounded, higher is more relevant."""

    @property
    def name(self) -> str: ...

    def score(self, query: str, passages: Sequence[str]) -> Sequence[float]:
        """One number per passage, in their order."""
        ...


@runtime_checkable
class TextModel(Protocol):
    """A language model: a prompt in, a text out. One that has an async `acomplete` too is awaited by async searches."""

    def complete(self, prompt: str) -> str: ...


class Found(NamedTuple):
    """A chunk found by its vector. `score` is the cosine similarity, in [-1, 1]."""

    chunk: Chunk
    score: float


@runtime_checkable
class VectorIndex(Protocol):
    """Vectors of chunks, searched by vector alone: query text never reaches it."""

    @property
    def dimension(self) -> int: ...

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> Sequence[Found]:
        """At most k chunks of those that pass the filters, by falling cosine, ties by ascending id."""
        ...

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> Mapping[str, float] | None:
        """The cosines of those of the given chunks that pass the filters; None where the index cannot tell."""
        ...
