"""Embedding models of frameworks as embedders: the model's identity, its dimension, and checked vectors."""

from __future__ import annotations

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.dense import probes
from voicevault_retrievers.dense.base import BaseEmbedder
from voicevault_retrievers.errors import ConfigError

_WRAPPED = {"CacheBackedEmbeddings": "underlying_embeddings", "LangchainEmbedding": "_langchain_embedding"}
"""Wrapper classes that do not change the vectors, and their attributes that hold the wrapped model."""

_NAMES = ("model", "model_name", "model_id", "repo_id", "deployment")
_AZURE_NAMES = ("deployment", "azure_deployment", *_NAMES)
"""An Azure class's model name is a default that says nothing of the deployment's model."""
_UNNAMED = "unknown"
"""The `model_name` of LlamaIndex classes that have none."""

_SETTINGS = (
    "embed_instruction",
    "encode_kwargs",
    "input_type",
    "model_kwargs",
    "revision",
    "task",
    "task_type",
    "text_instruction",
)
"""Settings that may change the vectors of a model without changing its name."""


class FrameworkEmbedder(BaseEmbedder):
    """An embedder from any embedding model of a framework; vectors are scaled to length 1.

    The fingerprint is the framework, the class and the model's name: for Azure the deployment's name, for a cache the
    name of the wrapped model. Where a class does not name its model, or has settings that may change its vectors, the
    model is `in_doubt`: its vectors of three fixed texts, computed once, then complete the fingerprint.

    The dimension is that of the index it is opened with, else that of the first vectors; a word is embedded where
    nothing has been yet. Raises ConfigError for vectors of another shape.
    """

    framework: ClassVar[str]

    def __init__(self, model: Any, dimension: int | None = None) -> None:
        super().__init__()
        self._model = model
        self._dimension = dimension
        self._probe: str | None = None

    @abstractmethod
    def _embed(self, texts: Sequence[str]) -> ArrayLike:
        """The model's own vectors of documents."""

    @abstractmethod
    def _embed_query(self, text: str) -> ArrayLike:
        """The model's own vector of a query."""

    @abstractmethod
    def _aembed_query(self, text: str) -> Awaitable[ArrayLike]:
        """`_embed_query` on the running event loop."""

    @property
    @abstractmethod
    def _awaits(self) -> bool:
        """Whether the model has its own, non-blocking async call for a query."""

    @property
    def aembed_queries(self) -> Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]] | None:
        return self._aembed_queries if self._awaits else None

    @property
    def fingerprint(self) -> str:
        if not self.in_doubt:
            return self._name
        return f"{self._name}/probe-{hashlib.sha256(self.probe().encode()).hexdigest()[:12]}"

    @property
    def in_doubt(self) -> bool:
        model = _below(self._model)
        return model_of(model) is None or any(getattr(model, setting, None) for setting in _SETTINGS)

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            self._dimension = self.embed_queries(["dimension"]).shape[1]
        return self._dimension

    def probe(self) -> str:
        if self._probe is None:
            self._probe = probes.encoded(self._documents(probes.TEXTS))
        return self._probe

    def made(self, fingerprint: str, dimension: int, probe: str | None) -> bool:
        if probe is not None or self.in_doubt:
            return super().made(fingerprint, dimension, probe)
        if fingerprint != self._name or self._dimension not in (None, dimension):
            return False
        self._dimension = dimension
        return True

    @property
    def _name(self) -> str:
        model = _below(self._model)
        dimensions = getattr(model, "dimensions", None)
        parts = [self.framework, type(model).__name__, model_of(model) or "-"]
        return "/".join([*parts, str(dimensions)] if isinstance(dimensions, int) else parts)

    def _documents(self, texts: Sequence[str]) -> ArrayLike:
        return self._fitting(self._embed(texts), len(texts))

    def _asked(self, texts: Sequence[str]) -> ArrayLike:
        rows: list[Any] = [self._embed_query(text) for text in texts]
        return self._fitting(rows, len(texts))

    async def _aasked(self, texts: Sequence[str]) -> ArrayLike:
        rows: list[Any] = await asyncio.gather(*map(self._aembed_query, texts))
        return self._fitting(rows, len(texts))

    def _fitting(self, rows: ArrayLike, count: int) -> NDArray[np.float64]:
        try:
            matrix = np.asarray(rows, dtype=np.float64)
        except ValueError as error:
            raise ConfigError(f"{self!r} gave rows of several lengths, or that are no numbers: {error}") from error
        if self._dimension is None and matrix.ndim == 2:
            self._dimension = matrix.shape[1]
        if matrix.shape != (count, self._dimension):
            raise ConfigError(
                f"{self!r} gave rows of shape {matrix.shape} for {count} texts; expected dimension {self._dimension}"
            )
        return matrix

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._model).__name__}, {model_of(self._model)!r})"


def model_of(model: Any) -> str | None:
    """The name of the model that a framework's class uses, without credentials; None where the class does not say."""
    model = _below(model)
    names = _AZURE_NAMES if hasattr(model, "azure_endpoint") else _NAMES
    found = (getattr(model, name, None) for name in names)
    known = (name for name in found if isinstance(name, str) and name and name != _UNNAMED)
    return next(map(mask_credentials, known), None)


def _below(model: Any) -> Any:
    """The model that makes the vectors, below caches and similar wrappers."""
    while (name := _WRAPPED.get(type(model).__name__)) is not None and getattr(model, name, None) is not None:
        model = getattr(model, name)
    return model
