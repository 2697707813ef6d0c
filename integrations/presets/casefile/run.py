"""The preset `casefile`: chunks found, the best picked by a language model, their parents read, under access rules."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from voicevault_retrievers import KnowledgeBase, Pipeline, Query, load_preset, shipped
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.store import update

sys.path.append(str(Path(__file__).parents[2]))
from scripted_text import SCRIPTED_PICKS, text_model
from shown import found, source

QUESTIONS = ["Why did the oil of T4 become too warm?"]
MAY_READ: dict[str, Any] = {
    "engineer": {"source_file": {"$in": ["incident-log.txt", "maintenance-guide.md", "operations-manual.pdf"]}},
    "guide": {"source_file": {"$in": ["visitor-faq.html", "incident-log.txt"]}},
    "stranger": {},
}
"""Whose files each person may see, as `require` of a search; an empty one permits nothing."""


def case(folder: Path, name: str, root: Path | None) -> KnowledgeBase:
    """A folder's documents as children of about 2,000 characters, each in a parent of about 8,000."""
    with KnowledgeBase.open_or_create(name, root=root, embedder=load_embedder()) as base:
        update(base, folder, parents=8000, children=2000, headers=False)
    return base


def pipeline_over(base: KnowledgeBase, model: TextModel) -> Pipeline:
    """The preset with this language model in the place of the one that it names."""
    return load_preset("casefile", llm=model).over(base)


def ask(base: KnowledgeBase, pipeline: Pipeline, query: Query) -> None:
    """Print what a person finds: what they may not see is not found, not counted, and not shown to the model."""
    result = pipeline.search(query, 3)
    for rank, hit in enumerate(result.hits, 1):
        read = f"{len(hit.text):,} of its parent read" if hit.context else "no more read"
        print(f"   {rank}. {source(hit)} {found(hit)}: {len(hit.chunk.text):,} characters found, {read}")
    for failure in result.errors:
        print(f"   {'degraded' if failure.degrades else 'note'}: {failure}")
    print(f"   {len(str(result.context)):,} characters of 12,000; confidence {result.confidence}")
    for term in base.bm25().explain(query, result.hits[0].id)[:1] if result.hits else ():
        print(f"   {term.term!r} is in {term.document_frequency} of the chunks that they may see")


def main() -> None:
    """Index the folder, and ask the questions as each of the people."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="case", help="the knowledge base that they are kept in  [case]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--ollama", metavar="MODEL", help="picks the best; without it a script does")
    parser.add_argument("--base-url", metavar="URL", help="where the Ollama is  [http://localhost:11434]")
    parser.add_argument("--may-read", type=json.loads, metavar="JSON", help="ask as one person, who may see this")
    args = parser.parse_args()

    print(f"model: {args.ollama or SCRIPTED_PICKS}")
    base = case(args.folder, args.kb, args.root)
    pipeline = pipeline_over(base, text_model(args.ollama, args.base_url))
    people = MAY_READ if args.may_read is None else {"you": args.may_read}
    for question in args.questions:
        for person, may_read in people.items():
            print(f"\n{person}, Q: {question}")
            ask(base, pipeline, Query(question, require=may_read))


if __name__ == "__main__":
    main()
