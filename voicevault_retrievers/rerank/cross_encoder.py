"""Reranking with a cross-encoder, which reads each passage together with the query."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Literal, TypeAlias, cast

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.checks import number, seconds_or_none, whole, whole_or_none
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.execution.plan import Call, Plan
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, ranked
from voicevault_retrievers.errors import ConfigError, InvalidScoreError, RerankerError, unknown
from voicevault_retrievers.models.weights import PROFILES, canonical
from voicevault_retrievers.rerank.blending import BLEND, blended, lead, rescored, settled_at
from voicevault_retrievers.rerank.calibration import CALIBRATIONS, Calibration
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL, shared_scorer
from voicevault_retrievers.rerank.windows import WindowSelector

Passages: TypeAlias = Literal["window", "start"]
Overtime: TypeAlias = Literal["stop", "warn"]

SCORES_KEPT = 4096
AT_ONCE = 8
"""The number of passages between checks of the time or the scores."""
BATCH = 32
"""The number of passages that a scorer gets at once where nothing is checked."""
MAX_CANDIDATES = 100
DEPTH = 20
"""The fewest hits to request."""
OPTIONS = (
    "max_chars",
    "passages",
    "max_candidates",
    "batch_size",
    "top_k",
    "certainty",
    "sure",
    "blend",
    "timeout",
    "overtime",
    "calibration",
)
"""The options that the frameworks and presets pass on unchanged."""

_LOG = logging.getLogger(__name__)


class CrossEncoderRerank(Stage):
    """Reranks hits with a cross-encoder: all hits, of which it requests at least 20, or the first `depth`.

    Hits beyond `depth` follow unscored, in their order.

    A hit's score is `(1 - blend) * order + blend * trust * logit`, where `order` is the standard score of its given
    place and score, and `logit` that of the scorer's output. Trust is low where the logits have little spread, where no
    passage is probable, and where the logits do not rise with the given order, so that a scorer that does not know the
    language or the subject changes little. `blend` is in (0, 1]; with 1 the score is the logit itself. The stage's vote
    has the logit: unbounded, higher is more relevant. See `rerank.blending`. The vote also has the probability of
    relevance, by the `calibration` or else by the model's in `CALIBRATIONS`, if any.

    The scorer reads the query's own text, without variants, and `max_chars` characters of each chunk: the window with
    most of the query's words (`passages` "window"), or the beginning ("start"). Scores are cached. `scorer` may be the
    name of a model or a profile (`PROFILES`), loaded on first use. Of more than `max_candidates` hits only the first
    are scored, with a note and a logged warning.

    Passages are scored in order, `batch_size` at a time, or at most eight where scoring may stop early. After `timeout`
    seconds (None: no limit; loading the model does not count), or where the scorer fails, the hits scored so far come
    first, by score, the others follow in their order, and a failure is added. With `overtime` "warn" scoring continues,
    and a note gives its duration. With a `certainty` in (0, 1), scoring stops once the best `top_k` are final with this
    probability: see `rerank.blending`. Where the first hit is ahead of the second by `sure` standard deviations of the
    scores behind it, no passage is scored, and a note says so.

    `refine` raises RerankerError where the number of scores differs from that of the passages, and InvalidScoreError
    for a score that is NaN or infinite; a search adds them as failures. Only a search has a time limit, and adds a
    SearchTimeoutError. A search raises RerankerNotAvailableError or MissingExtraError where the model cannot be loaded.
    """

    blocking = True

    def __init__(
        self,
        scorer: Scorer | str = DEFAULT_MODEL,
        *,
        depth: int | None = None,
        max_chars: int = 2000,
        passages: Passages = "window",
        max_candidates: int = MAX_CANDIDATES,
        batch_size: int = BATCH,
        top_k: int | None = None,
        certainty: float | None = None,
        sure: float | None = None,
        blend: float = BLEND,
        timeout: float | None = None,
        overtime: Overtime = "stop",
        calibration: Calibration | None = None,
        name: str = "rerank",
    ) -> None:
        super().__init__()
        if not isinstance(scorer, str | Scorer):
            raise ConfigError(f"a scorer is a cross-encoder's name, or has a name and score(), not {scorer!r}")
        if passages not in ("window", "start"):
            raise unknown("passages", passages, ("window", "start"))
        if overtime not in ("stop", "warn"):
            raise unknown("overtime", overtime, ("stop", "warn"))
        if (top_k is None) != (certainty is None):
            raise ConfigError(
                "top_k and certainty go together: the first says whose order is to be sure, and how sure; how many are "
                "returned is `top_n` of a reranker, or `k` of a search"
            )
        if certainty is not None and not 0.0 < certainty < 1.0:
            raise ConfigError(f"certainty is between 0 and 1, not {certainty!r}")
        self.scorer = scorer
        self.depth = whole_or_none("depth", depth)
        self.max_chars = whole("max_chars", max_chars)
        self.passages = passages
        self.max_candidates = whole("max_candidates", max_candidates)
        self.batch_size = whole("batch_size", batch_size)
        self.top_k = whole_or_none("top_k", top_k)
        self.certainty = certainty
        self.sure = None if sure is None else number("sure", sure)
        if self.sure == 0:
            raise ConfigError("sure is how far the first is ahead, in deviations: above 0")
        self.blend = number("blend", blend)
        if not 0.0 < self.blend <= 1.0:
            raise ConfigError(f"blend is above 0 and at most 1, not {blend!r}")
        self.timeout = seconds_or_none("timeout", timeout)
        self.overtime = overtime
        self.calibration = calibration
        self.name = name
        self._loaded: Scorer | None = None
        self._ready = not isinstance(scorer, str) and not callable(getattr(scorer, "load", None))
        self._lock = Mutex()
        self._kept: LRUCache[tuple[str, str], float] = LRUCache(SCORES_KEPT)

    @property
    def scorer_name(self) -> str:
        """The name of the scorer, or of the model of a profile."""
        if isinstance(self.scorer, str):
            return canonical(PROFILES.get(self.scorer, self.scorer))
        return self.scorer.name

    def needs(self, k: int) -> int:
        return max(k, min(self.depth or DEPTH, self.max_candidates))

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """Rerank all hits at once, without a time limit."""
        if self._is_sure(ranking):
            return ranking.failing(self._skipped())
        scores: list[float] = []
        for group in self._groups(query, ranking, scores):
            scores += self._scores(query.text, group)
        return self._ordered(ranking, scores)

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        if not ranking.hits:
            return ranking
        if self._is_sure(ranking):
            return ranking.failing(self._skipped())
        if not self._ready:
            (loaded,) = yield (Call(f"{self.name} model", self._load, kind="stage"),)
            if isinstance(loaded, Exception):
                return ranking.failing(Failure.of(self.name, loaded, self.instead(ranking)))
        scores: list[float] = []
        began = monotonic()
        for group in self._groups(query, ranking, scores):
            hits = ranking.hits[len(scores) : len(scores) + len(group)]
            (outcome,) = yield (
                Call(
                    self.name,
                    partial(self._scores, query.text, group),
                    timeout=self.timeout if self.overtime == "stop" else None,
                    breaker=self._breaker,
                    kind="stage",
                    texts=(query.text,),
                    shown=partial(_scored_hits, hits),
                ),
            )
            if isinstance(outcome, Exception):
                return self._ordered(ranking, scores).failing(self._cut_short(outcome, len(scores), ranking))
            scores += outcome
        return self._ordered(ranking, scores).failing(*self._told(len(scores), monotonic() - began))

    def warm_up(self) -> None:
        """Load the model and score one pair, so that the first search does not wait for it."""
        _scored(self._found(), "warm up", ["warm up"])

    def _load(self) -> None:
        load = getattr(self._found(), "load", None)
        if callable(load):
            load()
        self._ready = True

    def _count(self, ranking: Ranking) -> int:
        return min(len(ranking.hits[: self.depth]), self.max_candidates)

    def _given(self, ranking: Ranking) -> list[float | None]:
        return [hit.score for hit in ranking.hits[: self._count(ranking)]]

    def _groups(self, query: Query, ranking: Ranking, scores: Sequence[float]) -> Iterator[list[str]]:
        """Yield groups of passages in order, until `scores`, which the caller extends, are enough."""
        passages = self._read(query.text, [hit.chunk.indexed_text for hit in ranking.hits[: self._count(ranking)]])
        stops = self.top_k is not None or (self.timeout is not None and self.overtime == "stop")
        size = min(AT_ONCE, self.batch_size) if stops else self.batch_size
        for start in range(0, len(passages), size):
            if self.top_k and self.certainty:
                worth = blended(scores, self.blend, self._given(ranking), self._known())
                if settled_at(worth, len(passages), self.top_k, self.certainty):
                    return
            yield passages[start : start + size]

    def _read(self, query: str, texts: Sequence[str]) -> list[str]:
        """The part of each text that the scorer reads."""
        if self.passages == "start":
            return [text[: self.max_chars] for text in texts]
        windows = WindowSelector(query, self.max_chars).windows(texts)
        return [text[start:end] for text, (start, end) in zip(texts, windows, strict=True)]

    def _ordered(self, ranking: Ranking, scores: Sequence[float]) -> Ranking:
        wanted = len(ranking.hits[: self.depth])
        worth = blended(scores, self.blend, self._given(ranking), self._known())
        found = rescored(ranking, self.name, worth, scores) if scores else ranking
        found = self._calibrated(found, len(scores))
        if wanted <= self.max_candidates:
            return found
        said = f"{wanted} candidates: the first {self.max_candidates} were scored (max_candidates)"
        _LOG.warning("%s: %s", self.name, said)
        return found.failing(Failure(self.name, "TooManyCandidates", said, degrades=False))

    def _calibrated(self, ranking: Ranking, scored: int) -> Ranking:
        """The ranking with probabilities in the votes of the first hits."""
        calibration = self._known()
        if calibration is None:
            return ranking
        probable = [_probable(hit, self.name, calibration) for hit in ranking.hits[:scored]]
        return replace(ranking, hits=(*probable, *ranking.hits[scored:]))

    def _known(self) -> Calibration | None:
        """The given calibration, or else that of the model, if any."""
        return self.calibration or CALIBRATIONS.get(self.scorer_name)

    def _is_sure(self, ranking: Ranking) -> bool:
        return self.sure is not None and lead(self._given(ranking)) >= self.sure

    def _skipped(self) -> Failure:
        said = f"the first hit is {self.sure:g} deviations or more ahead of the second: none was read (sure)"
        return Failure(self.name, "Skipped", said, degrades=False)

    def _told(self, scored: int, seconds: float) -> Iterator[Failure]:
        rate = scored / max(seconds, 1e-9)
        _LOG.info("%s: %d passages in %.0f ms, %.1f a second", self.name, scored, seconds * 1e3, rate)
        if self.timeout is not None and seconds > self.timeout:
            said = f"{scored} passages took {seconds:.1f} seconds; more than {self.timeout:g} were not expected"
            _LOG.warning("%s: %s", self.name, said)
            yield Failure(self.name, "Overtime", said, degrades=False)

    def _cut_short(self, error: Exception, scored: int, ranking: Ranking) -> Failure:
        failure = Failure.of(self.name, error, self.instead(ranking))
        if not scored:
            return failure
        said = f"{scored} of {self._count(ranking)} passages were scored; the others follow in their order."
        return replace(failure, message=". ".join(filter(None, (failure.message.rstrip("."), said))))

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
        sure = f", top_k={self.top_k}, certainty={self.certainty}" if self.top_k else ""
        sure += f", batch_size={self.batch_size}" if self.batch_size != BATCH else ""
        sure += f", sure={self.sure}" if self.sure is not None else ""
        more = f", calibration={self.calibration!r}" if self.calibration else ""
        return (
            f"CrossEncoderRerank({self.scorer!r}, depth={self.depth}, max_chars={self.max_chars}, "
            f"passages={self.passages!r}{sure}, blend={self.blend}, timeout={self.timeout}, "
            f"overtime={self.overtime!r}{more}, name={self.name!r})"
        )


def rank_passages(
    query: str, passages: Sequence[str], *, scorer: Scorer | str = DEFAULT_MODEL
) -> list[tuple[int, float]]:
    """The index and score of each passage, by falling score, ties by rising index. Raises like `CrossEncoderRerank`."""
    if not passages:
        return []
    found = shared_scorer(scorer) if isinstance(scorer, str) else scorer
    return sorted(enumerate(_scored(found, query, passages)), key=lambda pair: (-pair[1], pair[0]))


def _probable(hit: Hit, stage: str, calibration: Calibration) -> Hit:
    vote = hit.vote(stage)
    if vote is None or vote.score is None:
        return hit
    told = replace(vote, probability=calibration.probability(vote.score))
    return replace(hit, votes=tuple(told if one is vote else one for one in hit.votes))


def _scored_hits(hits: Sequence[Hit], scores: Sequence[float]) -> Sequence[Hit]:
    """The hits with a model's scores, best first."""
    return ranked(replace(hit, score=score) for hit, score in zip(hits, scores, strict=True))


def _scored(scorer: Scorer, query: str, passages: Sequence[str]) -> list[float]:
    scores = [float(score) for score in scorer.score(query, passages)]
    if len(scores) != len(passages):
        raise RerankerError(f"the scorer {scorer.name!r} gave {len(scores)} scores for {len(passages)} passages")
    for at, score in enumerate(scores):
        if not math.isfinite(score):
            raise InvalidScoreError(f"the scorer {scorer.name!r} gave {score} for passage {at}; scores are finite")
    return scores
