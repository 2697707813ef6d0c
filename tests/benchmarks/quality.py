"""Retrieval quality on judged collections in BEIR layout: BM25, vectors, and both fused by rank.

    python -m tests.benchmarks.quality DATA [COLLECTION ...]

Writes results/quality.json. Embeddings are kept under ~/.cache, since they take minutes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, RRF, Channel, Chunk, VectorChannel, fuse
from voicevault_retrievers.dense import ExactVectors, SentenceTransformerEmbedder, VectorPart
from voicevault_retrievers.evaluation import Judged, ndcg, recall
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.rows import Rows

COLLECTIONS = ("scifact",)
CACHE = Path.home() / ".cache" / "voicevault-retrievers" / "embeddings"
DEPTH = 100


def load(folder: Path, split: str = "test") -> tuple[list[Chunk], list[Judged]]:
    """A collection's documents (title and text as one) and its judged queries."""
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    chunks = [Chunk(doc["_id"], f"{doc.get('title') or ''} {doc['text']}".strip()) for doc in corpus]
    grades: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8", newline="") as lines:
        for query, document, grade in list(csv.reader(lines, delimiter="\t"))[1:]:
            grades.setdefault(query, {})[document] = int(float(grade))
    asked = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    return chunks, [Judged(one["_id"], one["text"], grades[one["_id"]]) for one in asked if one["_id"] in grades]


def vectors(chunks: Sequence[Chunk], embedder: Embedder) -> ExactVectors:
    """The embeddings of chunks, from the cache where they are there."""
    rows = Rows.of(chunks)
    key = hashlib.sha256("\0".join([embedder.fingerprint, *(chunk.text for chunk in rows.chunks)]).encode()).hexdigest()
    path = CACHE / f"{key[:32]}.npy"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(path, embedder.embed_documents([chunk.text for chunk in rows.chunks]))
    return ExactVectors([VectorPart(rows, np.load(path))], embedder.dimension)


def measure(name: str, system: str, channel: Channel, questions: Sequence[Judged]) -> list[Row]:
    """nDCG@10 and recall@100 of a channel."""
    runs = [(channel.search(question.text, DEPTH).ids, question.grades) for question in questions]
    return [
        Row(system, name, "nDCG@10", sum(ndcg(ids, grades, 10) for ids, grades in runs) / len(runs)),
        Row(system, name, "recall@100", sum(recall(ids, grades, 100) for ids, grades in runs) / len(runs)),
    ]


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection and write the rows."""
    embedder = SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    rows: list[Row] = []
    for name in names:
        chunks, questions = load(data / name)
        bm25 = BM25.from_chunks(chunks)
        dense = VectorChannel(vectors(chunks, embedder), embedder)
        hybrid = fuse(bm25=bm25, dense=dense, method=RRF(k=60))
        for system, channel in (("BM25", bm25), ("all-MiniLM-L6-v2", dense), ("RRF(60)", hybrid)):
            rows += measure(name, system, channel, questions)
            sys.stdout.write(f"{rows[-2]}\n")
    write("quality", rows, ["voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch"])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    if not (folder / COLLECTIONS[0]).is_dir():
        sys.stdout.write(f"skipped: no collections in BEIR layout in {folder or 'the folder given'}\n")
    else:
        main(folder, sys.argv[2:] or COLLECTIONS)
