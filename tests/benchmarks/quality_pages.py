"""Retrieval quality by page: PDFs' pages cut into small chunks, capped by page, and judged by page.

    python -m tests.benchmarks.quality_pages DATA

Of mmlongbench-pages the first `DOCUMENTS` PDFs by name, two thirds of all chunks, so that embedding takes minutes; and
the queries whose relevant pages are all among them. Each page is cut into chunks of at most `MAX_CHARS` characters. A
search gives `K` chunks; a page counts at its best chunk. Writes results/quality_pages.json.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tests.benchmarks.quality import vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, Channel, Chunk, PageCap, Query, VectorChannel, fuse
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.documents import Document, Part, split
from voicevault_retrievers.evaluation import Judged, load_judged, ndcg, place_of
from voicevault_retrievers.evaluation.significance import paired

COLLECTION = "mmlongbench-pages"
DOCUMENTS = 50
MAX_CHARS = 500
K = 10
CAPS = (1, 2, 3)


def load(folder: Path) -> tuple[list[Chunk], list[Judged]]:
    """The chunks of the first PDFs, and the queries about them alone."""
    pages: defaultdict[str, list[Part]] = defaultdict(list)
    for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        page = json.loads(line)
        file, number = page["_id"].rsplit("#p", 1)
        pages[file].append(Part(page["text"], page_number=int(number)))
    files = sorted(pages)[:DOCUMENTS]
    chunks = [chunk for file in files for chunk in split(Document(file, tuple(pages[file])), max_chars=MAX_CHARS)]
    judged = load_judged(folder / "queries.jsonl", folder / "qrels" / "test.tsv")
    known = set(files)
    return chunks, [one for one in judged if all(place.rsplit("#p", 1)[0] in known for place in one.grades)]


def searched(channel: Channel, questions: Sequence[Judged]) -> list[list[str]]:
    """For each question the pages of its K chunks, best first."""
    return [[place_of(hit.chunk) for hit in channel.search(question.text, K)] for question in questions]


def gains(found: Sequence[Sequence[str]], questions: Sequence[Judged]) -> list[float]:
    """The nDCG@10 of each question, a page counted at its best chunk."""
    pairs = zip(found, questions, strict=True)
    return [ndcg(list(dict.fromkeys(places)), question.grades, K) for places, question in pairs]


def measure(system: str, found: Sequence[Sequence[str]], questions: Sequence[Judged]) -> list[Row]:
    """nDCG@10 by page, the share of queries that got K chunks, and how many pages these are of."""
    figures = {
        "nDCG@10 by page": fmean(gains(found, questions)),
        "queries given 10 chunks": fmean(len(places) == K for places in found),
        "pages among 10 chunks": fmean(len(set(places)) for places in found),
    }
    return [Row(system, COLLECTION, name, value) for name, value in figures.items()]


def compared(system: str, before: Sequence[float], after: Sequence[float]) -> list[Row]:
    """What a cap gains, with its 95 % interval and the p of no difference."""
    gain = paired(before, after)
    figures = {"gain": gain.difference, "gain, low": gain.low, "gain, high": gain.high, "gain, p": gain.p}
    return [Row(system, COLLECTION, f"nDCG@10 by page, {name}", value) for name, value in figures.items()]


def unfilled(channel: Channel, cap: PageCap, questions: Sequence[Judged]) -> float:
    """The share of queries that would get K chunks if the first K were capped and nothing put in their place."""
    asked = [(Query(question.text), channel.search(question.text, K)) for question in questions]
    return sum(len(cap.refine(query, ranking)) == K for query, ranking in asked) / len(asked)


def main(folder: Path) -> None:
    """Measure without a cap and with each, and write the rows."""
    chunks, questions = load(folder)
    embedder = SentenceTransformerEmbedder("all-MiniLM-L6-v2")
    fused = fuse(bm25=BM25.from_chunks(chunks), dense=VectorChannel(vectors(chunks, embedder), embedder))
    counts = {"documents": DOCUMENTS, "chunks": len(chunks), "queries": len(questions)}
    rows = [Row("corpus", COLLECTION, name, float(count)) for name, count in counts.items()]
    plain = searched(fused, questions)
    rows += measure("no cap", plain, questions)
    for most in CAPS:
        cap, system = PageCap(most), f"at most {most} of a page"
        found = searched(fused >> cap, questions)
        rows += measure(system, found, questions)
        rows += compared(system, gains(plain, questions), gains(found, questions))
        rows.append(Row(system, COLLECTION, "queries given 10 chunks, no backfill", unfilled(fused, cap, questions)))
    for row in rows:
        sys.stdout.write(f"{row}\n")
    write("quality_pages", rows, ["voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch"])


if __name__ == "__main__":
    data = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path()) / COLLECTION
    if not data.is_dir():
        sys.stdout.write(f"skipped: no {COLLECTION} in BEIR layout in {data.parent}\n")
    else:
        main(data)
