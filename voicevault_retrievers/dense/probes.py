"""Probes: a model's vectors of a few fixed texts, which identify the model where its name does not."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

TEXTS = (
    "The pump was serviced in March 2024.",
    "How do I appeal a decision of the court?",
    "Die Katze schläft auf dem Sofa; 猫在睡觉。",
)

LEAST = 0.99
"""The least cosine of two vectors of one text by one model.

all-MiniLM-L6-v2 in int8, bfloat16 and float32 gives .9988 or more for each text; with another pooling, or a short
prefix before the text, .963 or less.
"""


def encoded(rows: ArrayLike) -> str:
    """The vectors of `TEXTS`, of shape (len(TEXTS), dimension), as int8 in base64; cosines change by less than .0005.

    A row that is all zeros or not finite becomes zeros.
    """
    matrix = np.nan_to_num(np.asarray(rows, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    codes = np.rint(127 * matrix / np.where(largest > 0, largest, 1)).astype(np.int8)
    return base64.b64encode(codes.tobytes()).decode("ascii")


def are_one_model(probe: str, other: str) -> bool:
    """Whether two probes are of one model: for each text the cosine is at least `LEAST`, or both vectors are zeros."""
    rows, others = _decoded(probe), _decoded(other)
    if rows.shape != others.shape:
        return False
    lengths, their_lengths = np.linalg.norm(rows, axis=1), np.linalg.norm(others, axis=1)
    cosines = (rows * others).sum(axis=1) / np.where(lengths * their_lengths > 0, lengths * their_lengths, 1)
    return bool(np.all(np.where((lengths == 0) & (their_lengths == 0), 1, cosines) >= LEAST))


def fits(probe: str, dimension: int) -> bool:
    """Whether a text is an encoded probe of a model of that dimension."""
    try:
        return len(base64.b64decode(probe, validate=True)) == len(TEXTS) * dimension
    except ValueError:
        return False


def _decoded(probe: str) -> NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(probe), dtype=np.int8).astype(np.float64).reshape(len(TEXTS), -1)
