"""Comparison of the rankings of two bases for the same queries, with the causes of differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.errors import ConfigError

TOLERANCE = 1e-6
"""Scores that differ by less than this, relative to the larger, are equal."""

CAUSES: Mapping[str, str] = {
    "absent": "the other base does not hold the chunk",
    "text": "the other base holds another text, or other metadata, under its id",
    "tie": "its score equals that of the last place, and of equals another was taken",
    "approximate": "the other base would score it among the first, and did not find it: its search is approximate",
    "instead": "both score it alike, and the other base has found others of a higher score",
    "scores": "the other base scores it otherwise: its statistics or its terms differ",
}
"""Why a chunk among the first k of one ranking is not among those of the other."""


class Compared(Protocol):
    """A knowledge base or an engine to compare."""

    def bm25(self, **options: Any) -> Channel: ...

    def dense(self, **options: Any) -> Channel: ...

    def get(self, ids: Iterable[str], /) -> Mapping[str, Chunk]: ...


@dataclass
class Parity:
    """How similar the rankings of one channel are.

    Over `queries`: `overlap` is the mean overlap of the first k, in [0, 1]; `same` counts rankings equal in ids and
    order; `score_error` is the largest relative difference between scores of the same chunk; `causes` counts the chunks
    in one ranking only, by `CAUSES`.
    """

    channel: str
    k: int
    queries: int = 0
    overlap: float = 0.0
    same: int = 0
    score_error: float = 0.0
    causes: dict[str, int] = field(default_factory=dict)


def parity(
    reference: Compared,
    other: Compared,
    queries: Iterable[str | Query],
    *,
    k: int = 10,
    channels: Sequence[str] = ("bm25", "dense"),
) -> list[Parity]:
    """Compare the first k hits of each channel; keywords by exact statistics, so that what differs is the data.

    Raises ConfigError where there is no query, and what searching raises.
    """
    asked, depth = list(queries), whole("k", k)
    if not asked:
        raise ConfigError("there are no queries to compare two bases by: give some")
    return [_compared(reference, other, asked, depth, name) for name in channels]


def _compared(reference: Compared, other: Compared, queries: Sequence[str | Query], k: int, name: str) -> Parity:
    found, causes = Parity(name, k), Counter[str]()
    options = {"statistics": "exact"} if name == "bm25" else {}
    first, second = getattr(reference, name)(**options), getattr(other, name)(**options)
    for query in queries:
        asked = query if isinstance(query, Query) else Query(query)
        ours, theirs = first.search(asked, k), second.search(asked, k)
        common = set(ours.ids) & set(theirs.ids)
        longest = max(len(ours), len(theirs))
        found.queries += 1
        found.overlap += len(common) / longest if longest else 1.0
        found.same += ours.ids == theirs.ids
        scores = {hit.id: hit.score for hit in ours}, {hit.id: hit.score for hit in theirs}
        for one in common:
            found.score_error = max(found.score_error, _apart(scores[0][one], scores[1][one]))
        causes.update(_causes(reference, other, second, asked, ours, theirs, k))
        causes.update(_causes(other, reference, first, asked, theirs, ours, k))
    found.overlap /= found.queries
    found.causes = dict(causes.most_common())
    return found


def _causes(
    here: Compared, there: Compared, channel: Channel, query: Query, ours: Ranking, theirs: Ranking, k: int
) -> Iterator[str]:
    """The causes for chunks of `ours` that are not in `theirs`; `channel` searches `there`."""
    listed = set(theirs.ids)
    expected = {hit.id: hit.score for hit in ours if hit.id not in listed}
    if not expected:
        return
    held, known = there.get(expected), here.get(expected)
    scores = channel.scores(query, expected) or {}
    last = theirs.hits[-1].score if len(theirs) >= k else None
    for one in expected:
        score = scores.get(one)
        if one not in held:
            yield "absent"
        elif one in known and (held[one].text, held[one].metadata) != (known[one].text, known[one].metadata):
            yield "text"
        elif score is not None and last is not None and _apart(score, last) <= TOLERANCE:
            yield "tie"
        elif score is not None and (last is None or score > last):
            yield "approximate"
        elif score is not None and _apart(score, expected[one]) <= TOLERANCE:
            yield "instead"
        else:
            yield "scores"


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else 1.0
    return abs(one - other) / max(abs(one), abs(other), 1e-12)
