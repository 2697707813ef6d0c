"""The own time of each fusion method, at 2 and at 4 channels of 100 hits.

    python -m tests.benchmarks.fusion DATA

Writes results/fusion.json. Lists are those of real questions; what channels take for them, and for the exact scores and
spreads that some methods go by, is no part of it. A query's time is the median of several runs, and the figure is the
median, and the 95th percentile, over queries.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tests.benchmarks.quality import load, pooled, vectors
from tests.benchmarks.results import Row, write
from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, Channel, Query, VectorChannel, fuse
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.fusion import METHODS, Evidence, Fused, Pool, method_named
from voicevault_retrievers.fusion.fuse import DEPTH

COLLECTION = "scifact"
ASKED, RUNS, HITS = 50, 7, 10


def evidence(channels: Mapping[str, Channel], texts: Sequence[str]) -> list[tuple[Pool, Mapping[str, Evidence]]]:
    """What the channels say of each question, for those of which each has all the hits that it is asked for."""
    asked = [pooled(channels, Query(text), DEPTH) for text in texts]
    return [one for one in asked if all(len(ranking) == DEPTH for ranking in one[0].rankings.values())][:ASKED]


def microseconds(function: Callable[[], object]) -> float:
    """The median of several runs."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return median(times) * 1e6


def measure(fused: Fused, name: str, asked: Sequence[tuple[Pool, Mapping[str, Evidence]]]) -> Iterator[Row]:
    """The time of the method alone, and of all that is done once channels have answered."""
    case, weights = f"{len(fused.channels)} channels of {DEPTH}", fused.weights
    alone = [microseconds(partial(fused.method.contributions, found, weights)) for _, found in asked]
    whole = [microseconds(partial(fused._fuse, pool, found, weights, HITS)) for pool, found in asked]
    yield Row(name, case, "contributions p50 us", median(alone))
    yield Row(name, case, "p50 us", median(whole))
    yield Row(name, case, "p95 us", float(np.percentile(whole, 95)))


def main(folder: Path) -> None:
    """Measure each method and write the rows."""
    chunks, questions = load(folder)
    embedder = SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    channels: dict[str, Channel] = {
        "bm25": BM25.from_chunks(chunks),
        "dense": VectorChannel(vectors(chunks, embedder), embedder),
        "okapi": BM25.from_chunks(chunks, formula="okapi"),
        "words": VectorChannel.from_chunks(chunks, HashEmbedder(64)),
    }
    texts = [question.text for question in questions[: 2 * ASKED]]
    rows: list[Row] = []
    for names in (("bm25", "dense"), tuple(channels)):
        some = {name: channels[name] for name in names}
        asked = evidence(some, texts)
        for method in [name for name in METHODS if name != "engine"]:
            rows += measure(fuse(some, method=method_named(method, {})), method, asked)
            sys.stdout.write(f"{rows[-2]}\n")
    write("fusion", rows, ["voicevault-retrievers", "numpy"])


if __name__ == "__main__":
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path()) / COLLECTION
    if folder.is_dir():
        main(folder)
    else:
        sys.stdout.write(f"skipped: there is no collection {folder}\n")
