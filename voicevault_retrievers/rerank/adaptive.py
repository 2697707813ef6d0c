"""When enough passages have been scored: what is left would hardly come among the best, or the first is sure before.

Passages come in the order of a first search, and scores fall with it, though not strictly: a straight line over the
logarithm of the rank is fitted to those there are (least squares), and what is left is taken as normal around that
line with the residuals' deviation. It is a simple case of optimal stopping over ranked lists; see Lewis, Yang, Frieder
(2021), CIKM, "Certifying one-phase technology-assisted reviews", on how far such estimates can be relied on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEAST = 8
"""So many scores more than those that are wanted are needed to judge."""
TINY = 1e-9
"""Of the highest score: what rounding leaves of a line is no deviation."""


def settled_at(scores: Sequence[float], total: int, top_k: int, certainty: float) -> bool:
    """Whether, with this probability or more, none of the passages after these comes among the best `top_k`.

    `scores` are those of the first of `total` passages, in the order of the search; higher is better.
    """
    seen = len(scores)
    if seen >= total:
        return True
    if seen < top_k + LEAST:
        return False
    values = np.array(scores, dtype=np.float64)
    depth = np.log(np.arange(1, total + 1))
    slope, level = np.polyfit(depth[:seen], values, 1)
    deviation = math.sqrt(float(((values - level - slope * depth[:seen]) ** 2).sum()) / (seen - 2))
    bar = float(np.sort(values)[-top_k])
    deviation = max(deviation, TINY * float(np.abs(values).max(initial=1.0)))
    below = [0.5 * math.erfc((level + slope * x - bar) / (deviation * math.sqrt(2))) for x in depth[seen:].tolist()]
    return math.prod(below) >= certainty


def lead(scores: Sequence[float | None]) -> float:
    """By how many deviations of the scores behind it the first of falling scores is ahead of the second.

    0 of fewer than four scores, and where one is missing: they say too little.
    """
    given = np.array([score for score in scores if score is not None], dtype=np.float64)
    if len(given) < max(4, len(scores)):
        return 0.0
    ahead, deviation = float(given[0] - given[1]), float(given[1:].std())
    return ahead / max(deviation, TINY * float(np.abs(given).max(initial=1.0)))
