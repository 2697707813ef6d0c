"""What the benchmarks of reranking share: a collection's default fusion, its questions, and scores that are kept."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.benchmarks.quality import Ahead, drawn, load, vectors
from voicevault_retrievers import BM25, Channel, VectorChannel, fuse
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.evaluation import Judged
from voicevault_retrievers.evaluation.run_cache import remembered
from voicevault_retrievers.rerank import OpenVinoScorer

CACHE = Path.home() / ".cache" / "voicevault-retrievers" / "scores.sqlite"
MODEL = "ms-marco-MiniLM-L-12-v2"
RECIPE = f"{MODEL}, int8 made bf16, 512 tokens"
DRAWN = 200
QUESTIONS = 100
DEVELOPMENT = 60
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


@dataclass(frozen=True)
class Collection:
    """What is searched, and what is asked: `development` questions are for choosing, `questions` for reporting."""

    name: str
    fused: Channel
    questions: list[Judged]
    development: list[Judged]


def collection(name: str, folder: Path, embedder: SentenceTransformerEmbedder) -> Collection:
    """The default fusion over a collection, at most `QUESTIONS` questions, and `DEVELOPMENT` others if there are."""
    chunks, judged = load(folder)
    ahead = Ahead(embedder, [question.text for question in judged])
    fused = remembered(fuse(bm25=BM25.from_chunks(chunks), dense=VectorChannel(vectors(chunks, embedder), ahead)))
    questions = drawn(judged, DRAWN)
    taken = {question.id for question in questions}
    others = [question for question in judged if question.id not in taken]
    return Collection(name, fused, questions[:QUESTIONS], Random(1).sample(others, min(DEVELOPMENT, len(others))))


def embedder() -> SentenceTransformerEmbedder:
    """What all collections are embedded with."""
    return SentenceTransformerEmbedder("all-MiniLM-L6-v2")


def scorer() -> KeptScorer:
    """The cross-encoder: its packed int8 weights made floats, computed as OpenVINO does by default."""
    return KeptScorer(OpenVinoScorer(MODEL), RECIPE)
