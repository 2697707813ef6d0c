"""The engines side by side: filling, searching, and what each finds beside a knowledge base.

    python -m tests.benchmarks.engines DATA [--size 100000] [--rounds 3] [--systems embedded postgres ...]

Writes results/engines.json; other sizes and systems that are there stay, and `--size 0` leaves out what is timed. All
keep the same synthetic documents (about 97 words, Zipf's law) with the same vectors of 384 numbers. Each is filled
once; then the rounds go through the engines in turn, and a figure is the median of the rounds'. Qdrant and Milvus are
their local modes, which search by brute force in this process: their servers are faster.

"hybrid" is the default fusion over keywords and vectors, "hybrid, RRF" that by ranks, "hybrid, engine" the fusion in
one request to the engine.
Overlaps are with a knowledge base of the same chunks: the share of its best 10 that the engine has too, or others of
the same score. "over its own vectors" compares all the vectors that the engine gives back: where that is 1 and the
overlap is not, what is missing is what its index did not look at. nDCG@10 and the overlaps of the collections need
DATA, a folder of collections in BEIR layout, and embeddings, which are kept as those of `quality` are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks import lexical_corpora, store_corpus
from tests.benchmarks.lexical_measure import percentiles
from tests.benchmarks.quality import embedded, load
from tests.benchmarks.results import Row, write
from tests.engines.engines import SYSTEMS
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.evaluation import Judged, ndcg
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import Analyzer

LABELS = {
    "embedded": "knowledge base",
    "qdrant": "Qdrant, local mode",
    "qdrant-edge": "Qdrant, a segment in process",
    "postgres": "PostgreSQL",
    "postgres-bm25": "PostgreSQL with pg_textsearch",
    "chroma": "Chroma, embedded",
    "chroma-http": "Chroma, HTTP",
    "lancedb": "LanceDB",
    "milvus": "Milvus Lite",
}
PACKAGES = (
    "voicevault-retrievers", "numpy", "qdrant-client", "qdrant-edge-py", "psycopg", "pgvector", "lancedb", "chromadb",
    "pymilvus",
)  # fmt: skip
DIMENSION, K, THREADS = 384, 10, 8
SAME = 1e-6
COLLECTIONS = ("scifact", "cranfield", "covidqa-passages", "xquad-de")

Matrix = NDArray[np.float32]


class Given:
    """An embedder whose vectors are all given beforehand."""

    fingerprint = f"given/{DIMENSION}"
    dimension = DIMENSION

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        raise RuntimeError("the vectors are given")

    embed_queries = embed_documents


class Corpus(NamedTuple):
    """Chunks with their vectors, and queries that bring theirs."""

    chunks: Sequence[Chunk]
    vectors: Matrix
    queries: Sequence[Query]


def synthetic(size: int, asked: int) -> Corpus:
    """Documents of about 97 words, with random vectors in 24 directions."""
    collection = lexical_corpora.synthetic(size)
    chunks = lexical_corpora.chunks_of(collection, texts=True)
    rows = store_corpus.rows(size + asked)
    texts = collection.queries[:asked]
    return Corpus(chunks, rows[:size], [_query(text, row) for text, row in zip(texts, rows[size:], strict=False)])


def real(folder: Path, asked: int) -> tuple[Corpus, list[Judged]]:
    """A collection with the embeddings of all-MiniLM-L6-v2, and its judged questions."""
    from voicevault_retrievers.dense import load_embedder

    chunks, questions = load(folder)
    embedder = load_embedder()
    questions = questions[:asked]
    texts = [question.text for question in questions]
    rows = embedded([chunk.text for chunk in chunks], embedder)
    vectors = embedded(texts, embedder, queries=True)
    return Corpus(chunks, rows, [_query(*one) for one in zip(texts, vectors, strict=True)]), questions


def _query(text: str, row: Matrix) -> Query:
    return Query(text, vectors={Given.fingerprint: row})


def filled(engine: Engine, corpus: Corpus) -> dict[str, float]:
    """Put a corpus in: chunks per second in all and of the median batch, and what the same call takes again."""
    times = [time.perf_counter()]
    done = [0]

    def told(at: int, total: int) -> None:
        times.append(time.perf_counter())
        done.append(at)

    engine.upsert(corpus.chunks, corpus.vectors, progress=told)
    rates = np.diff(done) / np.diff(times)
    start = time.perf_counter()
    again = engine.upsert(corpus.chunks, corpus.vectors)
    if again.unchanged != len(corpus.chunks):
        raise RuntimeError(f"{engine!r} did not keep all chunks: {again}")
    return {
        "ingest chunks/s": len(corpus.chunks) / (times[-1] - times[0]),
        "ingest chunks/s of the median batch": float(np.median(rates)),
        "again, unchanged: chunks/s": len(corpus.chunks) / (time.perf_counter() - start),
    }


def searched(engine: Engine) -> Any:
    """What is asked: of a knowledge base itself, not through the engine's interface."""
    return engine.kb if isinstance(engine, EmbeddedEngine) else engine


def asked(engine: Any, queries: Sequence[Query], *, fusing: bool) -> dict[str, float]:
    """How long searches take, one at a time and of 8 threads together."""
    narrow = [Query(query.text, vectors=query.vectors, where={"bucket": {"$lt": 10}}) for query in queries]
    ways: dict[str, tuple[Any, Sequence[Query]]] = {
        "bm25": (engine.bm25().search, queries),
        "dense": (engine.dense().search, queries),
        "bm25, exact": (engine.bm25(statistics="exact").search, queries),
        "hybrid": (hybrid(engine), queries),
        "hybrid, RRF": (engine.hybrid_search, queries),
        "bm25, 1 % pass": (engine.bm25().search, narrow),
        "dense, 1 % pass": (engine.dense().search, narrow),
    }
    if fusing:
        ways["hybrid, engine"] = engine.fused().search, queries
    figures: dict[str, float] = {}
    for name, (search, given) in ways.items():
        search(given[0], K)
        times = []
        for query in given:
            start = time.perf_counter()
            search(query, K)
            times.append(time.perf_counter() - start)
        figures |= {f"{name} {figure}": value for figure, value in percentiles(times).items() if figure != "mean ms"}
        figures[f"{name} q/s"] = len(times) / sum(times)
    with ThreadPoolExecutor(THREADS) as pool:
        start = time.perf_counter()
        list(pool.map(lambda query: ways["hybrid"][0](query, K), queries))
        figures[f"hybrid q/s of {THREADS} threads"] = len(queries) / (time.perf_counter() - start)
        for name in [name for name in ways if name.startswith("hybrid, ")]:
            start = time.perf_counter()
            list(pool.map(lambda query, search=ways[name][0]: search(query, K), queries))
            figures[f"{name} q/s of {THREADS} threads"] = len(queries) / (time.perf_counter() - start)
    return figures


def hybrid(engine: Any, **bm25: Any) -> Callable[[Query, int], Ranking]:
    """The search of the default fusion."""
    pipeline = Preset.of({"version": 1, "channels": {"bm25": bm25, "dense": {}}}).over(engine)
    return lambda query, k: pipeline.search(query, k=k).ranking


def overlap(found: Ranking, expected: Ranking) -> float:
    """The share of the expected that was found, or another of a score as good as the last one's."""
    if not expected.hits:
        return 1.0
    last = expected.hits[-1].score or 0.0
    wanted = set(expected.ids)
    good = sum(hit.id in wanted or (hit.score or 0.0) >= last - SAME * max(1.0, last) for hit in found)
    return min(1.0, good / len(expected.hits))


def overlaps(engine: Engine, base: KnowledgeBase, corpus: Corpus) -> dict[str, float]:
    """How much of what a knowledge base finds an engine finds, and whether it is its vectors or its search."""
    figures: dict[str, list[float]] = {
        "bm25": [],
        "bm25, exact statistics": [],
        "dense": [],
        "dense, over its own vectors": [],
        "hybrid": [],
        "hybrid, exact statistics": [],
        "bm25 scores off": [],
    }
    ids = [chunk.id for chunk in corpus.chunks]
    held: dict[str, Any] = {}
    for start in range(0, len(ids), 500):
        held |= engine.vectors(ids[start : start + 500])
    matrix = np.array([held[one] for one in ids], dtype=np.float64)
    fused = {"hybrid": hybrid(engine), "hybrid, exact statistics": hybrid(engine, statistics="exact")}
    default = hybrid(base)
    for query in corpus.queries:
        expected = base.bm25().search(query, K)
        words = engine.bm25(statistics="exact").search(query, K)
        figures["bm25"].append(overlap(engine.bm25().search(query, K), expected))
        figures["bm25, exact statistics"].append(overlap(words, expected))
        scores = {hit.id: hit.score or 0.0 for hit in expected}
        off = [abs((hit.score or 0.0) - scores[hit.id]) for hit in words if hit.id in scores]
        figures["bm25 scores off"].append(max(off, default=0.0))
        best = default(query, K)
        for name, search in fused.items():
            figures[name].append(overlap(search(query, K), best))
        near = base.dense().search(query, K)
        figures["dense"].append(overlap(engine.dense().search(query, K), near))
        row = query.vectors[Given.fingerprint].astype(np.float64)
        best = np.sort(matrix @ row)[::-1][:K]
        figures["dense, over its own vectors"].append(float(np.mean(best >= (near.hits[-1].score or 0.0) - SAME)))
    told = {f"{name} overlap@{K}": statistics.fmean(figures[name]) for name in figures if name != "bm25 scores off"}
    return told | {"exact bm25 scores off by at most": max(figures["bm25 scores off"])}


def opened(stack: ExitStack, folder: Path, systems: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Each system that is installed, started."""
    for name in systems:
        system = SYSTEMS[name]
        if missing := system.missing():
            sys.stdout.write(f"{LABELS[name]}: skipped, needs {missing}\n")
            continue
        (folder / name).mkdir()
        yield name, stack.enter_context(system.opened(folder / name))


def told(label: str, figures: Mapping[str, float]) -> None:
    """Say what has been measured."""
    sys.stdout.writelines(f"{label}: {metric} {value:.4g}\n" for metric, value in figures.items())
    sys.stdout.flush()


def rates(connects: Mapping[str, Any], size: int, rounds: int, asking: int) -> Iterator[Row]:
    """Filling and searching, at a size."""
    corpus, case = synthetic(size, asking), lexical_corpora.size(size)
    made = {
        name: connect("bench_rates", embedder=Given(), analyzer=Analyzer("en"), timeout=600)
        for name, connect in connects.items()
    }
    for name, engine in made.items():
        figures = filled(engine, corpus)
        told(LABELS[name], figures)
        yield from (Row(LABELS[name], case, metric, value) for metric, value in figures.items())
    found: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, engine in made.items():
            fusing = engine.capabilities.server_fusion
            found[name].append(asked(searched(engine), corpus.queries, fusing=fusing))
    for name, several in found.items():
        medians = {metric: statistics.median(one[metric] for one in several) for metric in several[0]}
        told(LABELS[name], medians)
        yield from (Row(LABELS[name], case, metric, value) for metric, value in medians.items())
    yield from beside(made, corpus, case)


def beside(made: Mapping[str, Engine], corpus: Corpus, case: str) -> Iterator[Row]:
    """The overlaps of each engine with the knowledge base, and close all."""
    for name, engine in made.items():
        if name != "embedded" and "embedded" in made:
            figures = overlaps(engine, searched(made["embedded"]), corpus)
            told(f"{LABELS[name]}, {case}", figures)
            yield from (Row(LABELS[name], case, metric, value) for metric, value in figures.items())
    for engine in made.values():
        engine.clear()
        engine.close()


def quality(connects: Mapping[str, Any], folder: Path, asking: int) -> Iterator[Row]:
    """nDCG@10 of the default fusion, by each kind of statistics, and the overlaps, on a collection."""
    corpus, questions = real(folder, asking)
    made = {
        name: connect("bench_quality", embedder=Given(), analyzer=Analyzer("auto"), timeout=600)
        for name, connect in connects.items()
    }
    for name, engine in made.items():
        engine.upsert(corpus.chunks, corpus.vectors)
        source = searched(engine)
        searches = {"hybrid": hybrid(source), "hybrid, exact statistics": hybrid(source, statistics="exact")}
        if engine.capabilities.server_fusion:
            searches["hybrid, engine"] = engine.fused().search
        for way, search in searches.items():
            values = [
                ndcg(search(query, K).ids, question.grades, K)
                for query, question in zip(corpus.queries, questions, strict=True)
            ]
            told(f"{LABELS[name]}, {folder.name}", {f"{way} nDCG@10": statistics.fmean(values)})
            yield Row(LABELS[name], folder.name, f"{way} nDCG@10", statistics.fmean(values))
    yield from beside(made, corpus, folder.name)


def main(data: Path, size: int, rounds: int, systems: Sequence[str], asking: int) -> None:
    """Measure, and write what has come out."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        connects = dict(opened(stack, Path(folder), systems))
        rows = list(rates(connects, size, rounds, asking)) if size else []
        for name in COLLECTIONS:
            if (data / name).is_dir():
                rows += quality(connects, data / name, 300)
            else:
                sys.stdout.write(f"{name}: skipped, it is not in {data}\n")
    write("engines", rows, [package for package in PACKAGES if _installed(package)], merge=True)


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The engines side by side.")
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    parser.add_argument("--size", type=int, default=100_000, help="chunks; 0 leaves out what is timed")
    parser.add_argument("--rounds", type=int, default=3, help="of searches")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    given = parser.parse_args()
    main(given.data, given.size, given.rounds, given.systems, given.queries)
