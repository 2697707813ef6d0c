"""What each query expansion does to retrieval, on judged collections in BEIR layout.

    python -m tests.benchmarks.quality_expansion DATA [COLLECTION ...]

nDCG@10 of BM25 alone and of the hybrid (BM25 and vectors, fused by the default method), with and without each
expansion, of at most 300 questions a collection; the gain with its 95 % interval and the p of a paired randomisation
test. Synonyms need somebody's list, other wordings and made-up answers a language model: they are not measured.
Writes results/quality_expansion.json, collection by collection; rows of others stay.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.quality import drawn, load, ndcgs, run, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, Channel, VectorChannel, fuse
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.dense import SentenceTransformerEmbedder
from voicevault_retrievers.evaluation import Judged, ndcg
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.query import RM3, AcronymExpansion, CompoundExpansion, RuleExpansion, SpellingExpansion
from voicevault_retrievers.query.expansion import keywords

QUESTIONS = 300
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "torch")


class Keywords(Rewriter):
    """The content words of a question as its only other wording."""

    name = "keywords"

    def rewrite(self, query: Query) -> Query:
        words = keywords(query.text)
        return replace(query, variants=(Variant(words),)) if words else query


EXPANSIONS: dict[str, Rewriter] = {
    "rules": RuleExpansion(3),
    "keywords": Keywords(),
    "acronyms": AcronymExpansion(),
    "compounds": CompoundExpansion(),
    "spelling": SpellingExpansion(),
    "rm3": RM3(),
}


class Remembering:
    """An embedder that embeds each question once."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self.known: dict[str, NDArray[np.float32]] = {}

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.embedder.embed_documents(texts)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known |= dict(zip(new, self.embedder.embed_queries(new), strict=True))
        return np.array([self.known[text] for text in texts])


def expanded(
    channel: Channel, questions: Sequence[Judged], queries: Sequence[Query], plain: Sequence[float]
) -> list[float]:
    """nDCG@10 of each question as it is expanded; that of the plain one where nothing was added."""
    return [
        ndcg(channel.search(query, 10).ids, question.grades, 10) if query.variants else score
        for question, query, score in zip(questions, queries, plain, strict=True)
    ]


def measure(name: str, folder: Path, embedder: Embedder) -> list[Row]:
    """The rows of one collection."""
    chunks, judged = load(folder)
    questions = drawn(judged, QUESTIONS)
    bm25 = BM25.from_chunks(chunks)
    hybrid = fuse(bm25=bm25, dense=VectorChannel(vectors(chunks, embedder), embedder))
    plain = {"BM25": ndcgs(bm25, questions), "hybrid": ndcgs(hybrid, questions)}
    rows = [Row(system, name, "nDCG@10", sum(found) / len(found)) for system, found in plain.items()]
    for expansion, rewriter in EXPANSIONS.items():
        bound = rewriter.over(bm25)
        queries = [bound.rewrite(Query(question.text)) for question in questions]
        rows.append(Row(expansion, name, "changed", sum(bool(query.variants) for query in queries) / len(queries)))
        for system, channel in {"BM25": bm25, "hybrid": hybrid}.items():
            gain = paired(plain[system], expanded(channel, questions, queries, plain[system]))
            figures = {"gain": gain.difference, "low": gain.low, "high": gain.high, "p": gain.p}
            rows += [Row(f"{system} + {expansion}", name, metric, value) for metric, value in figures.items()]
            sys.stdout.write(f"{name:18} {system:6} {expansion:10} {gain}\n")
            sys.stdout.flush()
    return rows


def main(data: Path, names: Sequence[str]) -> None:
    """Measure each collection and write the rows."""
    embedder = Remembering(SentenceTransformerEmbedder("all-MiniLM-L6-v2"))
    for name in names:
        write("quality_expansion", measure(name, data / name, embedder), PACKAGES, merge=True)


if __name__ == "__main__":
    run(main)
