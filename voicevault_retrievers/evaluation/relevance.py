"""Calibration of a channel's scores on judged questions."""

from __future__ import annotations

from collections.abc import Sequence

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.evaluation.judgements import Judged, Unit, place_of
from voicevault_retrievers.rerank.calibration import Calibration, fit_calibration


def fit_relevance(channel: Channel, questions: Sequence[Judged], *, k: int = 10, place: Unit = place_of) -> Calibration:
    """The calibration of the scores of a channel's first k hits, for `rerank.CalibratedRelevance` behind it.

    A hit is relevant where its place (see `evaluate`) has a grade above 0 for the question; places that nobody has
    judged count as not relevant. Hits without a score do not count. Raises as `fit_calibration`.
    """
    depth = whole("k", k)
    found = [(question, hit) for question in questions for hit in channel.search(question.text, depth)]
    scored = [(question, hit) for question, hit in found if hit.score is not None]
    relevant = [question.grades.get(place(hit.chunk), 0) > 0 for question, hit in scored]
    return fit_calibration([hit.score for _, hit in scored if hit.score is not None], relevant)
