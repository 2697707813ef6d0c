"""What questions, the graph of references and parents do to retrieval.

    python -m tests.benchmarks.structure DATA

Statutes, the made book of notebooks/data/statutes and DATA/aila2019-statutes: nDCG@10 and recall@20 of each channel of
the preset `legal`, and of their fusions. Questions are made by rules, from each section's own words: no language model
is asked. Pages, DATA/mmlongbench-pages: the preset `casefile` but for its language model, children of 2,000 characters
and parents of 8,000, each question asked inside its PDF; which part of the answer's pages, and of their text, is in the
context. Writes results/structure.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.quality import drawn, load
from tests.benchmarks.results import Row, write
from voicevault_retrievers import (
    RRF,
    Channel,
    Chunk,
    GraphExpansion,
    KnowledgeBase,
    Pipeline,
    Query,
    Result,
    fuse,
    question_index,
)
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import Document, Part, split_families
from voicevault_retrievers.evaluation import Judged, ndcg, rule_questions
from voicevault_retrievers.evaluation.metrics import recall
from voicevault_retrievers.evaluation.run_cache import remembered
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.pipeline.presets import Preset, preset_data

STATUTES = Path(__file__).parents[2] / "notebooks" / "data" / "statutes"
PAGES = "mmlongbench-pages"
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "openvino", "onnxruntime")
DEPTH = 20
PLAIN = "bm25 + dense"


def statutes(folder: Path) -> tuple[list[Chunk], list[Judged]]:
    """A book's sections with their metadata, and its questions."""
    chunks, judged = load(folder)
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    told = {one["_id"]: {**one.get("metadata", {}), "title": one.get("title") or ""} for one in lines}
    return [Chunk(chunk.id, chunk.text, metadata=told[chunk.id]) for chunk in chunks], judged


def channels(kb: KnowledgeBase) -> dict[str, Channel]:
    """Those of `legal` alone, fused by rank, and what questions and the graph add."""
    by_chunk: defaultdict[str, list[str]] = defaultdict(list)
    for one in rule_questions(kb, 3 * len(kb)):
        for chunk_id in one.grades:
            by_chunk[chunk_id].append(one.text)
    question_index(kb).update(lambda chunk: by_chunk[chunk.id][:3])
    alone: dict[str, Channel] = {
        "bm25": remembered(kb.bm25()),
        "dense": remembered(kb.dense()),
        "questions": remembered(kb.questions()),
        "graph": kb.graph(),
    }
    with_graph = _by_rank(alone, "bm25", "dense", "graph")
    return {
        **alone,
        PLAIN: _by_rank(alone, "bm25", "dense"),
        "+ questions": _by_rank(alone, "bm25", "dense", "questions"),
        "+ graph": with_graph,
        "+ graph, >> graph_expansion": with_graph >> GraphExpansion(kb.references()),
        "+ questions + graph, >> graph_expansion": _by_rank(alone, *alone) >> GraphExpansion(kb.references()),
    }


def _by_rank(channels: Mapping[str, Channel], *names: str) -> Channel:
    return fuse({name: channels[name] for name in names}, method=RRF())


def measure(case: str, every: Mapping[str, Channel], questions: Sequence[Judged]) -> Iterator[Row]:
    """nDCG@10 and recall@20 of each channel; of what is added to the plain hybrid, the gain with its interval."""
    found = {
        name: [(channel.search(one.text, DEPTH).ids, one.grades) for one in questions]
        for name, channel in every.items()
    }
    ndcgs = {name: [ndcg(ids, grades, 10) for ids, grades in each] for name, each in found.items()}
    recalls = {name: [recall(ids, grades, DEPTH) for ids, grades in each] for name, each in found.items()}
    for name in every:
        yield Row(name, case, "nDCG@10", float(np.mean(ndcgs[name])))
        yield Row(name, case, "recall@20", float(np.mean(recalls[name])))
        if name.startswith("+"):
            gain = paired(ndcgs[PLAIN], ndcgs[name])
            yield Row(name, case, "gain in nDCG@10", gain.difference)
            yield Row(name, case, "gain, lower end", gain.low)
            yield Row(name, case, "gain, upper end", gain.high)


def pages(folder: Path) -> Iterator[Row]:
    """Recall of the answer's pages in the context, and how much of their text is in it."""
    texts = {chunk.id: chunk.text for chunk in load(folder)[0]}
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    for name, text in texts.items():
        file, page = name.rsplit("#p", 1)
        if text.strip():
            parts[file].append(Part(text, int(page)))
    split = [
        split_families(Document(file, tuple(sorted(own, key=lambda part: part.page_number or 0))))
        for file, own in parts.items()
    ]
    children = [chunk for one in split for chunk in one.chunks]
    judged = [one for one in load(folder)[1] if any(texts[page].strip() for page in one.grades)]
    questions = drawn(judged, 200)
    with (
        tempfile.TemporaryDirectory() as kept,
        KnowledgeBase.create("case", root=kept, embedder=load_embedder()) as kb,
    ):
        kb.add(children, parents=[parent for one in split for parent in one.parents])
        for k in (3, 5, 10):
            for system, pipeline in casefile(kb, k).items():
                shares = [_shares(pipeline, one, children, texts) for one in questions]
                case = f"{PAGES}, k={k}"
                yield Row(system, case, "recall of the answer's pages", float(np.mean([seen for seen, *_ in shares])))
                yield Row(system, case, "part of their text", float(np.mean([part for _, part, *_ in shares])))
                yield Row(system, case, "longest context, characters", float(max(length for *_, length, _ in shares)))
                yield Row(system, case, "parents given twice", float(sum(twice for *_, twice in shares)))


def casefile(kb: KnowledgeBase, k: int) -> dict[str, Pipeline]:
    """The preset `casefile` without its language model, for there is none, and without parents too."""
    data = preset_data("casefile") | {"access": "optional"}
    parents = [stage for stage in data["stages"] if "parents" in stage]
    return {
        "children alone": Preset.of({**data, "k": k, "stages": []}).over(kb),
        "with parents": Preset.of({**data, "k": k, "stages": parents}).over(kb),
    }


def _shares(
    pipeline: Pipeline, question: Judged, children: Sequence[Chunk], texts: Mapping[str, str]
) -> tuple[float, float, int, int]:
    """The part of the answer's pages, and of their text, that is there; the context's length; what is in it twice."""
    wanted = [page for page in question.grades if texts[page].strip()]
    file = wanted[0].rsplit("#p", 1)[0]
    result = pipeline.search(Query(question.text, where={"source_file": file}))
    own = [chunk for chunk in children if chunk.metadata["source_file"] == file]
    there = {chunk.id for chunk in own if _is_in(chunk, result)}
    parts = []
    for page in wanted:
        of_page = [one for one in own if str(one.metadata["page_number"]) == page.rsplit("#p", 1)[1]]
        total = sum(len(one.text) for one in of_page)
        parts.append(sum(len(one.text) for one in of_page if one.id in there) / max(1, total))
    read = [hit.context for hit in result.hits if hit.context]
    length = len(str(result.context))
    return float(np.mean([part > 0 for part in parts])), float(np.mean(parts)), length, len(read) - len(set(read))


def _is_in(chunk: Chunk, result: Result) -> bool:
    return any(chunk.text in citation.text for citation in result.context.citations)


def main(data: Path) -> None:
    """Measure what is there, and write the rows."""
    rows: list[Row] = []
    for case, folder in (("statute book", STATUTES), ("aila2019-statutes", data / "aila2019-statutes")):
        if folder.is_dir():
            chunks, questions = statutes(folder)
            with (
                tempfile.TemporaryDirectory() as kept,
                KnowledgeBase.create("law", root=kept, embedder=load_embedder()) as kb,
            ):
                kb.add(chunks)
                rows += measure(case, channels(kb), questions)
    if (data / PAGES).is_dir():
        rows += pages(data / PAGES)
    sys.stdout.write("".join(f"{row}\n" for row in rows))
    write("structure", rows, PACKAGES)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
