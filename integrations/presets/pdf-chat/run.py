"""The preset `pdf-chat`: uploads in a Chroma collection, searched together or alone, each result with its reasons."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from voicevault_retrievers import Query, load_preset, shipped
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.display import BADGES, result_data
from voicevault_retrievers.documents import read
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.store.names import default_root
from voicevault_retrievers.text import Analyzer

SAMPLE = shipped("sample") / "documents"
FILES = [SAMPLE / "operations-manual.pdf", SAMPLE / "maintenance-guide.md"]
QUESTION = "HS-4410-B filter change interval"
ANALYZER = Analyzer(language=None)
"""Lowercase, punctuation removed, no stemming: as the collection is made, it is searched."""


def upload(collection: Engine, path: Path) -> str:
    """Put a file's chunks into the collection, those that are there already not again; its id for filters."""
    chunks = read([path], headers=False).chunks
    change = collection.upsert(chunks)
    print(f"{path.name}: {len(chunks)} chunks, {change.added} new")
    return str(chunks[0].metadata["file_id"])


def ask(collection: Engine, question: str, file_ids: list[str] | None = None) -> None:
    """Search all files, or some of them alone, in which case BM25 counts over these too."""
    where = None if file_ids is None else {"file_id": {"$in": file_ids}}
    result = load_preset("pdf-chat").over(collection).search(Query(question, where=where))
    told = result_data(result, analyzer=ANALYZER)
    print(f"\nQ: {question} ({'all files' if file_ids is None else 'one file'})")
    print("   " + ", ".join(f"{number} {BADGES[badge].lower()}" for badge, number in told["counts"].items() if number))
    for hit in told["hits"]:
        show(hit)


def show(hit: dict[str, Any]) -> None:
    """A result with its badge, each channel's score, the words that matched, and the parts of its score."""
    print(f"   {hit['rank']}. [{BADGES[hit['badge']]}] {hit['header']} {hit['score']:.3f}")
    for part in hit["parts"]:
        words = f", words: {', '.join(part['terms'])}" if part["terms"] else ""
        print(f"      {part['stage']}: rank {part['rank']}, score {part['score']:.3f}{words}")
    (weighted,) = (stage for stage in hit["stages"] if stage["stage"] == "weighted")
    for part in weighted["parts"]:
        bar = "#" * round(20 * part["share"])
        print(f"      {part['stage']:>8} {part['weight']} of {part['score']:.3f} adds {part['contribution']:.3f} {bar}")
    print(f"      {excerpt(hit['pieces'])}")


def excerpt(pieces: Iterable[tuple[str, bool]], length: int = 160) -> str:
    """The text from the first word that matched on, with each of them between asterisks."""
    text = "".join(f"*{piece}*" if matched else piece for piece, matched in pieces)
    start = max(0, text.find("*"))
    return " ".join(text[start : start + length].split()) + " ..."


def main() -> None:
    """Upload the files, ask all of them, and then the first one alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=FILES, help="PDF, Markdown, HTML, DOCX or text files")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--store", metavar="URL", help="chroma://host:8000/NAME  [a folder beside the knowledge bases]")
    args = parser.parse_args()

    store = args.store or f"chroma+file://{default_root().absolute()}-chroma/uploads"
    collection = connect(store, embedder=load_embedder(), analyzer=ANALYZER)
    first, *_ = [upload(collection, path) for path in args.files]
    ask(collection, args.question)
    ask(collection, args.question, [first])
    collection.close()


if __name__ == "__main__":
    main()
