"""What tuning from 40 labelled queries gains on other queries of the same collection.

    python -m tests.benchmarks.quality_tuning DATA [COLLECTION ...]

Of each collection 40 queries (half where there are fewer than 80) are tuned on, and at most 300 others measured, in
several draws. Writes results/quality_tuning.json: for each draw the gain of the preset that tuning gives (the default
where it abstains), with a 95 % interval and p, and that of what it would have chosen had it not abstained.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.quality import Ahead, load, run, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, VectorChannel
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.evaluation import Judged, ndcg
from voicevault_retrievers.evaluation.run_cache import RememberedBase
from voicevault_retrievers.evaluation.significance import Comparison, paired
from voicevault_retrievers.evaluation.tuning import LEVEL, Tuned, tune
from voicevault_retrievers.pipeline.presets import Preset

DEFAULT: Mapping[str, Any] = {"version": 1, "fusion": {"method": "adaptive_sum"}}
LABELLED = 40
MEASURED = 300
DRAWS = 3
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch")


class Base:
    """A collection's two channels, as a preset asks for them."""

    def __init__(self, folder: Path, embedder: Embedder) -> None:
        self.chunks, self.questions = load(folder)
        self.embedder = Ahead(embedder, [question.text for question in self.questions])

    def bm25(self, **options: Any) -> BM25:
        return BM25.from_chunks(self.chunks, **options)

    def dense(self, **options: Any) -> VectorChannel:
        return VectorChannel(vectors(self.chunks, self.embedder), self.embedder, **options)


def split(questions: Sequence[Judged], seed: int) -> tuple[list[Judged], list[Judged]]:
    """Those to tune on, and those to measure on."""
    order = np.random.default_rng(seed).permutation(len(questions)).tolist()
    labelled = LABELLED if len(questions) >= 2 * LABELLED else len(questions) // 2
    drawn = [questions[at] for at in order]
    return drawn[:labelled], drawn[labelled : labelled + MEASURED]


def measure(data: Mapping[str, Any], base: RememberedBase, questions: Sequence[Judged]) -> list[float]:
    """The nDCG@10 of each question."""
    pipeline = Preset.of(data).over(base)
    return [ndcg(pipeline.search(one.text, 10).ranking.ids, one.grades, 10) for one in questions]


def drawn(name: str, base: RememberedBase, questions: Sequence[Judged], seed: int) -> list[Row]:
    """The rows of one draw."""
    labelled, others = split(questions, seed)
    tuned = tune(DEFAULT, Preset.of, base, labelled)
    default = measure(DEFAULT, base, others)
    chosen = paired(default, measure(tuned.choice, base, others))
    gain = Comparison(0.0, 0.0, 0.0, 1.0) if tuned.abstained else chosen
    said(name, seed, tuned, chosen)
    case = f"{name}, draw {seed}"
    return [
        Row("default", case, "nDCG@10", float(np.mean(default))),
        Row("tuned", case, "abstained", float(tuned.abstained)),
        Row("tuned", case, "cross-validated gain", tuned.gain.difference),
        *(Row("tuned", case, metric, value) for metric, value in figures(gain)),
        *(Row("never abstaining", case, metric, value) for metric, value in figures(chosen)),
    ]


def figures(gain: Comparison) -> list[tuple[str, float]]:
    """The figures of a comparison by their names."""
    return [
        ("gain in nDCG@10", gain.difference),
        ("lower end", gain.low),
        ("upper end", gain.high),
        ("p", gain.p),
        ("significantly worse", float(gain.difference < 0 and gain.p < LEVEL)),
    ]


def said(name: str, seed: int, tuned: Tuned, chosen: Comparison) -> None:
    """One line on the terminal."""
    changed = [value for key, value in tuned.best.items() if value != tuned.default[key]]
    verdict = "abstained" if tuned.abstained else "tuned"
    sys.stdout.write(
        f"{name:18} {seed} {tuned.questions:3} {verdict:9} cross-validated {tuned.gain.difference:+.3f} "
        f"p {tuned.gain.p:.3f}; on others {chosen.difference:+.3f} [{chosen.low:+.3f}, {chosen.high:+.3f}] "
        f"p {chosen.p:.3f}; {'; '.join(changed)}\n"
    )
    sys.stdout.flush()


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection and write the rows."""
    embedder = SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    for name in names:
        base = Base(data / name, embedder)
        searched = RememberedBase(base)
        rows = [row for seed in range(DRAWS) for row in drawn(name, searched, base.questions, seed)]
        write("quality_tuning", [*rows, *means(name, rows)], PACKAGES, merge=True)


def means(name: str, rows: Sequence[Row]) -> list[Row]:
    """The means over the draws of what has one."""
    kinds = dict.fromkeys((row.system, row.metric) for row in rows if row.metric not in ("lower end", "upper end", "p"))
    return [
        Row(system, name, metric, float(np.mean([row.value for row in rows if (row.system, row.metric) == kind])))
        for kind in kinds
        for system, metric in (kind,)
    ]


if __name__ == "__main__":
    run(main)
