"""A reranker's scores and the order that it was given, as one score.

Alone, a cross-encoder is worse than a good first order wherever it does not know the language or the matter, and it
does not say so. How far its logits are spread says something of it: they are log odds (Platt, 1999, "Probabilistic
outputs for support vector machines"), so they are divided by their deviation only where that is large. The order given
counts by place, not by score: any order has places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BLEND = 0.4
"""Chosen with `DEVIATION` on 50 questions of each development collection, where from .3 to .5 any did about as well."""
DEVIATION = 3.0
"""The deviation of the logits of twenty passages of which some are relevant."""
PLACES = math.sqrt((20**2 - 1) / 12)
"""The deviation of twenty places: of fewer passages the place of one says less."""


def blended(logits: Sequence[float], blend: float, total: int | None = None) -> list[float]:
    """The scores of passages from their logits, in the order given, of which these are the first of `total`.

    With a `blend` of 1 these are the logits.
    """
    if blend == 1.0 or not logits:
        return [float(logit) for logit in logits]
    values = np.array(logits, dtype=np.float64)
    places = -np.arange(total or len(values), dtype=np.float64)
    order = (places - places.mean()) / max(float(places.std()), PLACES)
    told = (values - values.mean()) / max(float(values.std()), DEVIATION)
    found: list[float] = ((1 - blend) * order[: len(values)] + blend * told).tolist()
    return found
