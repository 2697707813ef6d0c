"""A vector for each token of a text: an embedder's states before pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import ModelNotAvailableError
from voicevault_retrievers.models.onnx_model import OnnxModel
from voicevault_retrievers.models.weights import canonical


class OnnxTokenEmbedder:
    """The token states of a transformer encoder through onnxruntime on the CPU: a known model by name, or a folder.

    A text is cut to `max_tokens`, including the special tokens at both ends, which the output omits. Raises
    ModelNotAvailableError or MissingExtraError where the model cannot be loaded, or its graph gives no token states.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", *, max_tokens: int = 256, batch_size: int = 32) -> None:
        self.model = canonical(model)
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self._runner = OnnxModel(self.model, max_tokens, batch_size)

    @property
    def name(self) -> str:
        return self.model

    def embed_tokens(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """An array of shape (tokens, dimension) per text, in order."""
        found: dict[int, NDArray[np.float32]] = {}
        for places, states, mask in self._runner.run(texts):
            if states.ndim != 3:
                raise ModelNotAvailableError(
                    f"the graph of {self.model} gives shape {states.shape}; expected (texts, tokens, dimension)"
                )
            for at, rows, length in zip(places, states, mask.sum(axis=1), strict=True):
                found[at] = rows[1 : length - 1]
        return [found[at] for at in range(len(texts))]

    def __repr__(self) -> str:
        return f"OnnxTokenEmbedder({self.model!r}, max_tokens={self.max_tokens}, batch_size={self.batch_size})"
