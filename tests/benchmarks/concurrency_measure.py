"""What the benchmarks of searches at once share: retrievers that answer alike, searched in turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.lexical_measure import Figures, medians, ratios, seconds
from tests.benchmarks.results import Row
from voicevault_retrievers.rerank import CallableScorer

SEARCHES, ALONE, ROUNDS, WAIT = 50, 10, 5, 0.02
WORDS = [f"word{at}" for at in range(500)]


class Searched(NamedTuple):
    """A system under measurement: one search, and the same awaited."""

    search: Callable[[str], Any]
    asearch: Callable[[str], Awaitable[Any]]


def by_length(wait: float) -> CallableScorer:
    """Holds a thread for a while, and puts what is longer first."""

    def score(query: str, passages: Sequence[str]) -> list[float]:
        time.sleep(wait)
        return [float(len(passage)) for passage in passages]

    return CallableScorer(score, name="by length")


def texts(count: int, words: int, *, seed: int = 7) -> list[str]:
    """Texts of words drawn at random."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, words)) for _ in range(count)]


def compared(case: str, systems: Mapping[str, Searched]) -> Iterator[Row]:
    """Medians over the rounds, and those of the first system's figures over each other's of the same round.

    No query is asked twice of a system: scores and vectors that it kept would stand in for the work.
    """
    rounds: dict[str, list[Figures]] = {name: [] for name in systems}
    for at in range(ROUNDS + 1):
        queries = texts(SEARCHES + ALONE, 3, seed=100 + at)
        for name, searched in systems.items():
            figures = _measured(searched, queries)
            if at:  # the first round warms up
                rounds[name].append(figures)
    ours, *peers = systems
    for name, found in rounds.items():
        yield from _rows(name, case, medians(found))
    for peer in peers:
        yield from _rows(f"{ours} / {peer}", case, ratios(rounds[ours], rounds[peer]))


def _measured(searched: Searched, queries: Sequence[str]) -> dict[str, float]:
    async def at_once() -> None:
        await asyncio.gather(*(searched.asearch(query) for query in queries[:SEARCHES]))

    def one_by_one() -> None:
        for query in queries[SEARCHES:]:
            searched.search(query)

    return {
        f"searches/s, {SEARCHES} at once": SEARCHES / seconds(lambda: asyncio.run(at_once())),
        "ms, one alone": seconds(one_by_one) / ALONE * 1e3,
    }


def _rows(system: str, case: str, figures: Figures) -> Iterator[Row]:
    return (Row(system, case, metric, value) for metric, value in figures.items())
