"""Quality of the default settings on judged collections, in many languages that nobody tells the systems.

bm25s has its English stemmer and stopwords. LangChain's BM25Retriever is used where langchain_community is installed;
elsewhere its two steps are taken here: `text.split()`, and the best of rank-bm25's BM25Okapi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import bm25s  # type: ignore[import-untyped]  # it has no types
import rank_bm25
import Stemmer

from tests.benchmarks.lexical_measure import isolated
from tests.benchmarks.quality import load
from tests.benchmarks.results import Row
from voicevault_retrievers import BM25, Chunk
from voicevault_retrievers.evaluation import ndcg

COLLECTIONS = (
    "xquad-zh", "xquad-de", "xquad-en", "xquad-ar", "xquad-r-en", "xquad-r-es", "xquad-r-tr", "scifact", "cranfield",
    "mmlongbench-pages", "covidqa-passages", "cosqa",
)  # fmt: skip
DEPTH = 10

Search = Callable[[str], Sequence[str]]
"""From a question to the ids of the best documents."""


def measure(data: Path) -> Iterator[list[Row]]:
    """nDCG@10 on the collections that the folder has."""
    return (isolated(compare, data / name) for name in COLLECTIONS if (data / name).is_dir())


def compare(folder: Path) -> list[Row]:
    """nDCG@10 of each system on one collection."""
    chunks, questions = load(folder)
    rows = []
    for system, make in (("ours", _ours), ("bm25s", _bm25s), ("LangChain BM25Retriever", _langchain)):
        search = make(chunks)
        gains = [ndcg(search(question.text), question.grades, DEPTH) for question in questions]
        rows.append(Row(system, folder.name, "nDCG@10", sum(gains) / len(gains)))
    return rows


def _ours(chunks: Sequence[Chunk]) -> Search:
    channel = BM25.from_chunks(chunks)
    return lambda question: channel.search(question, DEPTH).ids


def _bm25s(chunks: Sequence[Chunk]) -> Search:
    stemmer, index = Stemmer.Stemmer("english"), bm25s.BM25(k1=1.5)

    def terms(texts: list[str]) -> list[list[str]]:
        found: list[list[str]] = bm25s.tokenize(
            texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )
        return found

    def search(question: str) -> list[str]:
        found = index.retrieve(terms([question]), k=DEPTH, show_progress=False)
        return [chunks[at].id for at, score in zip(found.documents[0], found.scores[0], strict=True) if score > 0]

    index.index(terms([chunk.text for chunk in chunks]), show_progress=False)
    return search


def _langchain(chunks: Sequence[Chunk]) -> Search:
    texts, ids = [chunk.text for chunk in chunks], [chunk.id for chunk in chunks]
    if find_spec("langchain_community") is not None:
        retrievers = import_module("langchain_community.retrievers")
        retriever = retrievers.BM25Retriever.from_texts(texts, metadatas=[{"id": at} for at in ids], k=DEPTH)
        return lambda question: [document.metadata["id"] for document in retriever.invoke(question)]
    ranker = rank_bm25.BM25Okapi([text.split() for text in texts])
    return lambda question: ranker.get_top_n(question.split(), ids, n=DEPTH)
