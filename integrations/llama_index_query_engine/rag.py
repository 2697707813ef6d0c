"""Answers with sources, over a folder of documents: LlamaIndex's query engine around a HybridRetriever."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM

from voicevault_retrievers import KnowledgeBase, shipped
from voicevault_retrievers.answers import header
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.llama_index import (
    CitedQueryEngine,
    CrossEncoderRerank,
    HybridRetriever,
    PageDiversityPostprocessor,
)
from voicevault_retrievers.llama_index.responses import Cited
from voicevault_retrievers.store import update

sys.path.append(str(Path(__file__).parents[1]))
from scripted_llm import SCRIPTED, language_model

QUESTIONS = ["What does ERR_2043 mean?", "How often are the blades of T3 washed?"]


def retriever_over(folder: Path, name: str, root: Path | None) -> BaseRetriever:
    """Hybrid search of a folder's documents: reranked, at most two chunks of a page, five in all.

    Only what has changed since the last time is embedded.
    """
    with KnowledgeBase.open_or_create(name, root=root, embedder=load_embedder()) as base:
        update(base, folder)
    retriever = HybridRetriever(kb_names=[base.path], expansion=True, k=5)
    return retriever >> CrossEncoderRerank(depth=20, timeout=30) >> PageDiversityPostprocessor(max_chunks_per_page=2)


def cited_engine(retriever: BaseRetriever, llm: LLM, *, streaming: bool = False) -> CitedQueryEngine:
    """A query engine whose responses have `citations`, the sources that the answer names, and `unresolved` markers."""
    return CitedQueryEngine(retriever, llm=llm, max_tokens=3000, streaming=streaming)


def main() -> None:
    """Ask the questions, and print the answers with their sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="each is asked alone")
    parser.add_argument("--together", action="store_true", help="ask all at once, instead of printing as it is written")
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="sample", help="the knowledge base that they are kept in  [sample]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--llm", metavar="MODULE:CLASS", help="an LLM's class; without it a script writes the answers")
    parser.add_argument("--model", metavar="NAME", help="the model that the LLM is to use")
    args = parser.parse_args()

    print(f"model: {args.llm or SCRIPTED}")
    retriever, llm = retriever_over(args.folder, args.kb, args.root), language_model(args.llm, args.model)
    if args.together:
        asyncio.run(together(cited_engine(retriever, llm), args.questions))
    else:
        in_turn(cited_engine(retriever, llm, streaming=True), args.questions)


def in_turn(engine: CitedQueryEngine, questions: list[str]) -> None:
    """Print each answer while it is written."""
    for question in questions:
        print(f"\nQ: {question}\nA: ", end="")
        response: Any = engine.query(question)
        for piece in response.response_gen:
            print(piece, end="", flush=True)
        print()
        show_sources(response)


async def together(engine: CitedQueryEngine, questions: list[str]) -> None:
    """Ask all questions at the same time, and print the answers in their order."""
    responses: list[Any] = await asyncio.gather(*map(engine.aquery, questions))
    for question, response in zip(questions, responses, strict=True):
        print(f"\nQ: {question}\nA: {response}")
        show_sources(response)


def show_sources(response: Cited) -> None:
    """Print the sources that an answer names, and what it names in vain."""
    for citation in response.citations:
        print(f"   [{citation.index}] {header(citation)}")
    for marker in response.unresolved:
        print(f"   {marker.text} names no source")


if __name__ == "__main__":
    main()
