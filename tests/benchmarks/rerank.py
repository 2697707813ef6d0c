"""Pairs a second of one cross-encoder, ms-marco-MiniLM-L-12-v2, through every backend and the frameworks' rerankers.

    python -m tests.benchmarks.rerank DATA

Passages are what BM25 finds for real questions, read as they are (at most 512 tokens with the query). The weights are
the packed int8 ones; where a system reads floats, these made floats (`float_weights`). Systems take turns, and a figure
is the median over the questions. Writes results/rerank.json.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from tests.benchmarks.float_weights import MODEL, write_folder
from tests.benchmarks.quality import load
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25
from voicevault_retrievers.evaluation import Judged, ndcg
from voicevault_retrievers.rerank import OnnxScorer, OpenVinoScorer, SentenceTransformerScorer

Scores: TypeAlias = Callable[[str, Sequence[str]], Sequence[float]]

COLLECTIONS = ("scifact", "mmlongbench-pages")
COUNTS = (20, 50, 100)
RUNS = 3
JUDGED = 40
PEER = "sentence-transformers, CrossEncoder.predict"
PACKAGES = (
    "voicevault-retrievers", "onnxruntime", "openvino", "sentence-transformers", "torch",
    "langchain-classic", "langchain-community", "llama-index-core",
)  # fmt: skip


def systems(folder: Path) -> dict[str, Scores]:
    """Each loads before it is timed; all give a score per passage, in their order."""
    return {
        PEER: _sentence_transformers(folder),
        "LangChain, CrossEncoderReranker": _langchain(folder),
        "LlamaIndex, SentenceTransformerRerank": _llama_index(folder),
        "ours, sentence-transformers": SentenceTransformerScorer(str(folder)).score,
        "ours, onnxruntime int8": OnnxScorer(MODEL).score,
        "ours, OpenVINO f32": OpenVinoScorer(MODEL, precision="f32").score,
        "ours, OpenVINO by default": OpenVinoScorer(MODEL).score,
    }


def _sentence_transformers(folder: Path) -> Scores:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), local_files_only=True)
    return lambda query, passages: [float(score) for score in model.predict([(query, one) for one in passages])]


def _langchain(folder: Path) -> Scores:
    from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
    from langchain_community.cross_encoders import HuggingFaceCrossEncoder
    from langchain_core.documents import Document

    made = CrossEncoderReranker(model=HuggingFaceCrossEncoder(model_name=str(folder)), top_n=10_000)

    def score(query: str, passages: Sequence[str]) -> list[float]:
        given = [Document(text, metadata={"at": at}) for at, text in enumerate(passages)]
        found = made.compress_documents(given, query)
        return _falling([document.metadata["at"] for document in found])  # it throws the scores away

    return score


def _llama_index(folder: Path) -> Scores:
    from llama_index.core.postprocessor import SentenceTransformerRerank
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    made = SentenceTransformerRerank(model=str(folder), top_n=10_000)

    def score(query: str, passages: Sequence[str]) -> list[float]:
        given = [NodeWithScore(node=TextNode(text=text, id_=str(at))) for at, text in enumerate(passages)]
        return _falling([int(node.node_id) for node in made.postprocess_nodes(given, QueryBundle(query))])

    return score


def _falling(order: Sequence[int]) -> list[float]:
    """Scores that give this order."""
    return [-float(rank) for rank in np.argsort(order)]


def timed(every: Mapping[str, Scores], asked: Sequence[tuple[str, Sequence[str]]]) -> dict[str, list[float]]:
    """The seconds of each system for each question; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in every}
    for query, passages in asked:
        for name, score in every.items():
            began = time.perf_counter()
            score(query, passages)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def speed(name: str, folder: Path, every: Mapping[str, Scores]) -> list[Row]:
    """Seconds and pairs a second for each number of candidates, and how many times the peer's."""
    chunks, questions = load(folder)
    words = BM25.from_chunks(chunks)
    found = [(one.text, [hit.chunk.text for hit in words.search(one.text, max(COUNTS))]) for one in questions[:60]]
    asked = [(query, texts) for query, texts in found if len(texts) == max(COUNTS)][:RUNS]
    rows: list[Row] = []
    for count in COUNTS:
        seconds = timed(every, [(query, texts[:count]) for query, texts in asked])
        for system, times in seconds.items():
            ratios = [theirs / own for theirs, own in zip(seconds[PEER], times, strict=True)]
            rows += [
                Row(system, f"{name}, {count} candidates", "seconds", median(times)),
                Row(system, f"{name}, {count} candidates", "pairs a second", count / median(times)),
                Row(system, f"{name}, {count} candidates", f"times {PEER}", median(ratios)),
            ]
    return rows


def quality(name: str, folder: Path, every: Mapping[str, Scores]) -> list[Row]:
    """nDCG@10 of BM25's first 20 in the order of each system's scores."""
    chunks, questions = load(folder)
    words = BM25.from_chunks(chunks)
    asked = [(one, words.search(one.text, 20)) for one in questions[:JUDGED]]
    rows: list[Row] = []
    for system, score in every.items():
        gains = [
            _gain(one, ranking.ids, score(one.text, [hit.chunk.text for hit in ranking])) for one, ranking in asked
        ]
        rows.append(Row(system, f"{name}, {len(asked)} queries", "nDCG@10", float(np.mean(gains))))
    return rows


def _gain(judged: Judged, ids: Sequence[str], scores: Sequence[float]) -> float:
    order = sorted(range(len(ids)), key=lambda at: -scores[at])
    return ndcg([ids[at] for at in order], judged.grades, 10)


def _show(rows: Sequence[Row], case: str) -> None:
    sys.stdout.write("".join(f"{row}\n" for row in rows if row.case.startswith(case)))
    sys.stdout.flush()


def main(data: Path) -> None:
    """Measure each collection that is there, and write the rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as kept:
        every = systems(write_folder(Path(kept)))
        for score in every.values():
            score("warm up", ["warm up"])
        there = [name for name in COLLECTIONS if (data / name).is_dir()]
        for name in there:
            rows += speed(name, data / name, every)
            _show(rows, name)
        for name in there:
            rows += quality(name, data / name, {s: every[s] for s in every if s.startswith(("ours", PEER))})
            _show(rows, f"{name}, {JUDGED}")
    write("rerank", rows, PACKAGES)


if __name__ == "__main__":
    given: Any = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    if any((given / name).is_dir() for name in COLLECTIONS):
        main(given)
    else:
        sys.stdout.write(f"skipped: no {' or '.join(COLLECTIONS)} in BEIR layout in {given}\n")
