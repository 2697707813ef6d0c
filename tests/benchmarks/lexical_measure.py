"""How the lexical benchmark measures: each case in a process of its own, on one clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from tests.benchmarks.lexical_corpora import Collection, real, synthetic

P = ParamSpec("P")
T = TypeVar("T")
Figures = Mapping[str, float]


class Case(NamedTuple):
    """A collection by its recipe, which another process can follow."""

    documents: int
    data: Path | None = None

    def load(self) -> Collection:
        """Real text where there is a data folder, else synthetic documents."""
        return synthetic(self.documents) if self.data is None else real(self.documents, self.data)


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function gives in a fresh process; it is one that can be imported."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def seconds(function: Callable[..., object], *args: Any) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def latencies(function: Callable[[Any], object], queries: Sequence[Any]) -> dict[str, float]:
    """Milliseconds of one call per query."""
    return percentiles([seconds(function, query) for query in queries])


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Of seconds, in milliseconds."""
    p50, p99 = (np.percentile(times, [50, 99]) * 1e3).tolist()
    return {"p50 ms": p50, "p99 ms": p99, "mean ms": float(np.mean(times)) * 1e3}


def medians(rounds: Sequence[Figures]) -> dict[str, float]:
    """Of each figure, over the rounds."""
    return {metric: statistics.median(one[metric] for one in rounds) for metric in rounds[0]}


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures]) -> dict[str, float]:
    """Of each figure, the median over the rounds of ours / theirs."""
    both = list(zip(ours, theirs, strict=True))
    return {metric: statistics.median(one[metric] / other[metric] for one, other in both) for metric in ours[0]}
