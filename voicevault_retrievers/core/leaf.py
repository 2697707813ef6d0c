"""The base class of channels that search something themselves."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers.core.access_control import withheld
from voicevault_retrievers.core.blocking import Blocked
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.plan import Call, CircuitBreaker, Plan, off_loop
from voicevault_retrievers.core.execution.steps import Steps, arun, run
from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.types import (
    ChannelKind,
    Chunk,
    Failure,
    Hit,
    Query,
    Ranking,
    Scan,
    Variant,
    Vote,
    check_scores,
)


class Match(NamedTuple):
    """A match of a leaf channel: a chunk, its score (higher is better, None for rank only), and the matched words.

    `via` is the path that led to the match, `header_terms` the matched words in the chunk's header: see `Vote`. Where a
    search of this package found it for another component, `require` are its access rights, `degraded` what it skipped.
    """

    chunk: Chunk
    score: float | None
    terms: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    header_terms: tuple[str, ...] = ()
    require: Filter | None = None
    degraded: tuple[str, ...] = ()


def in_given_order(matches: Iterable[Match]) -> list[Match]:
    """Matches in their given order. The scores are kept where every match has one and they never rise, else removed."""
    found = list(matches)
    scores = [match.score for match in found if match.score is not None]
    if len(scores) == len(found) and not any(after > before for before, after in pairwise(scores)):
        return found
    return [match._replace(score=None) for match in found]


Request: TypeAlias = tuple[Query, Sequence[Variant], int]
"""A query, the wordings of it that are searched, and how many matches of each are wanted."""


class BlockingGuard(Protocol):
    """Adds to queries what the owners of the searched chunks have blocked."""

    def is_done(self, query: Query) -> bool:
        """Whether a query has it already."""
        ...

    def __call__(self, query: Query) -> tuple[Query, Sequence[Failure]]:
        """The query with what is blocked for it, and the failures of finding that out; may read files."""
        ...

    def ids(self, blocked: Blocked) -> Set[str]:
        """The ids of all searched chunks that are blocked."""
        ...


def guarding(name: str, guard: BlockingGuard | None, query: Query) -> Plan[tuple[Query, Sequence[Failure]]]:
    """The query of a channel with what is blocked for it, and the failures; read outside an event loop."""
    if guard is None or guard.is_done(query):
        return query, ()
    return (yield from off_loop(name, partial(guard, query)))


class LeafChannel(Channel):
    """A channel that searches something itself. Subclasses implement `find`.

    Over the wordings of a query, each chunk keeps its best score (CombMAX, Fox & Shaw 1994), or without scores its best
    rank. Among equal ranks, the chunk that more wordings found, at higher ranks, comes first. One call searches all
    wordings; with `each_alone`, meant for channels that wait on a server, concurrent calls search one wording each.
    `timeout` is in seconds; None waits without limit.

    Chunks that are blocked (`Query.blocked`) are left out before anything else sees them. The channel is asked for more
    until k are left.
    """

    each_alone = False
    local = False
    """Whether the channel waits for nothing remote."""
    computes = False
    """Whether the channel is known to only compute."""
    guard: BlockingGuard | None = None
    """Adds to a query what the owner of the searched chunks has blocked; None where nobody blocks."""

    def __init__(self, name: str, kind: ChannelKind, *, timeout: float | None = None) -> None:
        self.name = name
        self.kind = kind
        self.timeout = seconds_or_none("timeout", timeout)
        self._breaker = CircuitBreaker()

    @abstractmethod
    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        """For each wording at most k matches, best first."""

    def find_each(self, asked: Sequence[Request]) -> Sequence[Sequence[Sequence[Match]]]:
        """The results of `find` for several queries, which are searched together."""
        return [self.find(*one) for one in asked]

    afind: Callable[[Query, Sequence[Variant], int], Any] | None = None
    """An async `find`; None where the channel has none."""

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        query, unguarded = yield from guarding(self.name, self.guard, query)
        wordings = self._wordings(query)
        if not wordings:
            return Ranking((), tuple(unguarded))
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
        notes = [*unguarded, *self.notes([matches for _, matches in found])]
        notes += [withheld()] if any(isinstance(outcome, _Permitted) for outcome in outcomes) else []
        return Ranking(
            self._merge(found, k),
            (*(Failure.of(self.name, error, "its other wordings are searched") for error in failures), *notes),
            scan=self.scan(query, found),
        )

    def guarded(self, query: Query) -> tuple[Query, Sequence[Failure]]:
        """The query with what is blocked for it in the searched knowledge bases."""
        return (query, ()) if self.guard is None else self.guard(query)

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> Scan | None:
        """Like `Channel.scan`. A search passes the matches that it `found` for each wording, to reuse them."""
        return None

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        """The notes on the matches of each wording, as `find` returned them."""
        return ()

    def _wordings(self, query: Query) -> tuple[Variant, ...]:
        """The wordings that are not blank. The query's own text may be blank where the query brings a vector."""
        wordings = query.texts_for(self.name, self.kind)
        return tuple(w for w in wordings if w.text.strip() or (query.vectors and w.text == query.text))

    def _call(self, query: Query, wordings: tuple[Variant, ...], k: int) -> Call:
        return Call(
            self.name,
            partial(self._find_permitted, query, wordings, k),
            partial(self._afind_permitted, query, wordings, k) if self.afind else None,
            timeout=self.timeout,
            breaker=self._breaker,
            key=(self._breaker, query, wordings, k),
            local=self.local,
            computes=self.local and self.computes,
            kind="channel",
            texts=tuple(wording.text for wording in wordings),
            k=k,
            each=self._find_each_permitted,
            argument=(query, wordings, k),
        )

    def _find_permitted(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        found = self.find(query, wordings, k)
        return run(self._allowed(query, found, k), partial(self.find, query, wordings))

    def _find_each_permitted(self, asked: Sequence[Request]) -> list[Sequence[Sequence[Match]]]:
        found = zip(asked, self.find_each(asked), strict=True)
        return [run(self._allowed(one[0], matches, one[2]), partial(self.find, *one[:2])) for one, matches in found]

    async def _afind_permitted(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        afind: Any = self.afind
        found = await afind(query, wordings, k)
        return await arun(self._allowed(query, found, k), partial(afind, query, wordings))

    def _allowed(self, query: Query, found: Sequence[Sequence[Match]], k: int) -> Steps[Sequence[Sequence[Match]]]:
        """At most k matches of each wording that are neither blocked nor withheld; a step asks for that many matches.

        `found` are the first k. A scan reads what the listings of all wordings hold beside the matches, or of none:
        where one wording has lost matches, all become plain.
        """
        blocked, depth = query.blocked, k
        if not blocked:
            return _permitted(query, found)
        while True:
            left = [self._left(blocked, matches) for matches in found]
            if depth == k and all(kept is matches for kept, matches in zip(left, found, strict=True)):
                return _permitted(query, found)
            if all(len(kept) >= k or len(matches) < depth for kept, matches in zip(left, found, strict=True)):
                return _permitted(query, [_plain(kept[:k]) for kept in left])
            depth *= 2
            found = yield depth

    def _left(self, blocked: Blocked, matches: Sequence[Match]) -> Sequence[Match]:
        """The matches that are not blocked; the given sequence itself where none is."""
        if self.guard is None:
            return blocked.left(matches)
        hidden = self.guard.ids(blocked)
        ids = matches.ids if isinstance(matches, Listing) else [match.chunk.id for match in matches]
        places = [at for at, one in enumerate(ids) if one not in hidden]
        if len(places) == len(ids):
            return matches
        return matches.at(places) if isinstance(matches, Listing) else [matches[at] for at in places]

    def _merge(self, found: Sequence[tuple[Variant, Sequence[Match]]], k: int) -> Listing[Hit]:
        """The best k hits over all wordings, each chunk once.

        A place is a pair: the number of the wording, and the position among its matches.
        """
        ((wording, matches), *others) = found
        if not others and isinstance(matches, Listing) and wording.weight == 1.0:
            own = matches[:k]
            return self._listing(found, own.ids, own.scores)
        best: dict[str, tuple[float, int, tuple[int, int]]] = {}
        support: defaultdict[str, float] = defaultdict(float)
        columns = [_columns(matches[:k]) for _, matches in found]
        bare = any(scores is None for _, scores in columns)
        for number, ((wording, _), (ids, scores)) in enumerate(zip(found, columns, strict=True)):
            given = [0.0] * len(ids) if bare or scores is None else [weighted(one, wording.weight) for one in scores]
            for rank, (chunk_id, score) in enumerate(zip(ids, given, strict=True), 1):
                support[chunk_id] -= wording.weight / rank
                held = best.get(chunk_id)
                if held is None or (-score, rank) < held[:2]:
                    best[chunk_id] = -score, rank, (number, rank - 1)
        order = sorted(best, key=lambda key: (best[key][1], support[key], key) if bare else (best[key][0], key))[:k]
        kept = [best[key] for key in order]
        totals = None if bare else -np.array([lost for lost, _, _ in kept])
        return self._listing(found, order, totals, [place for _, _, place in kept])

    def _listing(
        self,
        found: Sequence[tuple[Variant, Sequence[Match]]],
        ids: Sequence[str],
        scores: NDArray[np.float64] | None,
        places: Sequence[tuple[int, int]] | None = None,
    ) -> Listing[Hit]:
        """A listing of hits. `places` locate the matches; without places, they are the first wording's, in order."""

        def hit(at: int) -> Hit:
            number, place = (0, at) if places is None else places[at]
            wording, matches = found[number]
            match, score = matches[place], None if scores is None else float(scores[at])
            vote = Vote(
                self.name,
                at + 1,
                score,
                query=wording.text,
                terms=match.terms,
                kind=self.kind,
                via=match.via,
                header_terms=match.header_terms,
            )
            return Hit(match.chunk, score, (vote,), require=match.require)

        return Listing(ids, scores, hit)


def _columns(matches: Sequence[Match]) -> tuple[Sequence[str], list[float] | None]:
    """Ids and scores; no scores where a match has none. Raises InvalidScoreError for a score that is not finite."""
    if isinstance(matches, Listing):
        return matches.ids, None if matches.scores is None else matches.scores.tolist()
    check_scores((match.chunk.id, match.score) for match in matches)
    scores = [float(match.score) for match in matches if match.score is not None]
    return [match.chunk.id for match in matches], scores if len(scores) == len(matches) else None


def _plain(matches: Sequence[Match]) -> Sequence[Match]:
    """The matches without what else their listing may hold."""
    return matches.at(range(len(matches))) if isinstance(matches, Listing) else matches


def degraded_below(name: str, found: Sequence[Sequence[Match]]) -> list[Failure]:
    """A failure for each thing that a search below skipped."""
    said = dict.fromkeys(text for matches in found for match in matches for text in match.degraded)
    return [Failure(name, "Degraded", text) for text in said]


class _Permitted(list[Sequence[Match]]):
    """The matches that are left where access rights removed some."""


def _permitted(query: Query, found: Sequence[Sequence[Match]]) -> Sequence[Sequence[Match]]:
    """The matches that access rights permit. A channel that ignores the rights leaks nothing, not even in a trace."""
    if query.require is None:
        return found
    passes = compile_filter(query.require)
    if all(passes(match.chunk.metadata) for matches in found for match in matches):
        return found
    return _Permitted([match for match in matches if passes(match.chunk.metadata)] for matches in found)


def best_of_wordings(
    told: Sequence[tuple[float, Mapping[str, float]]], least: float = -math.inf
) -> Mapping[str, float]:
    """The best score of each chunk over the weights and scores of several wordings, with `least` as the lower bound."""
    if len(told) == 1 and told[0][0] == 1.0:
        return told[0][1]
    best: dict[str, float] = {}
    for weight, scores in told:
        for chunk_id, score in scores.items():
            best[chunk_id] = max(best.get(chunk_id, least), weighted(score, weight))
    return best


def weighted(score: float, weight: float) -> float:
    """A score lowered by a weight: `weight * score` where positive; a negative score falls by the same share."""
    return score - (1.0 - weight) * abs(score)
