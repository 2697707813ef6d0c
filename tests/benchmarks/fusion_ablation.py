"""What each part of the default fusion is worth: one change at a time.

    python -m tests.benchmarks.fusion_ablation DATA [COLLECTION ...]

Writes results/fusion_ablation.json: of each change the mean nDCG@10 over the collections, alone (at most 300 questions
of each), inside all of them together, and of questions in another language than the documents; in how many
collections the 95 % interval of the paired difference from the default lies wholly below 0, or above; and the worst of
the collections, against the best of BM25, vectors and RRF.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.benchmarks import filings, quality_bayesian, quality_lancedb
from tests.benchmarks.quality import Ahead, drawn, load, ndcgs, run, vectors
from tests.benchmarks.quality_mixed import base_of_all
from tests.benchmarks.quality_multilingual import ACROSS
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, RRF, AdaptiveSum, Channel, Chunk, VectorChannel, WeightedSum, fuse
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense import ExactVectors, SentenceTransformerEmbedder, UniversalSentenceEncoder
from voicevault_retrievers.evaluation import Judged
from voicevault_retrievers.evaluation.run_cache import remembered
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.fusion import Evidence, Method
from voicevault_retrievers.fusion import adaptive_sum as parts

ASKED = 300
RANKS = "RRF(60)"
PARTS = ("bm25", "dense", RANKS)
ALONE, INSIDE, OTHER = "alone", "inside all", "in another language"


@dataclass(frozen=True)
class Changed(AdaptiveSum):
    """The default with some of its factors left out: 1 in their place."""

    left_out: tuple[str, ...] = ()

    def shares(self, found: Mapping[str, Evidence]) -> dict[str, float]:
        def factor(name: str, value: float) -> float:
            return 1.0 if name in self.left_out else parts._at_least(value)

        known = 1.0 if "coverage" in self.left_out else None
        seen = {name: replace(one, coverage=known or one.coverage) for name, one in found.items()}
        shares: dict[str, float] = {}
        for name, one in seen.items():
            if one.kind == "semantic":
                height, confirmed = parts._height(one), parts._confirmed(one, seen)
                shares[name] = self.semantic * factor("height", height) * factor("confirmed", confirmed)
            else:
                out, understood = parts._standing_out(one), parts._understood(one) ** 2
                shares[name] = factor("standing out", out) * factor("coverage", understood)
        return shares


DEFAULT = "the default"
TRIED: Mapping[str, Method] = {
    DEFAULT: AdaptiveSum(),
    "without: the best keyword hit above the tenth": Changed(left_out=("standing out",)),
    "without: keywords confirm vectors": Changed(semantic=1.5, left_out=("confirmed",)),
    "without: the nearest above the lowest": Changed(semantic=1.5, left_out=("height",)),
    "without: coverage of the query": Changed(left_out=("coverage",)),
    "semantic=2": AdaptiveSum(semantic=2),
    "semantic=4": AdaptiveSum(semantic=4),
    "z-sum of the lists": WeightedSum("zscore"),
    "min-max sum of the lists": WeightedSum("min_max"),
    RANKS: RRF(),
}


def measure(
    chunks: Sequence[Chunk], index: ExactVectors, ahead: Ahead, asked: Sequence[Judged]
) -> dict[str, list[float]]:
    """The nDCG@10 of each question by each, by LanceDB's rerankers, and by the parts alone."""
    channels: dict[str, Channel] = {
        "bm25": remembered(BM25.from_chunks(chunks)),
        "dense": remembered(VectorChannel(index, ahead)),
    }
    found = {name: ndcgs(channel, asked) for name, channel in channels.items()}
    found |= {name: ndcgs(fuse(channels, method=method), asked) for name, method in TRIED.items()}
    return found | quality_lancedb.ndcgs(channels["bm25"], channels["dense"], asked)


def told(setting: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    """What each change does over all collections in a setting."""
    if not found:
        return
    for name in (*TRIED, *quality_lancedb.RERANKERS, quality_bayesian.BALANCED, quality_bayesian.CONJUNCTION):
        if not all(name in own for own in found.values()):
            continue  # it looks at every chunk for every question, which is too slow over all collections at once
        means = [float(np.mean(own[name])) for own in found.values()]
        yield Row(name, setting, "nDCG@10", float(np.mean(means)))
        least = min(
            np.mean(own[name]) - max(np.mean(own[p]) for p in ("bm25", "dense", "RRF(60)")) for own in found.values()
        )
        yield Row(name, setting, "worst, against the best part", float(least))
        compared = [paired(list(own[DEFAULT]), list(own[name])) for own in found.values()]
        yield Row(name, setting, "collections lost", sum(one.high < 0 for one in compared))
        yield Row(name, setting, "collections won", sum(one.low > 0 for one in compared))


def _alone(chunks: Sequence[Chunk], questions: Sequence[Judged], embedder: Embedder) -> dict[str, list[float]]:
    asked, index = drawn(questions, ASKED), vectors(chunks, embedder)
    ahead = Ahead(embedder, [one.text for one in questions])
    return measure(chunks, index, ahead, asked) | quality_bayesian.ndcgs(chunks, index, ahead, asked)


def main(data: Path, names: Sequence[str]) -> None:
    """Measure and write the rows."""
    english, many = SentenceTransformerEmbedder("all-MiniLM-L6-v2"), UniversalSentenceEncoder()
    alone = {name: _alone(*load(data / name), english) for name in names}
    alone["filings"] = _alone(*filings.collection(), english)
    every, index, ahead, asked = base_of_all(data, names, english)
    inside: dict[str, dict[str, list[float]]] = {}
    together = measure(every, index, ahead, [one for some in asked.values() for one in some])
    start = 0
    for name, questions in asked.items():
        inside[name] = {system: values[start : start + len(questions)] for system, values in together.items()}
        start += len(questions)
    other = {
        f"{of} over {over}": _alone(load(data / over)[0], load(data / of)[1], many)
        for of, over in ACROSS
        if {of, over} <= set(names)
    }
    rows = [row for case, found in ((ALONE, alone), (INSIDE, inside), (OTHER, other)) for row in told(case, found)]
    sys.stdout.write("".join(f"{row}\n" for row in rows))
    packages = ["voicevault-retrievers", "numpy", "sentence-transformers", "bayesian-bm25", "lancedb"]
    write("fusion_ablation", rows, packages)


if __name__ == "__main__":
    run(main)
