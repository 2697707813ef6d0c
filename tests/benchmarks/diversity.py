"""What diversity costs: milliseconds of each stage on 200 hits of 500 characters, vectors of 384 numbers.

    OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.diversity

One thread: two wait for each other where the machine has more to do.

Medians of `ROUNDS` runs, on made-up texts of which a tenth nearly repeat another. Vectors are those of an index in
memory. Shingles are timed for texts that were seen before, and once more for such as were not. Writes
results/diversity.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from tests.benchmarks.results import Row, write
from voicevault_retrievers import Chunk, PageCap, Query, VectorChannel
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Hit, Ranking, Vote
from voicevault_retrievers.dense import ExactVectors, VectorPart
from voicevault_retrievers.rerank import MMR, NearDuplicates

HITS, STORED, DIMENSION = 200, 20_000, 384
ROUNDS = 200


class Known:
    """Stands in for an embedder: all vectors are stored."""

    fingerprint = "random"
    dimension = DIMENSION

    def embed_documents(self, texts: object) -> np.ndarray:
        raise NotImplementedError

    embed_queries = embed_documents


def corpus(random: np.random.Generator) -> list[Chunk]:
    """Chunks of about 500 characters, each tenth but for one word as the one before it."""
    vocabulary = [f"word{number}" for number in range(5000)]
    texts: list[list[str]] = []
    for at in range(STORED):
        words = [vocabulary[number] for number in random.zipf(1.3, 65) % len(vocabulary)]
        texts.append([*texts[-1][:-1], "other"] if at % 10 == 9 else words)
    return [
        Chunk(f"c{at:05}", " ".join(words), metadata={"source_file": f"{at % 9}.pdf", "page_number": at % 30})
        for at, words in enumerate(texts)
    ]


def milliseconds(run: Callable[[], object]) -> float:
    """The median time of a call."""
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        run()
        times.append(perf_counter() - began)
    return 1000 * median(times)


def main() -> None:
    """Time each stage and write the rows."""
    random = np.random.default_rng(7)
    chunks = corpus(random)
    matrix = random.standard_normal((STORED, DIMENSION), dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    dense = VectorChannel(ExactVectors([VectorPart(Rows.of(chunks), matrix)], DIMENSION), Known())
    hits = [
        Hit(chunks[at], 1 / (60 + rank), (Vote("bm25", rank, 9.0, contribution=1 / (60 + rank), kind="keyword"),))
        for rank, at in enumerate(range(0, 10 * HITS, 10), 1)
    ]
    ranking, query = Ranking(tuple(hits)), Query("question")
    stages: dict[str, Stage] = {
        "PageCap(2)": PageCap(2),
        "PageCap(2), 5 of a document": PageCap(2, max_chunks_per_document=5),
        "MMR of the first 100, stored vectors": MMR(by=dense),
        "MMR of all, stored vectors": MMR(by=dense, depth=HITS),
        "MMR of the first 100, shingles": MMR(),
        "MMR of all, shingles": MMR(depth=HITS),
        "NearDuplicates, stored vectors": NearDuplicates(by=dense),
        "NearDuplicates, shingles": NearDuplicates(),
    }
    rows = []
    for name, stage in stages.items():
        stage.refine(query, ranking)
        rows.append(Row(name, f"{HITS} hits", "ms", milliseconds(partial(stage.refine, query, ranking))))
    unseen = milliseconds(lambda: NearDuplicates().refine(query, ranking))
    rows.append(Row("NearDuplicates, shingles of texts not seen before", f"{HITS} hits", "ms", unseen))
    for row in rows:
        sys.stdout.write(f"{row.system}: {row.value:.3f} ms\n")
    write("diversity", rows, ["voicevault-retrievers", "numpy"])


if __name__ == "__main__":
    main()
