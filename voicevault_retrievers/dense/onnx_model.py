"""Runs a transformer from an ONNX graph and a tokenizer file: onnxruntime and tokenizers, no torch."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.dense.weights import HUB, Weights, locate
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.extras import require
from voicevault_retrievers.mutex import Mutex

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Text: TypeAlias = str | tuple[str, str]

ENCODED_AT_ONCE = 1024
"""Texts whose tokens are held at one time, and among which lengths are sorted."""

POSITIONS = 512
"""The longest input of the known models, in tokens."""


class Batch(NamedTuple):
    """What a graph gave for some of the texts: where they stand, its first output, the mask of their tokens."""

    at: list[int]
    output: Floats
    mask: Ints


class OnnxModel:
    """A graph and its tokenizer, loaded on first use, once, by whichever thread comes first.

    A graph that quantises its activations as it runs takes one scale from the whole batch, padding included: texts
    run together would change each other's output (bge-small: cosine down to .988 against the text alone, as much
    between texts of equal length). Such a graph runs one text at a time, so a text's output depends on nothing else;
    `batch_size` is for the others, where batches differ by no more than float noise.
    """

    def __init__(self, name: str, max_tokens: int, batch_size: int) -> None:
        if max_tokens < 3 or (name in HUB and max_tokens > POSITIONS):
            raise ConfigError(
                f"max_tokens of {name} is from 3 (special tokens count) to {POSITIONS}, not {max_tokens!r}"
            )
        if batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, not {batch_size!r}")
        self.name = name
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self._lock = Mutex()
        self._loaded: tuple[Any, Any, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    @property
    def weights(self) -> Weights:
        """The files; raises as `locate` does."""
        return locate(self.name, "onnx")

    def load(self) -> tuple[Any, Any, int]:
        """The session, the tokenizer, and how many texts run at a time.

        Raises MissingExtraError, and RetrievalError where a file is damaged or cannot be read.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Any, Any, int]:
        runtime = require("onnxruntime", extra="onnx")
        tokenizers = require("tokenizers", extra="onnx")
        weights = self.weights
        weights.verify()
        try:
            session = runtime.InferenceSession(str(weights.model), providers=["CPUExecutionProvider"])
            tokenizer = tokenizers.Tokenizer.from_file(str(weights.tokenizer))
        except Exception as error:  # both libraries raise bare subclasses of Exception
            raise RetrievalError(f"{self.name} cannot be loaded from {weights.folder}: {error}") from error
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_tokens)
        return session, tokenizer, 1 if quantises_as_it_runs(weights.model) else self.batch_size

    def run(self, texts: Sequence[Text], *, alone: bool = False) -> Iterator[Batch]:
        """The graph's first output for every text or pair, in batches of similar length; `alone` one at a time."""
        session, tokenizer, size = self.load()
        inputs = {item.name for item in session.get_inputs()}
        for start in range(0, len(texts), ENCODED_AT_ONCE):
            encodings = tokenizer.encode_batch(texts[start : start + ENCODED_AT_ONCE])
            for group in batches([len(encoding.ids) for encoding in encodings], 1 if alone else size):
                feed = _feed([encodings[at] for at in group])
                output = session.run(None, {name: feed[name] for name in inputs & feed.keys()})[0]
                yield Batch([start + at for at in group], output, feed["attention_mask"])


def quantises_as_it_runs(graph: Path) -> bool:
    """Whether an ONNX graph computes scales from its activations (operators DynamicQuantize...)."""
    with graph.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"DynamicQuantize") >= 0


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Positions in groups of at most `size`, by rising length."""
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def mean_pooled(states: Floats, mask: Ints) -> Floats:
    """The mean of the token states: (n, tokens, d) and a mask (n, tokens) to (n, d)."""
    weights = mask[:, :, None].astype(np.float32)
    return cast(Floats, (states * weights).sum(axis=1) / weights.sum(axis=1))


def cls_pooled(states: Floats, mask: Ints) -> Floats:
    """The state of the first token: (n, tokens, d) to (n, d). The mask is not needed."""
    return states[:, 0]


def _feed(encodings: Sequence[Any]) -> dict[str, Ints]:
    shape = (len(encodings), max(len(encoding.ids) for encoding in encodings))
    ids, mask, types = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for row, encoding in enumerate(encodings):
        length = len(encoding.ids)
        ids[row, :length] = encoding.ids
        mask[row, :length] = 1
        types[row, :length] = encoding.type_ids
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
