"""Parts that tests share."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from voicevault_retrievers.cli.environment import satisfies
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.execution import run
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.types import ChannelKind, Chunk, Hit, KnownScores, Query, Ranking, Variant


def examples(share: float) -> settings:
    """As many examples as this part of the profile's; HYPOTHESIS_PROFILE=nightly draws 25 times as many."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


def module_at(path: Path) -> ModuleType:
    """The module that a file is, which is in no package."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:  # dataclasses look up the module that they are in
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def older(name: str, than: str) -> bool:
    """Whether an installed distribution is older than a version."""
    return satisfies(version(name), f"<{than}")


BERLIN = "How many people live in Berlin?"
PASSAGES = [
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "Berlin is well known for its museums.",
    "New York City is famous for the Metropolitan Museum of Art.",
]


class Adding(Stage):
    """Adds a chunk that nobody found, whoever asks."""

    name = "adding"

    def __init__(self, chunk: Chunk) -> None:
        super().__init__()
        self.chunk = chunk

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        return replace(ranking, hits=(*ranking.hits, Hit(self.chunk)))


class HashEmbedder:
    """Rows of length 1 from hashed words: texts that share words are near. Stands in for a model in unit tests."""

    def __init__(self, dimension: int = 16, name: str = "hash") -> None:
        self.dimension = dimension
        self.name = name

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.dimension}"

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.array([self._row(text) for text in texts], dtype=np.float32).reshape(len(texts), self.dimension)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.embed_documents(texts)

    def _row(self, text: str) -> NDArray[np.float64]:
        total = np.full(self.dimension, 0.01)
        for word in text.casefold().split():
            total += _direction(word, self.dimension)
        return total

    def __repr__(self) -> str:
        return f"HashEmbedder({self.dimension})"


@lru_cache(maxsize=10_000)
def _direction(word: str, dimension: int) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big")
    return np.random.default_rng(seed).standard_normal(dimension)


class Counting(HashEmbedder):
    """Keeps the texts of documents, and of queries, that it embeds, and how many queries at a time."""

    def __init__(self, dimension: int = 16) -> None:
        super().__init__(dimension)
        self.texts: list[str] = []
        self.asked: list[str] = []
        self.batches: list[int] = []

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts.extend(texts)
        return super().embed_documents(texts)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked.extend(texts)
        self.batches.append(len(texts))
        return super().embed_documents(texts)


class Says:
    """A language model: gives its answers one after another, the last one for ever, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.threads: list[threading.Thread] = []

    def complete(self, prompt: str) -> Any:
        self.asked.append(prompt)
        self.threads.append(threading.current_thread())
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class AsyncSays(Says):
    """Has an async call too, which is the only one that an async search may use."""

    async def acomplete(self, prompt: str) -> Any:
        await asyncio.sleep(0)
        return self.complete(prompt)


class Awaited(AsyncSays):
    """Can be awaited, and only so."""

    async def acomplete(self, prompt: str) -> Any:
        await asyncio.sleep(0)
        return super().complete(prompt)

    def complete(self, prompt: str) -> Any:
        raise AssertionError("it is to be awaited")


def edits_between(a: str, b: str) -> int:
    """The number of insertions, deletions, replacements and swaps of neighbours, no letter edited twice."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, above, row = row, before, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]


def texts_of(query: Query) -> list[str]:
    """The text of a query and those of its variants."""
    return [query.text, *(variant.text for variant in query.variants)]


def ranking_of(*texts: str) -> Ranking:
    """Hits with these texts, in this order."""
    return Ranking(tuple(Hit(Chunk(str(at), text), -float(at)) for at, text in enumerate(texts)))


class GivenChannel(LeafChannel):
    """Finds these hits, in that order, whatever is asked."""

    def __init__(self, hits: Iterable[Hit], *, name: str = "given", kind: ChannelKind = "keyword") -> None:
        super().__init__(name, kind)
        self.hits = tuple(hits)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [[Match(hit.chunk, hit.score) for hit in self.hits[:k]] for _ in wordings]


class ListChannel(LeafChannel):
    """Finds what it was given, in that order, whatever is asked."""

    def __init__(
        self, found: Sequence[tuple[str, float | None]], *, name: str = "list", kind: ChannelKind = "semantic",
        timeout: float | None = None, metadata: dict[str, dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, kind, timeout=timeout)
        self.found = found
        self.metadata = metadata or {}
        self.asked: list[tuple[str, int]] = []

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.asked.extend((wording.text, k) for wording in wordings)
        matches = [
            Match(Chunk(chunk_id, chunk_id, metadata=self.metadata.get(chunk_id, {})), score)
            for chunk_id, score in self.found[:k]
        ]
        return [matches for _ in wordings]


TRACED_PARTS = {
    "rewriter expansion": 1,
    "channel bm25": 1,
    "channel dense": 1,
    "channel child": 3,
    "fusion fused": 1,
    "stage rerank": 1,
    "stage page_cap": 1,
}
"""What traces show of the search of the frameworks' trace tests, and how often; their child is asked per wording."""


class Careless(LeafChannel):
    """Forgets the rights of a search."""

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        ours, theirs = Chunk("ours", "pump a", metadata={"of": "a"}), Chunk("secret", "pump b", metadata={"of": "b"})
        return [[Match(theirs, 2.0), Match(ours, 1.0)] for _ in wordings]


class CarelessPlan(Channel):
    """A channel that makes no call and forgets the rights of a search."""

    name, kind = "plan", "semantic"

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        yield from ()
        return Ranking((Hit(Chunk("secret", "pump b", metadata={"of": "b"}), 1.0),))


class KnowingChannel(ListChannel):
    """A list that knows the scores of others too, or, where these are None, of nothing; and its query's coverage."""

    def __init__(
        self, found: Sequence[tuple[str, float | None]], others: Mapping[str, float] | None, *,
        coverage: float | None = None, name: str = "list", kind: ChannelKind = "semantic",
    ) -> None:  # fmt: skip
        super().__init__(found, name=name, kind=kind)
        own = {chunk_id: score for chunk_id, score in found if score is not None}
        self.known, self.covered = None if others is None else {**others, **own}, coverage

    def scan(self, query: Query, found: object = ()) -> KnownScores:
        return KnownScores(self._scores, self.covered)

    def _scores(self, ids: Iterable[str]) -> Mapping[str, float] | None:
        return None if self.known is None else {key: self.known[key] for key in ids if key in self.known}


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do; the limit is for a test that fails."""
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to hold")


def late_when(began: threading.Event, patch: pytest.MonkeyPatch, *too: threading.Event) -> None:
    """Deadlines pass when an event, or each of several, is set and never before, however slow the machine is."""
    now = time.monotonic()
    events = (began, *too)
    late = SimpleNamespace(monotonic=lambda: now + 3600 * all(event.is_set() for event in events))
    patch.setattr(run, "time", late)


def late_after(name: str, patch: pytest.MonkeyPatch, *too: threading.Event) -> None:
    """Deadlines pass when the outcome of a call of this name has arrived, and `too` are set, and never before."""
    arrived, finish = threading.Event(), run.Run.finish

    def finished(self: run.Run, ticket: run.Ticket, outcome: Any) -> None:
        finish(self, ticket, outcome)
        if ticket.call.name == name:
            arrived.set()

    patch.setattr(run.Run, "finish", finished)
    late_when(arrived, patch, *too)


class HeldChannel(ListChannel):
    """Answers when it is let go."""

    def __init__(self, *, name: str = "held", timeout: float | None = None) -> None:
        super().__init__([("a", 1.0)], name=name, timeout=timeout)
        self.began, self.go = threading.Event(), threading.Event()

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        self.began.set()
        self.go.wait(60)
        return super().find(query, wordings, k)


class FailingChannel(LeafChannel):
    """Raises whenever it is asked."""

    def __init__(self, error: Exception, *, name: str = "failing") -> None:
        super().__init__(name, "semantic")
        self.error = error

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        raise self.error


class Asked:
    """A model that is a function: it answers in turn, and notes what it was asked and in which thread."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.prompts: list[str] = []
        self.threads: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.threads.append(threading.current_thread().name)
        return self.answers[(len(self.prompts) - 1) % len(self.answers)]


def no_model(prompt: str) -> str:
    raise RuntimeError("no model")


@contextmanager
def uncollected() -> Iterator[None]:
    """Garbage is collected before, and not within."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
