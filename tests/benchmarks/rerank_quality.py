"""What reranking does to retrieval, on judged collections in BEIR layout.

    python -m tests.benchmarks.rerank_quality DATA [COLLECTION ...]

nDCG@10 of the default fusion, of its first 20 put in the cross-encoder's order, and of what `CrossEncoderRerank` makes
of them by default, for at most 200 queries a collection, drawn with a fixed seed; each gain with its 95 % interval. The
weights are ms-marco-MiniLM-L-12-v2's as they are packed (int8), made floats. Scores are kept under ~/.cache, so a run
that was cut off goes on where it was. Writes results/rerank_quality.json.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.quality import Ahead, drawn, load, ndcgs, run, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, VectorChannel, fuse
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.evaluation.remembered import remembered
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.protocols import Embedder, Scorer
from voicevault_retrievers.rerank import CrossEncoderRerank, OpenVinoScorer

CACHE = Path.home() / ".cache" / "voicevault-retrievers" / "scores.sqlite"
QUESTIONS = 200
DEPTH = 20
WITHOUT, READ, DEFAULT = "without reranking", "in the cross-encoder's order", "reranked, by default"
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch", "openvino")


class KeptScorer:
    """A scorer whose scores are kept in a file: a pair is read once, whatever becomes of the process."""

    def __init__(self, below: Scorer, recipe: str, path: Path = CACHE) -> None:
        self.below = below
        self.recipe = recipe
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path, timeout=60, check_same_thread=False)
        self._file.execute("CREATE TABLE IF NOT EXISTS scores (pair TEXT PRIMARY KEY, score REAL)")

    @property
    def name(self) -> str:
        return self.below.name

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """One score per passage, in their order."""
        pairs = [hashlib.sha256("\0".join((self.recipe, query, one)).encode()).hexdigest() for one in passages]
        known = {pair: self._known(pair) for pair in pairs}
        new = [(pair, text) for pair, text in dict(zip(pairs, passages, strict=True)).items() if known[pair] is None]
        if new:
            found = zip(new, self.below.score(query, [text for _, text in new]), strict=True)
            known |= {pair: float(score) for (pair, _), score in found}
            self._file.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", [(p, known[p]) for p, _ in new])
            self._file.commit()
        return [float(known[pair] or 0.0) for pair in pairs]

    def _known(self, pair: str) -> float | None:
        row = self._file.execute("SELECT score FROM scores WHERE pair = ?", (pair,)).fetchone()
        return None if row is None else float(row[0])

    def __repr__(self) -> str:
        return repr(self.below)


def measure(name: str, folder: Path, embedder: Embedder, scorer: Scorer) -> Iterator[Row]:
    """The rows of one collection."""
    chunks, judged = load(folder)
    questions = drawn(judged, QUESTIONS)
    ahead = Ahead(embedder, [question.text for question in judged])
    fused = remembered(fuse(bm25=BM25.from_chunks(chunks), dense=VectorChannel(vectors(chunks, embedder), ahead)))
    plain = ndcgs(fused, questions)
    systems = {
        READ: fused >> CrossEncoderRerank(scorer, depth=DEPTH, passages="start", blend=1, timeout=None),
        DEFAULT: fused >> CrossEncoderRerank(scorer, timeout=None),
    }
    yield Row(WITHOUT, name, "nDCG@10", float(np.mean(plain)))
    for system, channel in systems.items():
        found = ndcgs(channel, questions)
        compared = paired(plain, found)
        yield Row(system, name, "nDCG@10", float(np.mean(found)))
        yield Row(system, name, "gain", compared.difference)
        yield Row(system, name, "gain, lower end", compared.low)
        yield Row(system, name, "gain, upper end", compared.high)


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection and write its rows."""
    embedder = SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    scorer = KeptScorer(
        OpenVinoScorer("ms-marco-MiniLM-L-12-v2"), "ms-marco-MiniLM-L-12-v2, int8 made bf16, 512 tokens"
    )
    for name in names:
        rows = list(measure(name, data / name, embedder, scorer))
        write("rerank_quality", rows, PACKAGES, merge=True)
        sys.stdout.write("".join(f"{row}\n" for row in rows))
        sys.stdout.flush()


if __name__ == "__main__":
    run(main)
