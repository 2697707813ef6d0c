"""Wrappers of stages, and how a stage runs over hits that come from outside a channel.

Two such hits may have the same id, and both must be kept. So a stage sees each hit under an id made of its place and
its own id, and ties stay in the given order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import Logger
from typing import TypeVar

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.types import Failure, Hit, KnownScores, Query, Ranking, Scan
from voicevault_retrievers.errors import ConfigError, StageError

_PLACE_DIGITS = 9


class StageWrapper(Stage):
    """A stage that delegates to another stage, as the base class of wrappers."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.below = stage
        self.name = stage.name
        self.blocking = stage.blocking
        self.refills = stage.refills
        self.bounded = stage.bounded
        self.gives_text = stage.gives_text

    @property
    def own(self) -> bool:
        return self.below.own

    def needs(self, k: int) -> int:
        return self.below.needs(k)

    def over(self, channels: Mapping[str, Channel]) -> Stage:
        twin = copy.copy(self)
        twin.below = self.below.over(channels)
        return twin

    def warm_up(self) -> None:
        self.below.warm_up()

    def instead(self, ranking: Ranking) -> str:
        return self.below.instead(ranking)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return self.below.refine(query, ranking)

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        return self.below.plan(query, ranking)

    def __repr__(self) -> str:
        return repr(self.below)


class TopN(StageWrapper):
    """A stage that keeps only the first `n` hits of another stage."""

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


class Raising(StageWrapper):
    """A stage whose failure ends the search."""

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return _raised(ranking, self.below.refine(query, ranking))

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        return _raised(ranking, (yield from self.below.plan(query, ranking)))


class Headed(StageWrapper):
    """A stage that reads other headers than the chunks'."""

    def __init__(self, stage: Stage, header: Callable[[Hit], str]) -> None:
        super().__init__(stage)
        self.header = header

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return self._as_before(ranking, self.below.refine(query, self._headed(ranking)))

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        return self._as_before(ranking, (yield from self.below.plan(query, self._headed(ranking))))

    def _headed(self, ranking: Ranking) -> Ranking:
        return replace(ranking, hits=tuple(_with_header(hit, self.header(hit)) for hit in ranking))

    def _as_before(self, given: Ranking, refined: Ranking) -> Ranking:
        own = {hit.id: hit.chunk.header for hit in given}
        return replace(refined, hits=tuple(_with_header(hit, own.get(hit.id, hit.chunk.header)) for hit in refined))


def _with_header(hit: Hit, header: str) -> Hit:
    return replace(hit, chunk=replace(hit.chunk, header=header))


class _SkippableStage(StageWrapper):
    """A stage that a search skips where it fails."""

    def plan(self, query: Query, ranking: Ranking) -> Plan[Ranking]:
        try:
            return (yield from self.below.plan(query, ranking))
        except Exception as error:  # noqa: BLE001 - any exception may be skipped
            return ranking.failing(_failure(self.name, error, self.instead(ranking)))

    def __repr__(self) -> str:
        return f"skippable({self.below!r})"


class _SkippableRewriter(Rewriter):
    """A rewriter that a search skips where it fails."""

    def __init__(self, rewriter: Rewriter) -> None:
        super().__init__()
        self.below = rewriter
        self.name = rewriter.name

    @property
    def own(self) -> bool:
        return self.below.own

    def reads_history(self) -> bool:
        return self.below.reads_history()

    def rewrite(self, query: Query) -> Query:
        return self.below.rewrite(query)

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        try:
            return (yield from self.below.plan(query))
        except Exception as error:  # noqa: BLE001 - any exception may be skipped
            return query, (_failure(self.name, error, self.instead),)

    def over(self, channel: Channel) -> Rewriter:
        return _SkippableRewriter(self.below.over(channel))

    def __repr__(self) -> str:
        return f"skippable({self.below!r})"


P = TypeVar("P", Stage, Rewriter)


def skippable(part: P) -> P:
    """Make your own stage or rewriter skippable: where it fails, the search goes on, marked as degraded.

    Stages and rewriters of this package already are. Do not use it for one that masks, redacts or checks access: where
    it is skipped, a search returns its input. Raises ConfigError for anything but a stage or rewriter.
    """
    if isinstance(part, Stage):
        return _SkippableStage(part)
    if isinstance(part, Rewriter):
        return _SkippableRewriter(part)
    raise ConfigError(f"a stage or a rewriter can be skipped, not a {type(part).__name__}")


def _failure(name: str, error: Exception, instead: str) -> Failure:
    cause = error.__cause__
    raised = cause if isinstance(error, StageError) and isinstance(cause, Exception) else error
    return Failure.of(name, raised, instead)


def settled(given: Ranking, ranking: Ranking, on_error: str, who: str, log: Logger) -> Ranking:
    """The ranking of a stage that runs alone. Its failures are logged; with "raise", a degrading one is raised."""
    if on_error == "raise":
        _raised(given, ranking)
    log_failures(log, who, failures_since(given, ranking))
    return ranking


def _raised(given: Ranking, ranking: Ranking) -> Ranking:
    """The ranking; the error of its first degrading failure that the given one has not is raised."""
    for failure in failures_since(given, ranking):
        if failure.degrades and failure.error is not None:
            raise failure.error
    return ranking


def failures_since(given: Ranking, ranking: Ranking) -> list[Failure]:
    """The failures of a ranking that the ranking which a stage was given has not."""
    return [failure for failure in ranking.errors if failure not in given.errors]


def skipped_since(given: Ranking, ranking: Ranking) -> list[str]:
    """`failures_since` that may have cost hits or changed their order, as text."""
    return [str(failure) for failure in failures_since(given, ranking) if failure.degrades]


def place_id(at: int, own: str | None) -> str:
    """An id made of a place and the own id of the hit there, if it has one."""
    return f"{at:0{_PLACE_DIGITS}d}:{own or ''}"


def place_of(place: str) -> int:
    """The place in a `place_id`."""
    return int(place[:_PLACE_DIGITS])


def id_at(place: str) -> str:
    """The own id in a `place_id`; empty where there is none."""
    return place[_PLACE_DIGITS + 1 :]


class ByPlace(Channel):
    """A channel that takes and returns scores under `place_id`s instead of chunk ids."""

    def __init__(self, below: Channel) -> None:
        self.below = below
        self.name = below.name
        self.kind = below.kind

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        return self.below.plan(query, k)

    def scan(self, query: Query) -> Scan | None:
        below = self.below.scan(query)
        if below is None:
            return None

        def scores(places: Sequence[str]) -> Mapping[str, float] | None:
            own = {place: id_at(place) for place in places}
            found = below.scores(list(set(own.values()) - {""}))
            return None if found is None else {place: found[own[place]] for place in own if own[place] in found}

        return KnownScores(scores, local=below.local)
