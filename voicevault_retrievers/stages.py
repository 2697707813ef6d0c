"""What is made of stages; and how they work on hits that somebody else has put in order.

Of those two may have one id, and neither is to be lost: a stage is given them under their places, each with the id
behind it, so that ties go as they came.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from logging import Logger

from voicevault_retrievers.calls import Plan
from voicevault_retrievers.channel import Channel, Stage
from voicevault_retrievers.checks import whole
from voicevault_retrievers.types import Hit, Query, Ranking, check_scores

_PLACE_DIGITS = 9


class Around(Stage):
    """A stage as it is, for one that does more around its plan."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.below = stage
        self.name = stage.name
        self.blocking = stage.blocking
        self.refills = stage.refills

    def needs(self, k: int) -> int:
        return self.below.needs(k)

    def over(self, channels: Mapping[str, Channel]) -> Stage:
        twin = copy.copy(self)
        twin.below = self.below.over(channels)
        return twin

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return self.below.refine(query, ranking)

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        return self.below.plan(query, ranking)

    def __repr__(self) -> str:
        return repr(self.below)


class TopN(Around):
    """A stage of whose hits the first `n` are kept."""

    def __init__(self, stage: Stage, n: int) -> None:
        super().__init__(stage)
        self.n = whole("top_n", n)
        self.refills = False

    def needs(self, k: int) -> int:
        return self.below.needs(min(k, self.n))

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return self.below.refine(query, ranking).top(self.n)

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        refined = yield from self.below.plan(query, ranking)
        return refined.top(self.n)

    def __repr__(self) -> str:
        return f"TopN({self.below!r}, {self.n})"


def settled(ranking: Ranking, on_error: str, who: str, log: Logger) -> Ranking:
    """The ranking of a stage that works alone: a failure is logged; with "raise" one that degrades is raised."""
    for failure in ranking.errors:
        if on_error == "raise" and failure.degrades and failure.error is not None:
            raise failure.error
        log.warning("%s %s: %s", who, "kept the order it was given" if failure.degrades else "notes", failure)
    return ranking


def in_order(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits in the order given: with their scores where the first have one and these fall, else without any.

    Raises InvalidScoreError for a score that is NaN or infinite.
    """
    given = tuple(hits)
    check_scores((hit.id, hit.score) for hit in given)
    keys = [(-hit.score, hit.id) for hit in given if hit.score is not None]
    first = all(hit.score is not None for hit in given[: len(keys)])
    if first and not any(after < before for before, after in pairwise(keys)):
        return given
    return tuple(replace(hit, score=None) for hit in given)


def place_id(at: int, own: str | None) -> str:
    """The id of what is at a place and has an id of its own, or none."""
    return f"{at:0{_PLACE_DIGITS}d}:{own or ''}"


def place_of(place: str) -> int:
    """The place in a `place_id`."""
    return int(place[:_PLACE_DIGITS])


def id_at(place: str) -> str:
    """The own id in a `place_id`; empty where there is none."""
    return place[_PLACE_DIGITS + 1 :]


class ByPlace(Channel):
    """A channel that is asked for the scores of hits by their places."""

    def __init__(self, below: Channel) -> None:
        self.below = below
        self.name = below.name
        self.kind = below.kind

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        return self.below.plan(query, k)

    def scores(self, query: Query, ids: Iterable[str]) -> Mapping[str, float] | None:
        own = {place: id_at(place) for place in ids}
        found = self.below.scores(query, set(own.values()) - {""})
        return None if found is None else {place: found[own[place]] for place in own if own[place] in found}
