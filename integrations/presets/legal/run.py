"""The preset `legal`: a statute book by four channels, each question routed, the sections' Parts read."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from voicevault_retrievers import Chunk, KnowledgeBase, Pipeline, Result
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.store.graphs import update_graph
from voicevault_retrievers.store.questions import question_index

sys.path.append(str(Path(__file__).parents[2]))
from shown import found

STATUTES = Path(__file__).parents[3] / "notebooks" / "data" / "statutes" / "corpus.jsonl"
ACTS = {"HNA": "Harbour and Navigation Act", "WSA": "Water Supply Act", "PRA": "Public Records Act"}
QUESTIONS = [
    "What does section 49 HNA require?",
    "Who may put a boat on the beach?",
    "Compare section 49 HNA with the rule on pilots",
    "Analyse and evaluate the duties of pilots",
]


def sections(path: Path) -> tuple[list[Chunk], list[Chunk]]:
    """The sections of the acts, and what they are read with: the Part that each is in, and the name of its act."""
    chunks, parts = [], defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        act, part, text = one["metadata"]["act"], one["metadata"]["part"], f"{one['title']}. {one['text']}"
        told = {**one["metadata"], "title": one["title"], "source_file": ACTS[act], "header_id": act}
        chunks.append(Chunk(one["_id"], text, f"{act}-{part}", told))
        parts[f"{act}-{part}"].append(text)
    parents = [Chunk(name, "\n\n".join(texts)) for name, texts in parts.items()]
    return chunks, [*parents, *(Chunk(act, name) for act, name in ACTS.items())]


def question(chunk: Chunk) -> list[str]:
    """The question that a section answers, made of its title; in its place a language model writes better ones."""
    return [f"What is the rule on {chunk.metadata['title'].split('. ')[1]}?"]


def statute_book(root: Path | None) -> KnowledgeBase:
    """The knowledge base of the statutes with their questions and their graph; what is there already stays."""
    chunks, parents = sections(STATUTES)
    with KnowledgeBase.open_or_create("law", root=root, embedder=load_embedder()) as base:
        base.add(chunks, parents=parents)
        question_index(base).update(question)
        update_graph(base)
    return base


def pipeline_over(base: KnowledgeBase) -> Pipeline:
    """The preset with the reranker of the extra `offline`, which reads 20 of the fused order."""
    data = preset_data("legal")
    data["stages"][0]["rerank"] |= {"model": "accurate", "depth": 20}
    return Preset.of(data).over(base)


def show(result: Result) -> None:
    """The route, what the graph says by itself, and each hit with what led to it and what a model reads of it."""
    print(f"\nQ: {result.query.text}")
    route = result.route.value if result.route else "none"
    print(f"   route {route}: {', '.join(result.channels_used)}; FLARE searched {result.flare_retrievals} times")
    if result.kg_direct_answer is not None:
        print(f"   the graph answers: {result.kg_direct_answer['text'][:90]} ...")
    for rank, hit in enumerate(result.hits, 1):
        print(f"   {rank}. {hit.chunk.metadata['title']} {found(hit)}")
        for vote in hit.votes:
            if vote.via:
                print(f"      {vote.stage}: {' > '.join(vote.via)}")
        print(f"      {len(hit.chunk.text):,} characters found, {len(hit.text):,} read: {hit.chunk.parent_id}")
    print(f"   {result.context_tokens:,} tokens of 30,000")


def main() -> None:
    """Index the statutes, ask the questions, and print by which route each was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--root", type=Path, help="where knowledge bases are  [~/.voicevault/kbs]")
    parser.add_argument("--top-k", type=int, default=3, help="how many results  [3; the preset has 20]")
    args = parser.parse_args()

    print("questions of the sections: scripted (no language model: made of their titles)")
    pipeline = pipeline_over(statute_book(args.root))
    for asked in args.questions:
        show(pipeline.search(asked, args.top_k))


if __name__ == "__main__":
    main()
