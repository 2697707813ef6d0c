"""The base class of embedders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense import probes
from voicevault_retrievers.errors import ConfigError, EmbeddingError

Matrix: TypeAlias = NDArray[np.float32]

QUERIES_KEPT = 256


class BaseEmbedder(ABC):
    """The base class of embedders: checks, rows of length 1, and a cache of the last 256 queries."""

    local = True
    """Whether the embedder computes in this process; not where it has an `aembed_queries`."""

    def __init__(self) -> None:
        self._queries: LRUCache[str, Vector] = LRUCache(QUERIES_KEPT, for_queries=True)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the model and all settings that change its vectors."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The length of a row."""

    @property
    def in_doubt(self) -> bool:
        """Whether the name may stand for several models, so that an index stores the probe."""
        return False

    def probe(self) -> str:
        """Embed `probes.TEXTS` with the model, and encode the vectors."""
        return probes.encoded(self._documents(probes.TEXTS))

    def made(self, fingerprint: str, dimension: int, probe: str | None) -> bool:
        """Whether this embedder made an index with that fingerprint, dimension and, where in doubt, probe."""
        if self.fingerprint == fingerprint:
            return self.dimension == dimension
        return probe is not None and self.dimension == dimension and probes.are_one_model(self.probe(), probe)

    @abstractmethod
    def _documents(self, texts: Sequence[str]) -> ArrayLike: ...

    def _asked(self, texts: Sequence[str]) -> ArrayLike:
        return self._documents(texts)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Rows of shape (len(texts), dimension), float32, C-contiguous, of length 1.

        Raises EmbeddingError, with the text's position, where the model gives a row that is zero or not finite.
        """
        texts = _checked(texts)
        return self._unit(self._documents(texts), len(texts)) if texts else self._none()

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Rows like those of `embed_documents`, for queries."""
        texts = _checked(texts)
        rows = {text: self._queries.get(text) for text in texts}
        missing = [text for text, row in rows.items() if row is None]
        asked: ArrayLike = ()
        if missing:
            with BATON.aside():
                asked = self._asked(missing)
        return self._remembered(texts, rows, missing, asked)

    @property
    def aembed_queries(self) -> Callable[[Sequence[str]], Awaitable[Matrix]] | None:
        """An async `embed_queries`, for a model behind a network; None for a model that computes here."""
        return None

    async def _aembed_queries(self, texts: Sequence[str]) -> Matrix:
        texts = _checked(texts)
        rows = {text: self._queries.get(text) for text in texts}
        missing = [text for text, row in rows.items() if row is None]
        return self._remembered(texts, rows, missing, await self._aasked(missing) if missing else ())

    async def _aasked(self, texts: Sequence[str]) -> ArrayLike:
        raise NotImplementedError

    def _remembered(
        self, texts: Sequence[str], rows: dict[str, Vector | None], missing: Sequence[str], asked: ArrayLike
    ) -> Matrix:
        """The rows of texts from cached rows and newly embedded ones, which are cached."""
        for text, row in zip(missing, self._unit(asked, len(missing)) if missing else (), strict=True):
            rows[text] = row.copy()
            self._queries.put(text, row.copy())
        return np.stack([cast(Vector, rows[text]) for text in texts]) if texts else self._none()

    def _none(self) -> Matrix:
        return np.zeros((0, self.dimension), dtype=np.float32)

    def _unit(self, rows: ArrayLike, count: int) -> Matrix:
        matrix = np.asarray(rows, dtype=np.float64)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        if wrong.size:
            at = int(wrong[0])
            raise EmbeddingError(f"{self!r} gave a row that is zero or not finite for text {at} of {count}", at)
        return np.ascontiguousarray(matrix / lengths, dtype=np.float32)


def _checked(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ConfigError("texts is a list of strings; a single text goes in a list of one")
    return list(map(encodable, texts))
