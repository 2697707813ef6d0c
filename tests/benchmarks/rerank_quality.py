"""What reranking does to retrieval, on judged collections in BEIR layout.

    python -m tests.benchmarks.rerank_quality DATA [COLLECTION ...]

nDCG@10 of the default fusion, of its first 20 put in the cross-encoder's order, and of what `CrossEncoderRerank` makes
of them by default, and with `sure`, for at most 100 queries a collection, drawn with a fixed seed; each gain with its
95 % interval. The weights are ms-marco-MiniLM-L-12-v2's as they are packed (int8), made floats. Scores are kept under
~/.cache, so a run that was cut off goes on where it was. Writes results/rerank_quality.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.quality import ndcgs, run
from tests.benchmarks.reranking import PACKAGES, Collection, collection, embedder, scorer
from tests.benchmarks.results import Row, write
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.rerank import CrossEncoderRerank

DEPTH = 20
WITHOUT, READ, DEFAULT = "without reranking", "in the cross-encoder's order", "reranked, by default"
SURE, LEAD = "reranked, but where the first is sure", 4.0


def measure(given: Collection, reader: Scorer) -> Iterator[Row]:
    """The rows of one collection."""
    plain = ndcgs(given.fused, given.questions)
    systems = {
        READ: given.fused >> CrossEncoderRerank(reader, depth=DEPTH, blend=1, timeout=None),
        DEFAULT: given.fused >> CrossEncoderRerank(reader, timeout=None),
        SURE: given.fused >> CrossEncoderRerank(reader, timeout=None, sure=LEAD),
    }
    sure = [bool(systems[SURE].search(one.text, 10).errors) for one in given.questions]
    yield Row(SURE, given.name, "share of questions", float(np.mean(sure)))
    yield Row(WITHOUT, given.name, "nDCG@10", float(np.mean(plain)))
    for system, channel in systems.items():
        found = ndcgs(channel, given.questions)
        compared = paired(plain, found)
        yield Row(system, given.name, "nDCG@10", float(np.mean(found)))
        yield Row(system, given.name, "gain", compared.difference)
        yield Row(system, given.name, "gain, lower end", compared.low)
        yield Row(system, given.name, "gain, upper end", compared.high)


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection and write its rows."""
    reads, sense = scorer(), embedder()
    for name in names:
        rows = list(measure(collection(name, data / name, sense), reads))
        write("rerank_quality", rows, PACKAGES, merge=True)
        sys.stdout.write("".join(f"{row}\n" for row in rows))
        sys.stdout.flush()


if __name__ == "__main__":
    run(main)
