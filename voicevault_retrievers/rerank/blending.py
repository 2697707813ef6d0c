"""Blends a reranker's scores with the given order, and estimates how many passages must be scored.

Alone, a cross-encoder is worse than a good first ranking where it does not know the language or the subject, and its
scores do not say so. Three signals do. Logits with little spread: a model that cannot read Arabic calls every Arabic
passage relevant. A low highest probability: the model hardly knows the subject, for example code. Logits that do not
rise with the first search's scores: the model judges something else than the question. The given order counts by place
and, where there are scores, equally by score: scores show how sure the first search is, and places work for any
ranking.

`settled_at` decides when enough passages are scored. Passages come in the order of a first search, and scores tend to
fall with it. A straight line over the logarithm of the rank is fitted to the scores so far (least squares), and further
scores are assumed normal around this line with the residuals' deviation. This is a simple case of optimal stopping over
ranked lists; see Lewis, Yang, Frieder (2021), CIKM, "Certifying one-phase technology-assisted reviews", on how far such
estimates can be relied on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.types import Ranking, Vote, ranked
from voicevault_retrievers.rerank.calibration import Calibration

Doubles: TypeAlias = NDArray[np.float64]

BLEND = 0.6
SPREAD = 2.0
"""The standard deviation from which logits count in full. Chosen with `BLEND` on the development questions of the
benchmarks' collections; values from .6 to .65 and from 1.5 to 2.5 did about as well.
"""
SURE, AGREEING = 0.8, 0.5
"""The best passage's probability, and the correlation of logits and order, from which logits count in full.

Chosen on the same questions: no collection ended more than .005 below its first order.
"""
TWENTY = 20
PLACES = math.sqrt((TWENTY**2 - 1) / 12)
"""The standard deviation of twenty places; places among fewer passages count less."""


def blended(
    logits: Sequence[float], blend: float, given: Sequence[float | None], calibration: Calibration | None = None
) -> list[float]:
    """The scores of passages from their logits; `given` are the previous scores of these and further passages.

    `(1 - blend) * order + blend * trust * logit`, where the order and the logit are standard scores and `trust` is
    `min(1, deviation of the logits / SPREAD) ** 2 * min(1, p / SURE) * min(1, r / AGREEING)`: p is the highest
    probability by the `calibration` (1 without one) and r, at least 0, the correlation of logits and order, which
    counts in full from twenty passages on. With a `blend` of 1 the scores are the logits.
    """
    if blend == 1.0 or not logits:
        return [float(logit) for logit in logits]
    values = np.array(logits, dtype=np.float64)
    told, deviation = _standard(values)
    order = _order(given)[: len(values)]
    trust = min(1.0, deviation / SPREAD) ** 2 * _agreement(told, order)
    if calibration is not None:
        trust *= min(1.0, calibration.probability(float(values.max())) / SURE)
    found: list[float] = ((1 - blend) * order + blend * trust * told).tolist()
    return found


def _agreement(told: Doubles, order: Doubles) -> float:
    """How far logits rise with the given order, in [0, 1]; shrunk towards 1 for few passages, where it is chance."""
    expected, deviation = _standard(order)
    agreement = min(max(float((told * expected).mean()), 0.0) / AGREEING, 1.0) if deviation else 1.0
    return 1 - min(1.0, len(told) / TWENTY) * (1 - agreement)


def _order(given: Sequence[float | None]) -> Doubles:
    places = -np.arange(len(given), dtype=np.float64)
    by_place: Doubles = (places - places.mean()) / max(float(places.std()), PLACES)
    scores = [score for score in given if score is not None]
    if len(scores) < len(given) or max(scores) == min(scores):
        return by_place
    by_score, _ = _standard(np.array(scores))
    return (by_place + by_score) / 2


def _standard(values: Doubles) -> tuple[Doubles, float]:
    """Standard scores, 0 where all values are equal, and the standard deviation. Squares of values may overflow."""
    scale = max(1.0, float(np.abs(values).max()))
    scaled = values / scale
    deviation = float(scaled.std())
    standard: Doubles = (scaled - scaled.mean()) / deviation if deviation else np.zeros(len(values))
    return standard, scale * deviation


LEAST = 8
"""The number of scores beyond `top_k` that an estimate needs."""
TINY = 1e-9
"""A deviation below this share of the highest score is rounding."""


def settled_at(scores: Sequence[float], total: int, top_k: int, certainty: float) -> bool:
    """Whether, with this probability or more, no further passage comes among the best `top_k`.

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
    """The lead of the first score over the second, in standard deviations of the scores from the second on.

    The scores fall. 0 for fewer than four scores, or where one is missing, as these tell too little.
    """
    given = np.array([score for score in scores if score is not None], dtype=np.float64)
    if len(given) < max(4, len(scores)):
        return 0.0
    ahead, deviation = float(given[0] - given[1]), float(given[1:].std())
    return ahead / max(deviation, TINY * float(np.abs(given).max(initial=1.0)))


def rescored(ranking: Ranking, stage: str, scores: Sequence[float], own: Sequence[float] | None = None) -> Ranking:
    """The first hits ordered by new scores, with the stage's votes; the rest follow unscored, in their order.

    `own` are the stage's own scores for the votes, where the new scores combine more than these.
    """
    head = ranking.hits[: len(scores)]
    said = {hit.id: float(score) for hit, score in zip(head, scores if own is None else own, strict=True)}
    ordered = ranked(replace(hit, score=float(score)) for hit, score in zip(head, scores, strict=True))
    voted = [hit.voted(Vote(stage, rank, said[hit.id])) for rank, hit in enumerate(ordered, 1)]
    rest = [replace(hit, score=None) for hit in ranking.hits[len(scores) :]]
    return replace(ranking, hits=(*voted, *rest))
