"""Channels whose scores do not compare, as one: each list standardised by its own mean and deviation, then merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import execute
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.types import ChannelKind, Failure, Hit, Query, Ranking, Scan, Vote, ranked
from voicevault_retrievers.fusion.fuse import DEPTH


class MergedBases(Channel):
    """Groups of knowledge bases, by label, each with a channel of its own, as one channel. No chunk is in two of them.

    A score is how many standard deviations a chunk stands above the mean of its group's list, higher is better, finite,
    and below 0 for many (zero mean, unit variance: Montague, Aslam, 2001, CIKM, "Relevance score normalization for
    metasearch"). Mean and deviation are those of the group's best `DEPTH` hits whatever k is, so that a smaller k gives
    a prefix of a larger one. A list of one hit, or of equal scores, does not say how good they are: they stand at the
    mean, 0. What a group itself said of a hit, with its rank and its own score, is the only one of the vote's `parts`.

    A group that fails or outlives its timeout is skipped and noted. Where all do, the first error by label is raised.
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
        """By the lists of a search: there is nothing else to standardise by."""
        return execute(self.plan(query, DEPTH)).scan

    def named(self, name: str) -> MergedBases:
        twin = super().named(name)
        twin.groups = {label: channel.named(name) for label, channel in self.groups.items()}
        return twin

    def children(self) -> Mapping[str, Channel]:
        """Each under its label: all have this channel's name, by which a query's variants choose."""
        names = {label: f"{self.name}/{label}" for label in self.groups}
        return {names[label]: channel.named(names[label]) for label, channel in self.groups.items()}

    def describe(self, indent: str = "") -> str:
        parts = (f"{indent}  {label}: {channel!r}" for label, channel in self.groups.items())
        return "\n".join([f"{indent}{self.name}: standardised", *parts])

    def _voted(self, rank: int, hit: Hit) -> Hit:
        (own,) = hit.votes
        vote = Vote(self.name, rank, hit.score, query=own.query, terms=own.terms, parts=(own,), kind=self.kind)
        return replace(hit, votes=(vote,))

    def __repr__(self) -> str:
        return f"MergedBases({self.groups!r})"


class _Scan:
    """The standardised score of chunks; at most that of its list's last hit for one that the list lacks.

    Chunks of a group that finds nothing for the query have none, for there is nothing to standardise by. The coverage
    is that of the group which has most of the query's terms.
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
    return cast(float, hit.score)  # keyword and vector channels score all that they find


class Spread(NamedTuple):
    """How the scores of a list are distributed: their mean and standard deviation."""

    mean: float
    sd: float


def _standing(score: float, spread: Spread) -> float:
    return (score - spread.mean) / spread.sd


def _spread(hits: Sequence[Hit]) -> Spread:
    """That of the best `DEPTH` scores; where they are all equal the deviation is 1, so that none leaves the mean."""
    scores = [_score(hit) for hit in hits[:DEPTH]]
    if not scores or scores[0] == scores[-1]:
        return Spread(scores[0] if scores else 0.0, 1.0)
    mean = math.fsum(scores) / len(scores)
    deviation = math.hypot(*(score - mean for score in scores)) / math.sqrt(len(scores))
    return Spread(mean, deviation or 1.0)
