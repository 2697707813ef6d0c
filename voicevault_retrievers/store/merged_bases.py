"""Channels whose scores are not comparable, as one channel: rankings are standardised, then merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import execute
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.types import ChannelKind, Failure, Hit, Query, Ranking, Scan, ranked
from voicevault_retrievers.fusion.fuse import DEPTH


class MergedBases(Channel):
    """Groups of knowledge bases, by label, each with its own channel, as one channel. Each chunk is in one group.

    A score is how many standard deviations a chunk is above the mean of its group's ranking, higher is better, finite,
    and often below 0 (zero mean, unit variance: Montague, Aslam, 2001, CIKM, "Relevance score normalization for
    metasearch"). Mean and deviation are those of the group's best `DEPTH` hits whatever k is, so that a smaller k gives
    a prefix of a larger one. In a ranking of one hit, or of equal scores, every hit gets the mean, 0. The hit's vote
    has one entry in `parts`: the vote of the group's own channel, with its rank and score.

    A group that fails or exceeds its timeout is skipped and noted. Where all fail, the first error by label is raised.
    """

    def __init__(self, groups: Mapping[str, Channel], name: str, kind: ChannelKind) -> None:
        self.groups = {label: groups[label] for label in sorted(groups)}
        self.name = name
        self.kind = kind

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        outcomes = yield tuple(channel.plan(query, max(k, DEPTH)) for channel in self.groups.values())
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if errors and len(errors) == len(outcomes):
            raise errors[0]
        hits: list[Hit] = []
        failures: list[Failure] = []
        for label, outcome in zip(self.groups, outcomes, strict=True):
            if isinstance(outcome, Exception):
                failures.append(Failure.of(label, outcome, "the other knowledge bases are searched"))
            else:
                hits += _standardised(label, outcome)
                failures += [failure.within(label) for failure in outcome.errors]
        best = enumerate(ranked(hits)[:k], 1)
        scan = _Scan([outcome for outcome in outcomes if isinstance(outcome, Ranking)])
        return Ranking(tuple(self._voted(rank, hit) for rank, hit in best), tuple(failures), scan=scan)

    def scan(self, query: Query) -> Scan | None:
        """The scan of a search's rankings, which give the mean and deviation."""
        return execute(self.plan(query, DEPTH)).scan

    def named(self, name: str) -> MergedBases:
        twin = super().named(name)
        twin.groups = {label: channel.named(name) for label, channel in self.groups.items()}
        return twin

    def children(self) -> Mapping[str, Channel]:
        """The channels under distinct names: all have this channel's name, by which a query's variants choose."""
        names = {label: f"{self.name}/{label}" for label in self.groups}
        return {names[label]: channel.named(names[label]) for label, channel in self.groups.items()}

    def describe(self, indent: str = "") -> str:
        parts = (f"{indent}  {label}: {channel!r}" for label, channel in self.groups.items())
        return "\n".join([f"{indent}{self.name}: standardised", *parts])

    def _voted(self, rank: int, hit: Hit) -> Hit:
        (own,) = hit.votes
        return replace(
            hit, votes=(replace(own, stage=self.name, rank=rank, score=hit.score, parts=(own,), kind=self.kind),)
        )

    def __repr__(self) -> str:
        return f"MergedBases({self.groups!r})"


class _Scan:
    """The standardised scores of chunks; for a chunk missing from its ranking, at most the last hit's score.

    Chunks of a group that finds nothing for the query have no score. The coverage is that of the group that has most of
    the query's terms.
    """

    def __init__(self, rankings: Sequence[Ranking]) -> None:
        self._rankings = rankings
        self.local = all(one.scan is None or one.scan.local for one in rankings)

    @property
    def coverage(self) -> float | None:
        told = (one.scan.coverage for one in self._rankings if one.scan is not None)
        return max((share for share in told if share is not None), default=None)

    def scores(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        found: dict[str, float] = {}
        for ranking in self._rankings:
            own = None if ranking.scan is None else ranking.scan.scores(ids)
            if own is None:
                return None
            if own and ranking.hits:
                spread = _spread(ranking.hits)
                found |= {chunk_id: _standing(score, spread) for chunk_id, score in own.items()}
        return found


def _standardised(label: str, ranking: Ranking) -> Iterator[Hit]:
    spread = _spread(ranking.hits)
    for hit in ranking:
        (own,) = hit.votes
        yield replace(hit, score=_standing(_score(hit), spread), votes=(replace(own, stage=label),))


def _score(hit: Hit) -> float:
    return cast(float, hit.score)  # keyword and vector channels score every hit


class Spread(NamedTuple):
    """The mean and standard deviation of the scores of a ranking."""

    mean: float
    sd: float


def _standing(score: float, spread: Spread) -> float:
    return (score - spread.mean) / spread.sd


def _spread(hits: Sequence[Hit]) -> Spread:
    """The spread of the best `DEPTH` scores; the deviation of equal scores is 1, so that they standardise to 0."""
    scores = [_score(hit) for hit in hits[:DEPTH]]
    if not scores or scores[0] == scores[-1]:
        return Spread(scores[0] if scores else 0.0, 1.0)
    mean = math.fsum(scores) / len(scores)
    deviation = math.hypot(*(score - mean for score in scores)) / math.sqrt(len(scores))
    return Spread(mean, deviation or 1.0)
