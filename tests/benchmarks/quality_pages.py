"""Retrieval quality by page: PDFs' pages cut into small chunks, capped by page, and judged by page.

    python -m tests.benchmarks.quality_pages DATA

Of mmlongbench-pages the first `DOCUMENTS` PDFs by name, so that embedding their chunks takes under five minutes on two
cores, and the queries whose relevant pages are all among them. Each page is cut into chunks of at most `MAX_CHARS`
characters. A search gives `K` chunks; a page counts at its best chunk. Writes results/quality_pages.json.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.quality import vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, Channel, Chunk, PageCap, Query, VectorChannel, fuse
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.documents import Document, Part, split
from voicevault_retrievers.evaluation import Judged, load_judged, ndcg, place_of

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


def measure(system: str, channel: Channel, questions: Sequence[Judged]) -> list[Row]:
    """nDCG@10 by page, the share of queries that got K chunks, and how many pages these are of."""
    found = [[place_of(hit.chunk) for hit in channel.search(question.text, K)] for question in questions]
    gains = [
        ndcg(list(dict.fromkeys(places)), question.grades, K) for places, question in zip(found, questions, strict=True)
    ]
    return [
        Row(system, COLLECTION, "nDCG@10 by page", sum(gains) / len(gains)),
        Row(system, COLLECTION, "queries given 10 chunks", sum(len(places) == K for places in found) / len(found)),
        Row(system, COLLECTION, "pages among 10 chunks", sum(len(set(places)) for places in found) / len(found)),
    ]


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
    rows += measure("no cap", fused, questions)
    for most in CAPS:
        cap = PageCap(most)
        rows += measure(f"at most {most} of a page", fused >> cap, questions)
        given = unfilled(fused, cap, questions)
        rows.append(Row(f"at most {most} of a page", COLLECTION, "queries given 10 chunks, no backfill", given))
    for row in rows:
        sys.stdout.write(f"{row}\n")
    write("quality_pages", rows, ["voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch"])


if __name__ == "__main__":
    data = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path()) / COLLECTION
    if not data.is_dir():
        sys.stdout.write(f"skipped: no {COLLECTION} in BEIR layout in {data.parent}\n")
    else:
        main(data)
