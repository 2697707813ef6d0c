"""A reranker's scores and the order that it was given, as one score.

Alone, a cross-encoder is worse than a good first order wherever it does not know the language or the matter, and it
does not say so. How far its logits are spread says something of it: a model that reads Arabic as it reads English
calls everything relevant, and all alike. So where they are spread little they count little. The order given counts by
its places, and as much by its scores where it has any: these say where it is sure, those are in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]

BLEND = 0.6
SPREAD = 2.0
"""The deviation from which on logits count in full, chosen with `BLEND` on the development questions of the
benchmarks' collections; from .6 to .65 and from 1.5 to 2.5 any did about as well."""
PLACES = math.sqrt((20**2 - 1) / 12)
"""The deviation of twenty places: of fewer passages the place of one says less."""


def blended(logits: Sequence[float], blend: float, given: Sequence[float | None]) -> list[float]:
    """The scores of passages from their logits; `given` are the scores that they, and others after them, came with.

    `(1 - blend) * order + blend * trust * logit`, where the order and the logit are standard scores and `trust` is
    `min(1, deviation of the logits / SPREAD) ** 2`. With a `blend` of 1 these are the logits.
    """
    if blend == 1.0 or not logits:
        return [float(logit) for logit in logits]
    values = np.array(logits, dtype=np.float64)
    told, deviation = _standard(values)
    trust = min(1.0, deviation / SPREAD) ** 2
    found: list[float] = ((1 - blend) * _order(given)[: len(values)] + blend * trust * told).tolist()
    return found


def _order(given: Sequence[float | None]) -> Doubles:
    places = -np.arange(len(given), dtype=np.float64)
    by_place: Doubles = (places - places.mean()) / max(float(places.std()), PLACES)
    scores = [score for score in given if score is not None]
    if len(scores) < len(given) or max(scores) == min(scores):
        return by_place
    by_score, _ = _standard(np.array(scores))
    return (by_place + by_score) / 2


def _standard(values: Doubles) -> tuple[Doubles, float]:
    """Standard scores, 0 where all are equal, and the deviation; of values whose squares are no numbers too."""
    scale = max(1.0, float(np.abs(values).max()))
    scaled = values / scale
    deviation = float(scaled.std())
    standard: Doubles = (scaled - scaled.mean()) / deviation if deviation else np.zeros(len(values))
    return standard, scale * deviation
