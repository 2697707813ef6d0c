"""The preset `pdf-chat` over a Chroma of PDFs' pages, with the fused score as it is and scaled.

    python -m tests.benchmarks.pdf_chat DATA

Of mmlongbench-pages as many PDFs, by name, as have `QUESTIONS` of the questions that text answers, cut into chunks of
at most `MAX_CHARS` characters. Each question is asked of all files and of its own; a page counts at its best chunk.
What the keyword index takes is measured on the same collection. Writes results/pdf_chat.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from tests.benchmarks.results import Row, write
from voicevault_retrievers import Channel, Chunk, Query
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import Document, Part, split
from voicevault_retrievers.engines.chroma.engine import ChromaEngine
from voicevault_retrievers.evaluation import Judged, load_judged, ndcg, place_of
from voicevault_retrievers.evaluation.metrics import recall
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.text import Analyzer

COLLECTION = "mmlongbench-pages"
QUESTIONS = 100
MAX_CHARS = 500
K = 5
ALL, OWN = "all files", "its own file"
FUSED, AS_IT_IS, SCALED, PLACELESS = (
    "fused, not reranked", "scale_fused: false", "scale_fused: true", "scale_fused: true, position: 0",
)  # fmt: skip
GAINS = {
    "scale_fused: true, over false": (AS_IT_IS, SCALED),
    "weighted, over the fused order": (FUSED, AS_IT_IS),
    "weighted and scaled, over the fused order": (FUSED, SCALED),
    "weighted and scaled, position: 0, over the fused order": (FUSED, PLACELESS),
}
METRICS: Mapping[str, Callable[[Sequence[str], Mapping[str, int], int], float]] = {"nDCG@5": ndcg, "recall@5": recall}


def file_of(question: Judged) -> str:
    """The PDF that a question is about."""
    return next(iter(question.grades)).rsplit("#p", 1)[0]


def load(folder: Path) -> tuple[list[Chunk], list[Judged]]:
    """The chunks of the PDFs, and the questions about them."""
    judged = load_judged(folder / "queries.jsonl", folder / "qrels" / "text.tsv")
    asked = Counter(map(file_of, judged))
    files: list[str] = []
    for file in sorted(asked):
        if sum(asked[one] for one in files) < QUESTIONS:
            files.append(file)
    pages: defaultdict[str, list[Part]] = defaultdict(list)
    for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        page = json.loads(line)
        file, number = page["_id"].rsplit("#p", 1)
        pages[file].append(Part(page["text"], page_number=int(number)))
    chunks = [chunk for file in files for chunk in split(Document(file, tuple(pages[file])), max_chars=MAX_CHARS)]
    return chunks, [one for one in judged if file_of(one) in files][:QUESTIONS]


def preset(**weighted: Any) -> Preset:
    """The preset with other options of its stage."""
    data = preset_data("pdf-chat")
    data["stages"][0]["weighted"] |= weighted
    return Preset.of(data)


def systems(engine: ChromaEngine) -> dict[str, Channel]:
    """What is compared."""
    plain = preset(scale_fused=False)
    return {
        "bm25 alone": engine.bm25(**plain.channels["bm25"]),
        "vectors alone": engine.dense(**plain.channels["dense"]),
        FUSED: plain.with_stages(()).over(engine).channel,
        AS_IT_IS: plain.over(engine).channel,
        SCALED: preset(scale_fused=True).over(engine).channel,
        PLACELESS: preset(scale_fused=True, weights={"position": 0.0}).over(engine).channel,
    }


def measure(engine: ChromaEngine, questions: Sequence[Judged]) -> list[Row]:
    """Each system's means, and what is gained, with its 95 % interval."""
    rows: list[Row] = []
    for case in (ALL, OWN):
        each: dict[tuple[str, str], list[float]] = {}
        for name, channel in systems(engine).items():
            queries = [
                Query(one.text, where={"source_file": file_of(one)} if case == OWN else None) for one in questions
            ]
            found = [list(dict.fromkeys(place_of(hit.chunk) for hit in channel.search(query, K))) for query in queries]
            for metric, function in METRICS.items():
                values = [function(places, one.grades, K) for places, one in zip(found, questions, strict=True)]
                each[name, metric] = values
                rows.append(Row(name, case, metric, fmean(values)))
        for name, (before, after) in GAINS.items():
            for metric in METRICS:
                gain = paired(each[before, metric], each[after, metric])
                ends = {"": gain.difference, ", lower end": gain.low, ", upper end": gain.high, ", p": gain.p}
                rows += [Row(name, case, f"gain in {metric}{end}", value) for end, value in ends.items()]
    return rows


def costs(folder: Path, chunks: Sequence[Chunk], vectors: Any, embedder: Any) -> list[Row]:
    """What a collection takes on disk and its keyword index in memory, and how long the first and later searches."""
    engine = ChromaEngine("uploads", path=folder, embedder=embedder, analyzer=Analyzer(language=None))
    start = perf_counter()
    engine.upsert(chunks, vectors)
    written = perf_counter() - start
    keywords = engine.bm25()
    start = perf_counter()
    keywords.search("report", K)
    first = perf_counter() - start
    later = []
    for _ in range(50):
        start = perf_counter()
        keywords.search("report", K)
        later.append(perf_counter() - start)
    engine.forget()
    tracemalloc.start()
    keywords.search("report", K)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    engine.close()
    figures = {
        "chunks written a second": len(chunks) / written,
        "first keyword search, ms for 1,000 chunks": 1e6 * first / len(chunks),
        "later keyword search, ms": 1000 * median(later),
        "keyword index, bytes of memory a chunk": held / len(chunks),
        "bytes on disk a chunk": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / len(chunks),
        "characters a chunk": fmean(len(chunk.text) for chunk in chunks),
    }
    return [Row("embedded Chroma", "costs", name, value) for name, value in figures.items()]


def main(folder: Path) -> None:
    """Measure, and write the rows."""
    chunks, questions = load(folder)
    embedder = load_embedder("all-MiniLM-L6-v2")
    vectors = embedder.embed_documents([chunk.text for chunk in chunks])
    files = {chunk.metadata["source_file"] for chunk in chunks}
    counts = {"files": len(files), "chunks": len(chunks), "questions": len(questions)}
    rows = [Row("corpus", COLLECTION, name, float(count)) for name, count in counts.items()]
    with tempfile.TemporaryDirectory() as place:
        rows += costs(Path(place), chunks, vectors, embedder)
        engine = ChromaEngine("uploads", path=place, embedder=embedder)
        rows += measure(engine, questions)
        engine.close()
    for row in rows:
        sys.stdout.write(f"{row}\n")
    write("pdf_chat", rows, ["voicevault-retrievers", "chromadb", "numpy", "PyStemmer", "openvino", "onnxruntime"])


if __name__ == "__main__":
    data = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path()) / COLLECTION
    if not data.is_dir():
        sys.stdout.write(f"skipped: no {COLLECTION} in BEIR layout in {data.parent}\n")
    else:
        main(data)
