"""Scorers: score passages against a query as logits, unbounded, higher is more relevant. Models load on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.errors import (
    ConfigError,
    MissingExtraError,
    RerankerError,
    RerankerNotAvailableError,
    RetrievalError,
)
from voicevault_retrievers.models.graph_model import GraphModel, GraphOutput
from voicevault_retrievers.models.onnx_model import OnnxModel
from voicevault_retrievers.models.openvino_model import OpenVinoModel, Precision
from voicevault_retrievers.models.weights import (
    PROFILES,
    Backend,
    canonical,
    choose,
    fetch,
    reranker_remedy,
    safe_loading,
)

DEFAULT_MODEL = canonical(PROFILES["accurate"])
"""The default cross-encoder, whose weights come in a package (extra `offline`)."""


class GraphScorer:
    """The base class of cross-encoders in ONNX graphs. Scores are raw logits.

    Query and passage together are cut to `max_tokens`, the longer first. Raises RerankerNotAvailableError where the
    model cannot be loaded, RerankerError where it fails on a batch or does not return one score per passage.
    """

    _runner: GraphModel

    def __init__(self, model: str, max_tokens: int, batch_size: int) -> None:
        self.model = canonical(model)
        self.max_tokens = max_tokens
        self.batch_size = batch_size

    @property
    def name(self) -> str:
        return self.model

    @property
    def precision_used(self) -> str | None:
        """The precision in which scores are computed; None before the model is loaded."""
        return self._runner.precision_used

    @property
    def precision_reason(self) -> str | None:
        """The reason for the precision; None before the model is loaded."""
        return self._runner.precision_reason

    def load(self) -> None:
        """Load the model now instead of with the first score."""
        with _available(self.model):
            self._runner.load()

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """One logit per passage, in order."""
        self.load()
        scores = [0.0] * len(passages)
        for at, logits, _ in self._batches(query, passages):
            for position, logit in zip(at, _single(self.name, logits), strict=True):
                scores[position] = logit
        return scores

    def _batches(self, query: str, passages: Sequence[str]) -> Iterator[GraphOutput]:
        try:
            yield from self._runner.run([(query, passage) for passage in passages])
        except RetrievalError as error:
            raise RerankerError(str(error)) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, max_tokens={self.max_tokens}, batch_size={self.batch_size})"


class OnnxScorer(GraphScorer):
    """A cross-encoder through onnxruntime on the CPU: a known model by name, a folder, or from the hub by name.

    A graph that quantises its activations scores each passage alone, so that a score does not depend on other passages
    (see `OnnxModel`); `batch_size` applies to other graphs.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, max_tokens: int = 512, batch_size: int = 32) -> None:
        super().__init__(model, max_tokens, batch_size)
        self._runner = OnnxModel(self.model, max_tokens, batch_size)


class OpenVinoScorer(GraphScorer):
    """A cross-encoder through OpenVINO on the CPU: a known model by name, a folder, or from the hub by name.

    For `precision` see `OpenVinoModel`. By default pairs are scored one at a time: in bfloat16 other pairs in a batch
    change a score by up to .01, and batches of four are only a tenth faster.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        max_tokens: int = 512,
        batch_size: int = 1,
        precision: Precision = "auto",
    ) -> None:
        super().__init__(model, max_tokens, batch_size)
        self.precision = precision
        self._runner = OpenVinoModel(self.model, max_tokens, batch_size, precision)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, precision={self.precision!r})"


class SentenceTransformerScorer:
    """A sentence-transformers CrossEncoder from a folder, or from the hub by name.

    Scores are raw logits, without the model's own activation. Only safetensors are read, and no code that comes with a
    model is run. Raises RerankerNotAvailableError where the model cannot be loaded.
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
        """One logit per passage, in order."""
        model = self._found()
        if not passages:
            return []
        pairs = [(encodable(query), encodable(passage)) for passage in passages]
        return _single(self.name, model.predict(pairs, batch_size=self.batch_size, show_progress_bar=False))

    def load(self) -> None:
        """Load the model now instead of with the first score."""
        self._found()

    def _found(self) -> Any:  # Any: an object of an optional library
        with self._lock, _available(self.model):
            if self._loaded is None:
                folder = str(fetch(self.model).folder)  # before the imports, which take seconds
                library = require("sentence_transformers", extra="sentence-transformers")
                identity = require("torch", extra="sentence-transformers").nn.Identity()
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
        """The function's scores."""
        return self.function(query, passages)

    def __repr__(self) -> str:
        return f"CallableScorer({self.function!r}, name={self.name!r})"


def load_scorer(name: str = DEFAULT_MODEL, backend: str = "auto") -> Scorer:
    """A scorer by the name of a profile or model, or from a folder.

    `auto` chooses openvino where openvino, onnx, tokenizers and the weights are installed, else onnx where onnxruntime,
    tokenizers and the weights are, else sentence-transformers. Raises ConfigError for an unknown backend,
    MissingExtraError where `auto` finds none.
    """
    model = PROFILES.get(name, name)
    return _SCORERS[choose(model, backend)](model)


def backend_of(scorer: Scorer) -> Backend | None:
    """The backend for which `load_scorer` makes a scorer of this class; None for any other class."""
    return next((backend for backend, kind in _SCORERS.items() if kind is type(scorer)), None)


def shared_scorer(name: str) -> Scorer:
    """The process-wide shared scorer of a model from `load_scorer`, so that stages share one copy in memory."""
    model = canonical(PROFILES.get(name, name))
    with _SHARING:
        if model not in _SHARED:
            _SHARED[model] = load_scorer(model)
        return _SHARED[model]


_SHARED: dict[str, Scorer] = {}
_SHARING = Mutex()


@contextmanager
def _available(model: str) -> Iterator[None]:
    try:
        yield
    except MissingExtraError:
        raise
    except (RetrievalError, OSError, ValueError, RuntimeError, KeyError, MemoryError) as error:
        raise RerankerNotAvailableError(
            f"the reranker {model!r} cannot be loaded: {error}{_unless_said(error, reranker_remedy(model))}"
        ) from error


def _unless_said(error: Exception, remedy: str) -> str:
    """The remedy to append to an error; empty where the error already names it."""
    return "" if remedy in str(error) else f" {remedy}"


def _single(name: str, logits: ArrayLike) -> list[float]:
    found = np.asarray(logits, dtype=np.float64)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise RerankerError(f"{name} gives shape {found.shape}; a reranker gives one score per passage")
    return [float(score) for score in found]


_SCORERS: dict[Backend, Callable[[str], Scorer]] = {
    "onnx": OnnxScorer,
    "openvino": OpenVinoScorer,
    "sentence-transformers": SentenceTransformerScorer,
}
