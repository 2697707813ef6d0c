"""The preset `voicevault`: a folder of documents as a local knowledge base, and answers whose citations are checked."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from voicevault_retrievers import ContextBuilder, KnowledgeBase, Pipeline, load_preset, resolve_citations, shipped
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.store import update

sys.path.append(str(Path(__file__).parents[2]))
from scripted import SCRIPTED
from scripted_text import text_model
from shown import show_hits

QUESTIONS = ["What does ERR_2043 mean?", "When are the linings of T4 changed?"]


def pipeline_over(folder: Path, name: str, root: Path | None) -> Pipeline:
    """The preset over a folder's documents; only what has changed since the last time is embedded."""
    with KnowledgeBase.open_or_create(name, root=root, embedder=load_embedder()) as base:
        update(base, folder)
    return load_preset("voicevault").over(base)


def converse(pipeline: Pipeline, model: TextModel, questions: list[str]) -> None:
    """Ask one after the other; the turns before stand in front of what the model reads."""
    turns: list[tuple[str, str]] = []
    for question in questions:
        print(f"\nQ: {question}")
        result = pipeline.search(question, history=turns)
        show_hits(result)
        answer = model.complete(f"{ContextBuilder().instruction}\n\n{result.context}\n\nQuestion: {question}")
        print(f"A: {answer}")
        for marker in resolve_citations(answer, result.context.citations).markers:
            named = " and ".join(str(one.index) for one in marker.citations)
            print(f"   {marker.text} names {f'source {named}' if named else 'no source'}")
        turns.append((question, answer))


def main() -> None:
    """Index the folder, ask the questions, and print the answers with what their markers name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="the turns of one conversation")
    parser.add_argument("--folder", type=Path, default=shipped("sample") / "documents", help="documents to read")
    parser.add_argument("--kb", default="sample", help="the knowledge base that they are kept in  [sample]")
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--ollama", metavar="MODEL", help="writes the answers; without it a script does")
    parser.add_argument("--base-url", metavar="URL", help="where the Ollama is  [http://localhost:11434]")
    args = parser.parse_args()

    print(f"model: {args.ollama or SCRIPTED}")
    model = text_model(args.ollama, args.base_url)
    converse(pipeline_over(args.folder, args.kb, args.root), model, args.questions)


if __name__ == "__main__":
    main()
