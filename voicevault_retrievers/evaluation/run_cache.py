"""Caches of searches: many settings of a pipeline are measured on the same questions with one search each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from voicevault_retrievers.core.channel import Channel, Rewriter
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Failure, Query, Ranking, Scan
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.cross_encoder import OPTIONS
from voicevault_retrievers.rerank.scorers import shared_scorer
from voicevault_retrievers.store.live_curation import CuratedBase, curations_of

R = TypeVar("R", bound="Remembering")


class RememberedBase:
    """A knowledge base whose channels search once per query and depth; `base.bm25(...)` returns such a channel."""

    def __init__(self, base: Any) -> None:  # any of the presets' bases
        self._base = base
        self._channels: dict[str, Channel] = {}

    @property
    def notes(self) -> Iterable[Failure]:
        """The base's own notes."""
        notes: Iterable[Failure] = getattr(self._base, "notes", ())
        return notes

    def curations(self) -> Sequence[CuratedBase]:
        """The base's own curations."""
        return curations_of(self._base)

    def __getattr__(self, name: str) -> Callable[..., Channel]:
        def channel(**options: Any) -> Channel:
            key = f"{name} {options!r}"
            if key not in self._channels:
                self._channels[key] = remembered(getattr(self._base, name)(**options))
            return self._channels[key]

        return channel


class Remembering(Channel):
    """A mixin for a channel that caches its rankings and scans; errors are not cached."""

    below: Channel
    _kept: dict[Hashable, Any]

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        key = self.name, query, k
        if key not in self._kept:
            found = yield from self.below.plan(query, k)
            self._kept[key] = replace(found, scan=found.scan and self.scan(query))
        ranking: Ranking = self._kept[key]
        return ranking

    def scan(self, query: Query, *_: Any) -> Scan | None:
        key = "scan", query
        if key not in self._kept:
            below = self.below.scan(query)
            self._kept[key] = None if below is None else _RememberedScan(below)
        scan: Scan | None = self._kept[key]
        return scan

    def named(self: R, name: str) -> R:
        twin = super().named(name)
        twin.below = self.below.named(name)
        return twin


class _RememberedScan:
    """A scan that caches the scores of each set of chunks."""

    def __init__(self, below: Scan) -> None:
        self.local = below.local
        self.source = getattr(below, "source", None)
        self._below = below
        self._kept: dict[tuple[str, ...], Mapping[str, float] | None] = {}

    @cached_property
    def coverage(self) -> float | None:
        return self._below.coverage

    def scores(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        key = tuple(ids)
        if key not in self._kept:
            self._kept[key] = self._below.scores(ids)
        return self._kept[key]


def remembered(channel: Channel) -> Channel:
    """A caching copy of a channel, of a subclass of its type, because stages and rewriters check that type."""
    if isinstance(channel, Remembering):
        return channel
    twin: Any = copy.copy(channel)
    twin.__class__ = type(f"Remembered{type(channel).__name__}", (Remembering, type(channel)), {})
    twin.below, twin._kept = channel, {}
    kept: Channel = twin
    return kept


class RememberedRewriter(Rewriter):
    """A rewriter that is bound to the first channel it is put before, and rewrites each query once."""

    def __init__(self, below: Rewriter) -> None:
        super().__init__()
        self.name = below.name
        self._below = below
        self._bound = False
        self._rewritten: dict[Query, tuple[Query, tuple[Failure, ...]]] = {}

    def reads_history(self) -> bool:
        return self._below.reads_history()

    def over(self, channel: Channel) -> RememberedRewriter:
        if not self._bound:
            self._below, self._bound = self._below.over(channel), True
        return self

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        if query not in self._rewritten:
            self._rewritten[query] = yield from self._below.plan(query)
        return self._rewritten[query]

    def rewrite(self, query: Query) -> Query:
        return self._below.rewrite(query)

    def __repr__(self) -> str:
        return repr(self._below)


class RememberedScorer:
    """A scorer that scores each pair of query and passage once."""

    def __init__(self, below: Scorer) -> None:
        self.below = below
        self._scores: dict[tuple[str, str], float] = {}

    @property
    def name(self) -> str:
        return self.below.name

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return one score per passage, in the passages' order."""
        new = [text for text in dict.fromkeys(passages) if (query, text) not in self._scores]
        if new:
            scores = self.below.score(query, new)
            self._scores.update({(query, text): float(score) for text, score in zip(new, scores, strict=True)})
        return [self._scores[query, text] for text in passages]

    def __repr__(self) -> str:
        return repr(self.below)


def read_once(stage: CrossEncoderRerank) -> CrossEncoderRerank:
    """The same reranker, without a timeout, scoring each pair once."""
    scorer = shared_scorer(stage.scorer) if isinstance(stage.scorer, str) else stage.scorer
    options = {**{name: getattr(stage, name) for name in OPTIONS}, "timeout": None}
    return CrossEncoderRerank(RememberedScorer(scorer), depth=stage.depth, name=stage.name, **options)
