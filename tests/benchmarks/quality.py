"""Retrieval quality on judged collections in BEIR layout, of each channel, each fusion, and the frameworks' own.

    python -m tests.benchmarks.quality DATA [COLLECTION ...]

Writes results/quality.json: nDCG@10 of every system on every collection, of ours with a 95 % interval of its difference
from the best of its parts (BM25, vectors, RRF over both), each collection searched inside all of them together, and
among a hundred times as many documents that share no word with its queries (see `quality_mixed`). The same on reports
that are much alike (`filings`), which are no part of the mean. The best fixed convex combination is chosen in
hindsight, by these very questions: no system that is used could be. Embeddings are kept under ~/.cache.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, RRF, Channel, Chunk, Convex, Query, VectorChannel, WeightedSum, fuse
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.dense import ExactVectors, SentenceTransformerEmbedder, VectorPart
from voicevault_retrievers.evaluation import Judged, ndcg
from voicevault_retrievers.evaluation.run_cache import remembered
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.fusion import Evidence, Method, Pool

COLLECTIONS = (
    "scifact", "cranfield", "cisi", "covidqa-passages", "aila2019-statutes", "mmlongbench-pages", "cosqa",
    "xquad-en", "xquad-de", "xquad-zh", "xquad-ar", "xquad-r-en", "xquad-r-es", "xquad-r-tr",
)  # fmt: skip
CACHE = Path.home() / ".cache" / "voicevault-retrievers" / "embeddings"
PACKAGES = ["voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch"]
DEPTH = 10
FETCHED = 100
ALPHAS = [at / 10 for at in range(11)]
WORDS, SENSE = "BM25", "all-MiniLM-L6-v2"
PLAIN, MIN_MAX = "z-sum of the lists", "min-max sum of the lists"
RANKS = "RRF(60)"
PARTS = (WORDS, SENSE, RANKS)
HINDSIGHT = "best fixed convex, in hindsight"
OURS = "ours, by default"


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


def drawn(questions: Sequence[Judged], most: int) -> list[Judged]:
    """At most so many questions, the same each time."""
    return Random(0).sample(list(questions), most) if len(questions) > most else list(questions)


def ndcgs(channel: Channel, questions: Sequence[Judged]) -> list[float]:
    """nDCG@10 of each question."""
    return [ndcg(channel.search(question.text, DEPTH).ids, question.grades, DEPTH) for question in questions]


def vectors(chunks: Sequence[Chunk], embedder: Embedder) -> ExactVectors:
    """The embeddings of chunks, from the cache where they are there."""
    rows = Rows.of(chunks)
    matrix = embedded([chunk.indexed_text for chunk in rows.chunks], embedder)
    return ExactVectors([VectorPart(rows, matrix)], embedder.dimension)


def embedded(texts: Sequence[str], embedder: Embedder, *, queries: bool = False) -> NDArray[np.float32]:
    """The embeddings of texts, from the cache where they are there."""
    kind = ["queries"] if queries else []
    path = CACHE / f"{hashlib.sha256(chr(0).join([embedder.fingerprint, *kind, *texts]).encode()).hexdigest()[:32]}.npy"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(path, embedder.embed_queries(texts) if queries else embedder.embed_documents(texts))
    rows: NDArray[np.float32] = np.load(path)
    return rows


class Ahead:
    """An embedder whose questions are embedded at once, and kept."""

    def __init__(self, embedder: Embedder, texts: Sequence[str]) -> None:
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self.embed_documents = embedder.embed_documents
        distinct = list(dict.fromkeys(texts))
        self.rows = dict(zip(distinct, embedded(distinct, embedder, queries=True), strict=True))

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Those of the questions."""
        return np.stack([self.rows[text] for text in texts])


def systems(chunks: Sequence[Chunk], index: ExactVectors, embedder: Embedder) -> dict[str, Channel]:
    """Each channel and each fusion of them; every search of a channel is made once."""
    words = remembered(BM25.from_chunks(chunks))
    sense = remembered(VectorChannel(index, embedder))
    both = {"bm25": words, "dense": sense}
    return {
        WORDS: words,
        SENSE: sense,
        RANKS: fuse(both, method=RRF()),
        PLAIN: fuse(both, method=WeightedSum("zscore")),
        MIN_MAX: fuse(both, method=WeightedSum("min_max")),
        OURS: fuse(both),
    }


def gains(channels: Mapping[str, Channel], questions: Sequence[Judged]) -> dict[str, list[float]]:
    """Of each system the nDCG@10 of every question; of all convex combinations those of the best."""
    found: dict[str, list[float]] = {name: [] for name in channels}
    convex: list[list[float]] = [[] for _ in ALPHAS]
    for question in questions:
        for name, channel in channels.items():
            found[name].append(ndcg(channel.search(question.text, DEPTH).ids, question.grades, DEPTH))
        pool, evidence = pooled({name: channels[name] for name in (WORDS, SENSE)}, Query(question.text), FETCHED)
        for alpha, values in zip(ALPHAS, convex, strict=True):
            values.append(ndcg(_best(Convex(alpha), pool, evidence), question.grades, DEPTH))
    ours = found.pop(OURS)
    return {**found, HINDSIGHT: max(convex, key=sum), OURS: ours}


def pooled(channels: Mapping[str, Channel], query: Query, depth: int) -> tuple[Pool, dict[str, Evidence]]:
    """What a fusion of the channels goes by."""
    pool = Pool({name: channel.search(query, depth) for name, channel in channels.items()})
    return pool, {
        name: pool.evidence(name, one.kind, one.scores(query, pool.missing(name)), one.coverage(query))
        for name, one in channels.items()
    }


def _best(method: Method, pool: Pool, found: Mapping[str, Evidence]) -> list[str]:
    """The ids in the order of a method."""
    scores = sum(method.contributions(found, dict.fromkeys(found, 1.0)).values(), np.zeros(len(pool.ids)))
    return [chunk_id for _, chunk_id in sorted(zip((-scores).tolist(), pool.ids, strict=True))[:DEPTH]]


def rows_of(case: str, found: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """The means, and how far ours is from the best of its parts."""
    for system, values in found.items():
        yield Row(system, case, "nDCG@10", float(np.mean(values)))
    best = max((values for name, values in found.items() if name in PARTS), key=np.mean)
    compared = paired(list(best), list(found[OURS]))
    yield Row(OURS, case, "difference from the best part", compared.difference)
    yield Row(OURS, case, "difference, lower end", compared.low)
    yield Row(OURS, case, "difference, upper end", compared.high)


def measure(name: str, chunks: Sequence[Chunk], questions: Sequence[Judged], embedder: Embedder) -> list[Row]:
    """Every system on one collection."""
    from tests.benchmarks import quality_peers  # they are installed for development alone

    ahead = Ahead(embedder, [question.text for question in questions])
    index = vectors(chunks, embedder)
    found = gains(systems(chunks, index, ahead), questions)
    theirs = quality_peers.gains(chunks, index.parts[0].matrix, ahead, questions)
    return list(rows_of(name, {**theirs, **found}))


def means(rows: Sequence[Row]) -> list[Row]:
    """Each system's mean over the collections."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == "nDCG@10":
            values.setdefault(row.system, []).append(row.value)
    return [Row(system, "mean", "nDCG@10", float(np.mean(of))) for system, of in values.items()]


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection, and all together, and write the rows."""
    from tests.benchmarks import filings, quality_mixed

    embedder = SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    rows: list[Row] = []
    for name in names:
        rows += measure(name, *load(data / name), embedder)
        sys.stdout.write("".join(f"{row}\n" for row in rows if row.case == name))
        sys.stdout.flush()
    rows += means(rows)
    rows += measure("filings", *filings.collection(), embedder)
    for row in quality_mixed.measure(data, names, embedder):
        sys.stdout.write(f"{row}\n")
        rows.append(row)
    write("quality", rows, [*PACKAGES, "langchain-classic", "llama-index-core"], merge=len(names) < len(COLLECTIONS))


def run(main: Callable[[Path, Sequence[str]], None]) -> None:
    """`main` with the collections named on the command line, or all that are there."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    there = [name for name in sys.argv[2:] or COLLECTIONS if (folder / name).is_dir()]
    if there:
        main(folder, there)
    else:
        sys.stdout.write(f"skipped: no collections in BEIR layout in {folder or 'the folder given'}\n")


if __name__ == "__main__":
    run(main)
