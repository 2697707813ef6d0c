"""A whole search with reranking, as the frameworks do it and as this package can: seconds, and nDCG@10.

    python -m tests.benchmarks.rerank_depth DATA

The frameworks' way: the first 50 hits whole (at most 512 tokens with the question) through sentence-transformers, in
the cross-encoder's order. Ours, by default and in haste: `HASTE`. Searches take turns, and the seconds are medians over
`TIMED` questions, the first search included; quality is over `JUDGED` questions, with scores that are kept. Writes
results/rerank_depth.json.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.float_weights import write_folder
from tests.benchmarks.quality import ndcgs, run
from tests.benchmarks.reranking import PACKAGES, Collection, collection, embedder, scorer
from tests.benchmarks.results import Row, write
from voicevault_retrievers import Channel
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank, OpenVinoScorer

COLLECTIONS = ("scifact", "mmlongbench-pages")
PEER = "first 50 whole, as the frameworks do"
DEFAULT, IN_HASTE = "ours, by default", "ours, in haste"
HASTE: Mapping[str, Any] = {"depth": 20, "max_chars": 1000, "top_k": 5, "certainty": 0.8}
TIMED = 9
JUDGED = 60


def stages(reads: Scorer, peer: Scorer) -> dict[str, CrossEncoderRerank]:
    """Each way to rerank, through these scorers."""
    return {
        PEER: CrossEncoderRerank(peer, depth=50, max_chars=10_000, passages="start", blend=1, timeout=None),
        DEFAULT: CrossEncoderRerank(reads, timeout=None),
        IN_HASTE: CrossEncoderRerank(reads, timeout=None, **HASTE),
    }


def seconds(channels: Mapping[str, Channel], given: Collection) -> dict[str, list[float]]:
    """The seconds of each search; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in channels}
    for question in given.questions[:TIMED]:
        for name, channel in channels.items():
            began = time.perf_counter()
            channel.search(question.text, 10)
            found[name].append(time.perf_counter() - began)
    return found


def speed(given: Collection, peer: Scorer) -> list[Row]:
    """The median seconds of each, and how many times less than the frameworks'."""
    reads = OpenVinoScorer()
    for one in (reads, peer):
        one.score("warm up", ["warm up"])
    took = seconds({name: given.fused >> stage for name, stage in stages(reads, peer).items()}, given)
    rows: list[Row] = []
    for name, times in took.items():
        ratio = median(theirs / own for theirs, own in zip(took[PEER], times, strict=True))
        rows += [Row(name, given.name, "seconds", median(times)), Row(name, given.name, "times faster", ratio)]
    return rows


def quality(given: Collection, reads: Scorer) -> list[Row]:
    """nDCG@10 of each, and the difference from the frameworks' way with its interval."""
    every = stages(reads, reads)
    found = {name: ndcgs(given.fused >> stage, given.questions[:JUDGED]) for name, stage in every.items()}
    rows: list[Row] = []
    for name, values in found.items():
        compared = paired(found[PEER], values)
        rows += [
            Row(name, given.name, "nDCG@10", float(np.mean(values))),
            Row(name, given.name, "difference", compared.difference),
            Row(name, given.name, "difference, lower end", compared.low),
            Row(name, given.name, "difference, upper end", compared.high),
        ]
    return rows


def peer_scorer(folder: Path) -> Scorer:
    """sentence-transformers as it comes."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), local_files_only=True)
    score: Callable[[str, Sequence[str]], list[float]] = lambda query, passages: [  # noqa: E731
        float(one) for one in model.predict([(query, passage) for passage in passages])
    ]
    return CallableScorer(score, name="sentence-transformers")


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection and write its rows."""
    sense, reads = embedder(), scorer()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as kept:
        peer = peer_scorer(write_folder(Path(kept)))
        for name in (name for name in names if name in COLLECTIONS):
            given = collection(name, data / name, sense)
            rows += [*speed(given, peer), *quality(given, reads)]
            sys.stdout.write("".join(f"{row}\n" for row in rows if row.case == name))
            sys.stdout.flush()
    write("rerank_depth", rows, PACKAGES)


if __name__ == "__main__":
    run(main)
