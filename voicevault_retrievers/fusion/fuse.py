"""Fuses several channels into one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from voicevault_retrievers._support.checks import number, weights_or_none, whole
from voicevault_retrievers._support.foreign_options import meant, refused
from voicevault_retrievers.core.channel import Channel, check_named
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.filters import scope
from voicevault_retrievers.core.rows import best_by_id
from voicevault_retrievers.core.types import ChannelKind, Failure, Hit, Query, Ranking, Scan, Vote, check_scores
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.adaptive_sum import AdaptiveSum
from voicevault_retrievers.fusion.identity import Identified, identified
from voicevault_retrievers.fusion.method import Column, Contributions, Evidence, Method, Pool
from voicevault_retrievers.fusion.methods import method_of
from voicevault_retrievers.fusion.rrf import EngineRRF

OnError: TypeAlias = Literal["skip", "raise"]
DEPTH = 100
_OPTIONS = ("channels", "method", "weights", "depth", "on_error")


class _Unread(NamedTuple):
    """A channel one of whose hits could not be read."""

    name: str
    error: Exception


class _Told(NamedTuple):
    """What a channel's scan tells: the exact scores of chunks that the channel did not find, and its coverage."""

    scores: Mapping[str, float] | None = None
    coverage: float | None = None

    def of(self, ids: Collection[str]) -> _Told:
        """Without the scores of other chunks than these."""
        return self if self.scores is None else self._replace(scores={i: s for i, s in self.scores.items() if i in ids})


class Fused(Channel):
    """Channels searched concurrently to a fixed depth, and fused. A chunk's score is the sum of the contributions.

    A channel that fails or exceeds its timeout is skipped, with a failure; with `on_error` "raise" its error is raised.
    Where all channels fail, the first error is raised. A channel of weight 0 is not searched.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        *,
        method: Method,
        weights: Mapping[str, float],
        depth: int | Mapping[str, int],
        on_error: OnError,
        name: str = "fused",
    ) -> None:
        if isinstance(method, EngineRRF):
            raise ConfigError(
                "the fusion 'engine' is for a preset or retriever over one collection of an engine that can fuse: use "
                "'rrf' here"
            )
        self.name = name
        self.channels = {name: channel.named(name) for name, channel in channels.items()}
        self.method = method
        self.weights = checked_weights({**dict.fromkeys(channels, 1.0), **weights}, channels)
        self.depths = _depths(depth, channels)
        self.on_error = on_error
        kinds: set[ChannelKind] = {channel.kind for channel in channels.values()}
        self.kind = kinds.pop() if len(kinds) == 1 else "hybrid"

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        weights = self._weights(query)
        asked = {name: channel for name, channel in self.channels.items() if weights[name] > 0}
        plans = tuple(channel.plan(query, max(k, self.depths[name])) for name, channel in asked.items())
        answers = yield plans
        outcomes = dict(zip(asked, answers, strict=True))
        given = {name: outcome.by_score() for name, outcome in outcomes.items() if isinstance(outcome, Ranking)}
        failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Exception)}
        documents = identified(given)
        failed |= documents.failed
        rankings = documents.rankings
        pool = Pool(rankings)
        failures = [Failure.of(name, error, "the other channels are searched") for name, error in failed.items()]
        failures += [failure.within(name) for name, ranking in rankings.items() for failure in ranking.errors]
        told, unscored = yield from self._told(pool, documents.own)
        failures += unscored
        self._raise(failed, failures, any_answered=bool(rankings))
        while True:
            found = {name: pool.evidence(name, self.channels[name].kind, *told.get(name, ())) for name in pool.rankings}
            best = partial(self._fuse, pool, found, weights, k)
            (outcome,) = yield (Call(self.name, best, inline=True, kind="fusion", texts=(query.text,)),)
            fused = value_of(outcome)
            if not isinstance(fused, _Unread):
                break
            failed[fused.name] = fused.error
            failures.append(Failure.of(fused.name, fused.error, "the other channels are searched"))
            pool = Pool({name: ranking for name, ranking in pool.rankings.items() if name != fused.name})
            left = set(pool.ids)
            told = {name: one.of(left) for name, one in told.items()}
            self._raise(failed, failures, any_answered=bool(pool.rankings))
        notes = [Failure(self.name, type(self.method).__name__, said, degrades=False) for said in self._notes(found)]
        hits, differing = fused
        return Ranking(hits, (*failures, *notes, *_apart(self.name, documents), *_together(self.name, differing)))

    def _told(self, pool: Pool, own: Mapping[str, Mapping[str, str]]) -> Plan[tuple[dict[str, _Told], list[Failure]]]:
        """The answers of the channels' scans, if the method uses them. `own` maps fused ids to a channel's own ids."""
        scans = {name: one.scan for name, one in pool.rankings.items() if one.scan is not None}
        if not self.method.exact or not pool.ids or not scans:
            return {}, []

        def told(name: str, scan: Scan) -> _Told:
            missing, known_by = pool.missing(name), own.get(name, {})
            theirs = [known_by.get(one, one) for one in missing] if known_by else missing
            scores = scan.scores(theirs) if missing else {}
            if scores is not None and known_by:
                scores = {one: scores[other] for one, other in zip(missing, theirs, strict=True) if other in scores}
            return _Told(scores, scan.coverage)

        outcomes = yield tuple(
            Call(
                f"{name} scores",
                partial(told, name, scan),
                timeout=getattr(self.channels[name], "timeout", None),
                local=scan.local,
                computes=scan.local and getattr(self.channels[name], "computes", False),
            )
            for name, scan in scans.items()
        )
        found = {name: outcome for name, outcome in zip(scans, outcomes, strict=True) if isinstance(outcome, _Told)}
        failed = ((name, one) for name, one in zip(scans, outcomes, strict=True) if isinstance(one, Exception))
        return found, [Failure.of(name, error, "the scores of its list count") for name, error in failed]

    def _notes(self, found: Mapping[str, Evidence]) -> Sequence[str]:
        """The method's notes; none where only one channel found anything, as any method keeps its order."""
        return self.method.notes(found) if sum(len(one.places) > 0 for one in found.values()) > 1 else ()

    def _weights(self, query: Query) -> Mapping[str, float]:
        """The fusion's weights, overridden by the query's weights for these channels."""
        given = {name: weight for name, weight in (query.weights or {}).items() if name in self.channels}
        weights = checked_weights({**self.weights, **given}, self.channels)
        if not any(weights.values()):
            raise ConfigError("the weights of all channels are 0: nothing would be searched")
        return weights

    def _raise(self, failed: Mapping[str, Exception], failures: list[Failure], *, any_answered: bool) -> None:
        if failed and not any_answered:
            raise next(iter(failed.values()))
        errors = [failure.error for failure in failures if failure.degrades and failure.error is not None]
        if errors and self.on_error == "raise":
            raise errors[0]

    def _fuse(
        self, pool: Pool, found: Mapping[str, Evidence], weights: Mapping[str, float], k: int
    ) -> tuple[tuple[Hit, ...], list[str]] | _Unread:
        """The k best hits with their votes, and the ids of those whose text is not the same in all channels.

        Other hits of the channels are not made.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # `_best` raises for what is not finite
            parts = self._contributions(found, weights, len(pool.ids))
            totals = _totals(parts, len(pool.ids))
        best = np.array(_best(pool.ids, totals, k), dtype=np.intp)
        votes: list[list[Vote]] = [[] for _ in best]
        others: list[list[Vote]] = [[] for _ in best]
        held: list[dict[str, Hit]] = [{} for _ in best]
        for name, one in found.items():
            ranks = np.zeros(len(totals), dtype=np.intp)
            ranks[one.places] = np.arange(1, len(one.places) + 1)
            columns = zip(ranks[best].tolist(), one.scores[best].tolist(), parts[name][best].tolist(), strict=True)
            hits, weight = pool.rankings[name].hits, weights[name]
            for at, (rank, score, part) in enumerate(columns):
                if rank:
                    try:
                        hit = hits[rank - 1]
                    except Exception as error:  # noqa: BLE001 - a store may raise anything where a chunk cannot be read
                        return _Unread(name, error)
                    held[at][name] = hit
                    votes[at].append(_vote(name, rank, hit, weight, part))
                elif part:
                    score = None if math.isnan(score) else score
                    others[at].append(Vote(name, None, score, weight, part, kind=one.kind))
        fused, differing = list[Hit](), list[str]()
        for found_by, total, own, other in zip(held, totals[best].tolist(), votes, others, strict=True):
            hit, said = _merged(found_by), (*own, *other)
            rights = [one.require for one in found_by.values() if one.require is not None]
            require = scope(*rights) if rights else None
            fused.append(Hit(hit.chunk, total, said, hit.context, hit.granted_by, hit.over_budget, require=require))
            if any(one.chunk.text != hit.chunk.text for one in found_by.values()):
                differing.append(hit.id)
        return tuple(fused), differing

    def _contributions(self, found: Mapping[str, Evidence], weights: Mapping[str, float], size: int) -> Contributions:
        """The method's contributions; ConfigError unless they have a number for each chunk of the pool."""
        parts = self.method.contributions(found, weights)
        for name in found:
            given: Any = parts.get(name)
            if np.shape(given) != (size,):
                raise ConfigError(
                    f"{self.method!r} gave {type(given).__name__} of shape {np.shape(given)} as what {name!r} adds: an "
                    f"array with a number for each chunk of the pool, {size}, is expected"
                )
        return {name: np.asarray(parts[name], dtype=np.float64) for name in found}

    def children(self) -> Mapping[str, Channel]:
        return self.channels

    def describe(self, indent: str = "") -> str:
        head = f"{indent}{self.name}: {self.method!r}, depth {self.depths}, weights {self.weights}"
        return "\n".join([head, *(channel.describe(f"{indent}  ") for channel in self.channels.values())])

    def __repr__(self) -> str:
        return f"fuse({self.channels!r}, method={self.method!r}, weights={self.weights!r}, depth={self.depths})"


def fuse(
    channels: Mapping[str, Channel] | None = None,
    *,
    method: Method | str | None = None,
    weights: Mapping[str, float] | None = None,
    depth: int | Mapping[str, int] = DEPTH,
    on_error: OnError = "skip",
    **named: Channel,
) -> Fused:
    """Fuse channels: `fuse({"bm25": a, "dense": b}, method=RRF(k=60))`, or `fuse(bm25=a, dense=b)`.

    `method` is a fusion method or its name, by default `AdaptiveSum()`. `weights`, by channel, multiply contributions;
    the default is 1, and a channel of weight 0 is not searched. Each channel is asked for `depth` hits (one number, or
    a number by name), or for k where k is more. Equal ids mean the same chunk; a note says where their texts differ.
    Channels that share no ids match hits by equal text and consistent metadata (see `fusion.identity`). A channel that
    fails is skipped, with a failure, or with `on_error` "raise" raises its error; where all fail, a search raises.
    Raises ConfigError for no channels, a name given twice, an object that is no channel, and unknown names.
    """
    for option, value in (("method", method), ("weights", weights), ("depth", depth)):
        if isinstance(value, Channel):
            raise ConfigError(f"{option!r} is an option of fuse: a channel of that name goes in the mapping")
    for name, given in named.items():
        if not isinstance(given, Channel) and meant(name, _OPTIONS):
            raise refused("fuse", name, _OPTIONS)
    check_named({} if channels is None else channels)
    weights_or_none(weights)
    both = {**(channels or {}), **named}
    if len(both) < len(channels or {}) + len(named):
        raise ConfigError("a channel's name is given twice")
    if not both:
        raise ConfigError("a fusion needs at least one channel")
    for name, channel in both.items():
        if not isinstance(channel, Channel):
            raise ConfigError(f"{name!r} is a {type(channel).__name__}, not a channel")
    if on_error not in ("skip", "raise"):
        raise unknown("on_error", on_error, ("skip", "raise"))
    chosen = method_of(method) or AdaptiveSum()
    return Fused(both, method=chosen, weights=weights or {}, depth=depth, on_error=on_error)


def checked_weights(weights: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, float]:
    """Weights as floats; ConfigError for an unknown name, or a weight that is negative or not finite."""
    for name, weight in weights.items():
        if name not in names:
            raise unknown("channel in weights", name, names)
        number(f"the weight of {name!r}", weight)
    return {name: float(weight) for name, weight in weights.items()}


def _totals(parts: Contributions, size: int) -> Column:
    """The sum of the parts of each chunk, rounded once."""
    columns = list(parts.values())
    if len(columns) > 2:  # the sum of two is rounded once anyway
        return np.array([math.fsum(row) for row in zip(*(column.tolist() for column in columns), strict=True)])
    return sum(columns, np.zeros(size))


def _best(ids: Sequence[str], totals: Column, k: int) -> list[int]:
    """The positions of the k chunks with the highest totals, best first, ties by ascending id."""
    if not np.isfinite(totals).all():
        check_scores(zip(ids, totals.tolist(), strict=True))
    return best_by_id(ids, totals, k)


def _merged(hits: Mapping[str, Hit]) -> Hit:
    """One hit for a chunk that several channels found: the first by channel name, whatever the channels' order."""
    held, *others = (hits[name] for name in sorted(hits))
    for hit in others:
        if held.context is None and hit.context is not None:
            held = replace(held, context=hit.context, over_budget=hit.over_budget)
    return held


def _apart(stage: str, documents: Identified) -> list[Failure]:
    """A note where channels return equal texts under different ids and with conflicting metadata."""
    if not documents.apart:
        return []
    message = (
        f"{documents.apart} texts were found by several of {', '.join(documents.rankings)}, with other ids and other "
        "metadata, so they count as different documents: give what is indexed ids that all channels share"
    )
    return [Failure(stage, "DifferentIds", message, degrades=False)]


def _together(stage: str, differing: Sequence[str]) -> list[Failure]:
    """A note where channels return different texts under one id, of which a hit has that of the first channel."""
    if not differing:
        return []
    message = (
        f"{len(differing)} ids stand for different texts in several channels, such as {differing[0]!r}, and count as "
        "one document each, with one of the texts: where they are different documents, give them ids that differ"
    )
    return [Failure(stage, "DifferentTexts", message, degrades=False)]


def _depths(depth: int | Mapping[str, int], names: Mapping[str, Any]) -> dict[str, int]:
    given = {**dict.fromkeys(names, DEPTH), **depth} if isinstance(depth, Mapping) else dict.fromkeys(names, depth)
    for name, value in given.items():
        if name not in names:
            raise unknown("channel in depth", name, names)
        whole(f"the depth of {name!r}", value)
    return given


def _vote(name: str, rank: int, hit: Hit, weight: float, contribution: float) -> Vote:
    """A channel's vote in the fusion: its own vote, or one vote with those of a composition as parts."""
    own = hit.votes[0] if len(hit.votes) == 1 else None
    if own is not None and own.stage == name and (not own.parts or own.contribution is None):
        return Vote(
            name, rank, own.score, weight, contribution, own.query, own.terms, own.parts, own.kind, own.via,
            own.probability, own.header_terms,
        )  # fmt: skip
    leaf = next((part for vote in hit.votes for part in vote.leaves()), None)
    return Vote(
        name,
        rank,
        hit.score,
        weight,
        contribution,
        query=leaf.query if leaf else "",
        terms=_terms(hit),
        parts=hit.votes,
    )


def _terms(hit: Hit) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term for vote in hit.votes for leaf in vote.leaves() for term in leaf.terms))
