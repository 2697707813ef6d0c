"""Relevance of hits in [0, 1], from calibrated scores, and a threshold on it. See `Hit.relevance`."""

from __future__ import annotations

from dataclasses import replace

from voicevault_retrievers._support.checks import number
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank.calibration import LEAST, Calibration, Confidence


def is_irrelevant(hit: Hit, confidence: Confidence = "ok") -> bool:
    """Whether a hit is told to be irrelevant: by its relevance, below `LEAST`, or by the confidence of its result.

    A hit that has no relevance is not, where the confidence is "ok": nothing is known of it.
    """
    return confidence == "none" or (hit.relevance is not None and hit.relevance < LEAST)


class CalibratedRelevance(Stage):
    """Adds the probability of relevance of each hit's score, such as a fused score; the order does not change.

    `calibration` is fitted on judgements of your own over the same channels: see `evaluation.fit_relevance`. A hit
    without a score gets none.
    """

    name = "relevance"
    refills = False

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        if not isinstance(calibration, Calibration):
            raise ConfigError(f"calibration is a Calibration, such as fit_relevance gives, not {calibration!r}")
        self.calibration = calibration

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The same hits, those with a score with a vote added."""
        hits = (
            hit
            if hit.score is None
            else hit.voted(Vote(self.name, rank, hit.score, probability=self.calibration.probability(hit.score)))
            for rank, hit in enumerate(ranking, 1)
        )
        return replace(ranking, hits=tuple(hits))

    def __repr__(self) -> str:
        return f"CalibratedRelevance({self.calibration!r})"


class RelevanceThreshold(Stage):
    """Drops hits whose relevance is below `least`, in [0, 1], and those that have none beside others that have one.

    Relevance comes from a stage before it: a cross-encoder with a calibration, or a `CalibratedRelevance`. Where that
    has failed, even in part, hits without a relevance stay, and the result is degraded; where it was sure without
    reading, all hits stay, and so does a hit that a graph found by the reference in the query. Raises ConfigError where
    no hit has a relevance otherwise.
    """

    name = "relevance_threshold"
    refills = False

    def __init__(self, least: float) -> None:
        super().__init__()
        if number("the least relevance", least) > 1:
            raise ConfigError(f"the least relevance is a number from 0 to 1, not {least!r}")
        self.least = least

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The hits that are left, in their order."""
        raters = {vote.stage for hit in ranking for vote in hit.votes if vote.probability is not None}
        failed = any(one.degrades and (not raters or one.stage in raters) for one in ranking.errors)
        if not raters and any(one.kind == "Skipped" for one in ranking.errors):
            return ranking
        if ranking.hits and not raters and not failed:
            raise ConfigError(
                f"no hit has a relevance that a threshold of {self.least:g} could be compared with: add a "
                "cross-encoder that has a calibration (CALIBRATIONS, or one of fit_calibration), or "
                "CalibratedRelevance(fit_relevance(channel, questions)) behind the fusion"
            )
        kept = tuple(hit for hit in ranking if hit.by_name or self._passes(hit, failed))
        left = replace(ranking, hits=kept)
        if not any(hit.relevance is None and not hit.by_name for hit in kept):
            return left
        said = f"a stage has failed: hits without a relevance were not dropped below {self.least:g}"
        return left.failing(Failure(self.name, "NoRelevance", said))

    def _passes(self, hit: Hit, failed: bool) -> bool:
        return failed if hit.relevance is None else hit.relevance >= self.least

    def __repr__(self) -> str:
        return f"RelevanceThreshold({self.least})"
