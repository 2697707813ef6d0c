"""What chunk headers are worth: the same chunks with and without their title and headings before the text.

    python -m tests.benchmarks.chunk_headers [DATA]

Over the Markdown documents in `headers/`: questions that name their document, and questions that name none. With DATA,
on mmlongbench-pages as well, where the title of each page is its header. A chunk is relevant where it has a quoted
answer; a question's gain over the bare text has a 95 % interval. Writes results/chunk_headers.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.benchmarks import quality
from tests.benchmarks.quality import DEPTH, OURS, SENSE, WORDS, ndcgs, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, Channel, Chunk, CrossEncoderRerank, VectorChannel, fuse
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.documents import read
from voicevault_retrievers.evaluation import Judged
from voicevault_retrievers.evaluation.significance import paired

FOLDER = Path(__file__).parent / "headers"
PAGES = "mmlongbench-pages"
RERANKED = "reranked (20)"


def chunks_of(folder: Path, *, headers: bool) -> list[Chunk]:
    """The chunks of the Markdown documents."""
    return list(read([folder / "documents"], headers=headers).chunks)


def judged(file: Path, chunks: Sequence[Chunk], split: str) -> list[Judged]:
    """The questions of a split, each with the chunks that have a quoted answer of the named file."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [Judged(one["id"], one["text"], dict(_grades(one, chunks))) for one in lines if one["split"] == split]


def _grades(question: dict[str, Any], chunks: Sequence[Chunk]) -> Iterator[tuple[str, int]]:
    for answer in question["answers"]:
        name = Path(answer["file"]).name
        found = [one.id for one in chunks if one.metadata["source_file"] == name and answer["quote"] in one.text]
        if not found:
            raise SystemExit(f"{question['id']}: no chunk of {name} has the quote {answer['quote']!r}")
        yield from ((chunk_id, 1) for chunk_id in found)


def systems(chunks: Sequence[Chunk], embedder: Embedder) -> dict[str, Channel]:
    """Each channel, their fusion by default, and this reranked."""
    words = BM25.from_chunks(chunks)
    sense = VectorChannel(vectors(chunks, embedder), embedder)
    both = fuse({"bm25": words, "dense": sense})
    return {WORDS: words, SENSE: sense, OURS: both, RERANKED: both >> CrossEncoderRerank(depth=20)}


def compared(
    case: str, bare: dict[str, Channel], headed: dict[str, Channel], questions: Sequence[Judged]
) -> Iterator[Row]:
    """nDCG@10 of every system on the bare text, with headers, and the gain."""
    for name in bare:
        before, after = ndcgs(bare[name], questions), ndcgs(headed[name], questions)
        gain = paired(before, after)
        yield Row(f"{name}, text alone", case, f"nDCG@{DEPTH}", fmean(before))
        yield Row(f"{name}, with headers", case, f"nDCG@{DEPTH}", fmean(after))
        yield Row(f"{name}, with headers", case, "gain", gain.difference)
        yield Row(f"{name}, with headers", case, "gain, low", gain.low)
        yield Row(f"{name}, with headers", case, "gain, high", gain.high)


def documents(embedder: Embedder, *, splits: Sequence[str] = ("development", "test")) -> Iterator[Row]:
    """The rows over the Markdown documents."""
    headed, bare = chunks_of(FOLDER, headers=True), chunks_of(FOLDER, headers=False)
    parts = systems(bare, embedder), systems(headed, embedder)
    named = [(f"names its document, {split}", "questions", split) for split in splits]
    plain = [("names no document, test", "plain-questions", "test")] if "test" in splits else []
    for case, file, split in [*named, *plain]:
        questions = judged(FOLDER / f"{file}.jsonl", bare, split)
        yield Row("questions", case, "count", len(questions))
        yield from compared(case, *parts, questions)
    if len(splits) > 1:
        both = [one for split in splits for one in judged(FOLDER / "questions.jsonl", bare, split)]
        yield from compared("names its document, all 100", *parts, both)


def pages(data: Path, embedder: Embedder) -> Iterator[Row]:
    """The rows over the pages of PDFs, without reranking."""
    titled, questions = quality.load(data / PAGES)
    corpus = (json.loads(line) for line in (data / PAGES / "corpus.jsonl").read_text(encoding="utf-8").splitlines())
    titles = {page["_id"]: (page["title"], page["text"]) for page in corpus}
    headed = [replace(one, header=titles[one.id][0], text=titles[one.id][1]) for one in titled]
    bare = [replace(one, header="") for one in headed]
    arms = [
        {name: part for name, part in systems(some, embedder).items() if name != RERANKED} for some in (bare, headed)
    ]
    yield Row("questions", PAGES, "count", len(questions))
    yield from compared(PAGES, *arms, questions)


def main(args: Sequence[str]) -> None:
    embedder = SentenceTransformerEmbedder()
    rows = list(documents(embedder))
    if args and (Path(args[0]) / PAGES).is_dir():
        rows += pages(Path(args[0]), embedder)
    else:
        sys.stdout.write(f"skipped: no {PAGES} in BEIR layout in a folder that was given\n")
    for row in rows:
        sys.stdout.write(f"{row}\n")
    write("chunk_headers", rows, ["voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers"])


if __name__ == "__main__":
    main(sys.argv[1:])
