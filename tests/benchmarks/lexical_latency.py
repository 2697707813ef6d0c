"""Single queries and batches: all systems in one process, in turns, over one collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.lexical_measure import Case, Figures, isolated, latencies, medians, ratios, seconds
from tests.benchmarks.lexical_systems import K, System, systems
from tests.benchmarks.results import Row

ROUNDS = 5
ROUNDS_OF_MANY = 3
WARM = 20


def measure(cases: Sequence[Case]) -> Iterator[list[Row]]:
    """The figures of each collection."""
    return (isolated(compare, case) for case in cases)


def compare(case: Case) -> list[Row]:
    """Medians over the rounds, and ours over each peer's of the same round."""
    collection = case.load()
    with systems(collection) as compared:
        _check(compared, one_analyzer=collection.analyzed is not None)
        gc.collect()
        gc.freeze()  # so that no collection of millions of objects falls on whoever happens to be measured
        rounds = _rounds(compared, ROUNDS if case.documents <= 100_000 else ROUNDS_OF_MANY)
    ours = [name for name in rounds if name.startswith("ours")]
    rows = [row for name, found in rounds.items() for row in _rows(name, collection.name, "", medians(found))]
    for name in ours:
        for peer in [other for other in rounds if other not in ours]:
            rows += _rows(name, collection.name, f" / {peer}", ratios(rounds[name], rounds[peer]))
    return rows


def _rows(system: str, case: str, suffix: str, figures: Figures) -> list[Row]:
    return [Row(system, case, metric + suffix, value) for metric, value in figures.items()]


def _rounds(compared: Sequence[System], count: int) -> dict[str, list[Figures]]:
    """The figures of each round by system; who begins changes from round to round."""
    found: dict[str, list[Figures]] = {system.name: [] for system in compared}
    for at in range(count):
        start = at % len(compared)
        for system in [*compared[start:], *compared[:start]]:
            found[system.name].append(_figures(system))
    return found


def _figures(system: System) -> Figures:
    """The batch is that of the best way."""
    single = latencies(system.search, system.queries)
    each = [seconds(way, system.queries) / len(system.queries) for way in system.ways]
    return {**single, "batch q/s": 1 / min(each, default=single["mean ms"] / 1e3)}


def _check(compared: Sequence[System], one_analyzer: bool) -> None:
    """Warm all up; ValueError where systems of one formula and one analyzer do not give the same scores."""
    for system in compared:
        for way in system.ways:
            way(system.queries[:WARM])
        system.search(system.queries[0])
    same = [system for system in compared if system.name.startswith(("bm25s", "ours") if one_analyzer else "ours")]
    for at in range(WARM):
        found = {system.name: _padded(system.scores(system.search(system.queries[at]))) for system in same}
        expected = found[same[-1].name]
        wrong = [name for name, scores in found.items() if not np.allclose(scores, expected, rtol=1e-4)]
        if wrong:
            raise ValueError(f"query {at}: {', '.join(wrong)} do not score as {same[-1].name} does: {found}")


def _padded(scores: Sequence[float]) -> NDArray[np.float64]:
    """With zeros for what was not found, which some systems give a place."""
    return np.concatenate([np.array(scores, dtype=np.float64), np.zeros(K - len(scores))])
