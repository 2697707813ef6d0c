"""Channels that search something themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from voicevault_retrievers.access_control import withheld
from voicevault_retrievers.calls import Call, Lane, Plan
from voicevault_retrievers.channel import Channel
from voicevault_retrievers.checks import seconds_or_none
from voicevault_retrievers.filters import compile_filter
from voicevault_retrievers.types import ChannelKind, Chunk, Failure, Hit, Query, Ranking, Variant, Vote, check_scores


class Match(NamedTuple):
    """What a leaf channel found: a chunk, its score (higher is better, None for rank only), the matched words.

    `via` is what led to it, see `Vote`.
    """

    chunk: Chunk
    score: float | None
    terms: tuple[str, ...] = ()
    via: tuple[str, ...] = ()


def in_given_order(matches: Iterable[Match]) -> list[Match]:
    """Matches whose order is authoritative: their scores are kept where each has one and they fall, else none is."""
    found = list(matches)
    scores = [match.score for match in found if match.score is not None]
    if len(scores) == len(found) and not any(after > before for before, after in pairwise(scores)):
        return found
    return [match._replace(score=None) for match in found]


class Leaf(Channel):
    """A channel that searches something itself: subclasses say how to `find` for one wording of a query.

    Of a query's wordings each chunk keeps its best score (CombMAX of Fox, Shaw, 1994), or where there are no scores its
    best rank; of equal ranks the one goes first that more wordings found, and higher. They are searched in one call, or
    where `each_alone`, for channels that wait on something remote, in one call each, at the same time. `timeout` is in
    seconds; None waits.
    """

    each_alone = False

    def __init__(self, name: str, kind: ChannelKind, *, timeout: float | None = None) -> None:
        self.name = name
        self.kind = kind
        self.timeout = seconds_or_none("timeout", timeout)
        self._lane = Lane()

    @abstractmethod
    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """For each wording at most k matches, best first."""

    afind: Callable[[Query, Sequence[Variant], int], Any] | None = None
    """An async `find`, where the channel has one of its own."""

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        wordings = self._wordings(query)
        if not wordings:
            return Ranking()
        groups = [(wording,) for wording in wordings] if self.each_alone else [wordings]
        outcomes = yield tuple(self._call(query, group, k) for group in groups)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if len(failures) == len(outcomes):
            raise failures[0]
        found = [
            (wording, matches)
            for group, outcome in zip(groups, outcomes, strict=True)
            if not isinstance(outcome, Exception)
            for wording, matches in zip(group, outcome, strict=True)
        ]
        notes = list(self.notes([matches for _, matches in found]))
        notes += [withheld()] if any(isinstance(outcome, _Permitted) for outcome in outcomes) else []
        return Ranking(
            self._merge(found, k),
            (*(Failure.of(self.name, error, "its other wordings are searched") for error in failures), *notes),
        )

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        """What is to be said beside the matches of each wording, as `find` gave them."""
        return ()

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        """Those that say something; the query's own text may be blank where the query brings a vector."""
        wordings = query.wordings(self.name, self.kind)
        return tuple(w for w in wordings if w.text.strip() or (query.vectors and w.text == query.text))

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        return Call(
            self.name,
            partial(self._find_permitted, query, wordings, k),
            partial(self._afind_permitted, query, wordings, k) if self.afind else None,
            timeout=self.timeout,
            lane=self._lane,
            key=(self._lane, query, wordings, k),
            kind="channel",
            texts=tuple(wording.text for wording in wordings),
            k=k,
        )

    def _find_permitted(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return _permitted(query, self.find(query, wordings, k))

    async def _afind_permitted(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        afind: Any = self.afind
        return _permitted(query, await afind(query, wordings, k))

    def _merge(self, found: Sequence[tuple[Variant, Sequence[Match]]], k: int) -> tuple[Hit, ...]:
        best: dict[str, tuple[float, int, Match, float | None, str]] = {}
        support: defaultdict[str, float] = defaultdict(float)
        bare = any(match.score is None for _, matches in found for match in matches)
        for wording, matches in found:
            check_scores((match.chunk.id, match.score) for match in matches)
            for rank, match in enumerate(matches[:k], 1):
                score = None if bare or match.score is None else weighted(float(match.score), wording.weight)
                support[match.chunk.id] -= wording.weight / rank
                held = best.get(match.chunk.id)
                if held is None or (-(score or 0.0), rank) < held[:2]:
                    best[match.chunk.id] = -(score or 0.0), rank, match, score, wording.text
        order = sorted(best, key=lambda key: (*best[key][1:2], support[key], key) if bare else (best[key][0], key))
        return tuple(
            Hit(match.chunk, score, (self._vote(match, rank, score, text),))
            for rank, (_, _, match, score, text) in enumerate((best[key] for key in order[:k]), 1)
        )

    def _vote(self, match: Match, rank: int, score: float | None, text: str) -> Vote:
        return Vote(self.name, rank, score, query=text, terms=match.terms, kind=self.kind, via=match.via)


class _Permitted(list[Sequence[Match]]):
    """What is left of matches of which some were not permitted."""


def _permitted(query: Query, found: Sequence[Sequence[Match]]) -> Sequence[Sequence[Match]]:
    """Matches that access rights permit: a channel that forgets them is not to show others, not even in a trace."""
    if query.require is None:
        return found
    passes = compile_filter(query.require)
    if all(passes(match.chunk.metadata) for matches in found for match in matches):
        return found
    return _Permitted([match for match in matches if passes(match.chunk.metadata)] for matches in found)


def weighted(score: float, weight: float) -> float:
    """A wording's weight lowers a score: `weight * score` for a positive one, and a negative one falls as far."""
    return score - (1.0 - weight) * abs(score)
