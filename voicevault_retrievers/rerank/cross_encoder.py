"""Reranking with a cross-encoder: each passage is read together with the query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from voicevault_retrievers.channel import Stage, rescored
from voicevault_retrievers.checks import seconds_or_none, whole
from voicevault_retrievers.errors import ConfigError, InvalidScoreError, RerankerError
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.protocols import Scorer
from voicevault_retrievers.recent import Recent
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL, shared_scorer
from voicevault_retrievers.types import Query, Ranking

SCORES_KEPT = 4096


class CrossEncoderRerank(Stage):
    """Puts the first `depth` hits in the order of a scorer's logits; the others follow unscored, in their order.

    Reads the query's own text, not its variants, and the first `max_chars` characters of a chunk. Scores are kept
    between asks. `scorer` may be the name of a model, found on first use. `timeout` is in seconds; None waits.
    Raises RerankerNotAvailableError or MissingExtraError where the model cannot be had, RerankerError for a number of
    scores that is not that of the passages, InvalidScoreError for one that is NaN or infinite.
    """

    blocking = True

    def __init__(
        self,
        scorer: Scorer | str = DEFAULT_MODEL,
        *,
        depth: int = 20,
        max_chars: int = 2000,
        timeout: float | None = None,
        name: str = "rerank",
    ) -> None:
        super().__init__()
        if not isinstance(scorer, str | Scorer):
            raise ConfigError(f"a scorer is a cross-encoder's name, or has a name and score(), not {scorer!r}")
        self.scorer = scorer
        self.depth = whole("depth", depth)
        self.max_chars = whole("max_chars", max_chars)
        self.timeout = seconds_or_none("timeout", timeout)
        self.name = name
        self._loaded: Scorer | None = None
        self._lock = Mutex()
        self._kept: Recent[tuple[str, str], float] = Recent(SCORES_KEPT)

    def needs(self, k: int) -> int:
        return max(k, self.depth)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        if not ranking.hits:
            return ranking
        passages = [hit.chunk.text[: self.max_chars] for hit in ranking.hits[: self.depth]]
        return rescored(ranking, self.name, self._scores(query.text, passages))

    def warm_up(self) -> None:
        """Load the model and score one pair, so that the first search does not wait for it."""
        _scored(self._found(), "warm up", ["warm up"])

    def _scores(self, query: str, passages: Sequence[str]) -> list[float]:
        scores = {passage: self._kept.get((query, passage)) for passage in passages}
        missing = [passage for passage, score in scores.items() if score is None]
        if missing:
            for passage, score in zip(missing, _scored(self._found(), query, missing), strict=True):
                scores[passage] = score
                self._kept.put((query, passage), score)
        return [cast(float, scores[passage]) for passage in passages]

    def _found(self) -> Scorer:
        with self._lock:
            if self._loaded is None:
                self._loaded = shared_scorer(self.scorer) if isinstance(self.scorer, str) else self.scorer
            return self._loaded

    def __repr__(self) -> str:
        return (
            f"CrossEncoderRerank({self.scorer!r}, depth={self.depth}, max_chars={self.max_chars}, "
            f"timeout={self.timeout}, name={self.name!r})"
        )


def rank_passages(
    query: str, passages: Sequence[str], *, scorer: Scorer | str = DEFAULT_MODEL
) -> list[tuple[int, float]]:
    """The index and score of each passage, by falling score, ties by rising index. Raises as `CrossEncoderRerank`."""
    if not passages:
        return []
    found = shared_scorer(scorer) if isinstance(scorer, str) else scorer
    return sorted(enumerate(_scored(found, query, passages)), key=lambda pair: (-pair[1], pair[0]))


def _scored(scorer: Scorer, query: str, passages: Sequence[str]) -> list[float]:
    scores = [float(score) for score in scorer.score(query, passages)]
    if len(scores) != len(passages):
        raise RerankerError(f"the scorer {scorer.name!r} gave {len(scores)} scores for {len(passages)} passages")
    for at, score in enumerate(scores):
        if not math.isfinite(score):
            raise InvalidScoreError(f"the scorer {scorer.name!r} gave {score} for passage {at}; scores are finite")
    return scores
