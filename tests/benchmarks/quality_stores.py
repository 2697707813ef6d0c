"""Retrieval quality over a framework's vector store: Chroma in LangChain and in LlamaIndex, fused by default.

    python -m tests.benchmarks.quality_stores DATA [COLLECTION ...]

nDCG@10 of BM25 over a copy of the store's chunks and the store's own search, beside the same over vectors in memory,
which give exact scores of all hits, and beside what a store without any scores is fused by. Chroma has its default
index and distance. Writes results/quality_stores.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import chromadb
from langchain_chroma import Chroma
from langchain_core.embeddings import Embeddings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore
from pydantic import PrivateAttr

from tests.benchmarks.quality import COLLECTIONS, DEPTH, OURS, RANKS, SENSE, WORDS, Ahead, drawn, load, ndcgs, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, RRF, Channel, Chunk, VectorChannel, fuse, langchain, llama_index
from voicevault_retrievers.dense import ExactVectors, SentenceTransformerEmbedder
from voicevault_retrievers.evaluation import Judged
from voicevault_retrievers.evaluation.significance import paired

MOST = 200
AT_ONCE = 5000
LANGCHAIN, RETRIEVER, LLAMA_INDEX = "Chroma in LangChain", "its retriever in LangChain", "Chroma in LlamaIndex"


class LangChainQuestions(Embeddings):
    """The kept embeddings of questions."""

    def __init__(self, ahead: Ahead) -> None:
        self.ahead = ahead

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError("the store is given vectors")

    def embed_query(self, text: str) -> list[float]:
        return self.ahead.rows[text].tolist()  # type: ignore[no-any-return]  # numpy says Any


class LlamaIndexQuestions(BaseEmbedding):
    """The kept embeddings of questions."""

    _ahead: Ahead = PrivateAttr()

    def __init__(self, ahead: Ahead) -> None:
        super().__init__(model_name="kept")
        self._ahead = ahead

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._ahead.rows[query].tolist()  # type: ignore[no-any-return]  # numpy says Any

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        raise NotImplementedError("the store is given vectors")


def channels(chunks: Sequence[Chunk], index: ExactVectors, ahead: Ahead) -> dict[str, Channel]:
    """Of each system the vector channel."""
    (part,) = index.parts
    rows = dict(zip(part.rows.ids, part.matrix.tolist(), strict=True))
    client = chromadb.EphemeralClient()
    for name in ("langchain", "llama_index"):
        if name in {collection.name for collection in client.list_collections()}:
            client.delete_collection(name)
    store = Chroma("langchain", LangChainQuestions(ahead), client=client)
    other = ChromaVectorStore(chroma_collection=client.create_collection("llama_index"))
    for start in range(0, len(chunks), AT_ONCE):
        some = chunks[start : start + AT_ONCE]
        given: Any = [rows[chunk.id] for chunk in some]
        store._collection.add([one.id for one in some], given, documents=[one.text or " " for one in some])
        other.add([TextNode(id_=one.id, text=one.text, embedding=rows[one.id]) for one in some])
    return {
        OURS: VectorChannel(index, ahead),
        LANGCHAIN: langchain.as_channel(store),
        RETRIEVER: langchain.as_channel(store.as_retriever(search_kwargs={"k": 100})),
        LLAMA_INDEX: llama_index.as_channel(other, embed_model=LlamaIndexQuestions(ahead)),
    }


def gains(chunks: Sequence[Chunk], questions: Sequence[Judged], embedder: SentenceTransformerEmbedder) -> Any:
    """Of each system the nDCG@10 of every question."""
    index, ahead = vectors(chunks, embedder), Ahead(embedder, [question.text for question in questions])
    words, dense = BM25.from_chunks(chunks), channels(chunks, index, ahead)
    found = {name: ndcgs(fuse({"bm25": words, "dense": one}), questions) for name, one in dense.items()}
    ranks = fuse({"bm25": words, "dense": dense[OURS]}, method=RRF())
    parts = {WORDS: ndcgs(words, questions), SENSE: ndcgs(dense[OURS], questions), RANKS: ndcgs(ranks, questions)}
    return {**parts, **found}


def rows(data: Path, names: Sequence[str]) -> Iterator[Row]:
    """nDCG@10 by collection, and on the mean with the difference from exact scores."""
    embedder = SentenceTransformerEmbedder()
    every: dict[str, list[float]] = {}
    means: dict[str, list[float]] = {}
    for name in names:
        if not (data / name).is_dir():
            sys.stdout.write(f"skipped: no {name} in BEIR layout in {data}\n")
            continue
        chunks, questions = load(data / name)
        for system, values in gains(chunks, drawn(questions, MOST), embedder).items():
            every.setdefault(system, []).extend(values)
            means.setdefault(system, []).append(fmean(values))
            yield Row(system, name, f"nDCG@{DEPTH}", fmean(values))
    for system in means:
        yield Row(system, "mean", f"nDCG@{DEPTH}", fmean(means[system]))
        if system not in (OURS, WORDS, SENSE):
            over = paired(every[OURS], every[system])
            yield Row(system, "all questions", "over exact scores", over.difference)
            yield Row(system, "all questions", "over exact scores, low", over.low)
            yield Row(system, "all questions", "over exact scores, high", over.high)


def main(args: Sequence[str]) -> None:
    found = []
    for row in rows(Path(args[0]), args[1:] or COLLECTIONS):
        sys.stdout.write(f"{row}\n")
        found.append(row)
    if found:
        packages = ["langchain-chroma", "llama-index-vector-stores-chroma", "chromadb", "sentence-transformers"]
        write("quality_stores", found, ["voicevault-retrievers", "numpy", "PyStemmer", *packages])


if __name__ == "__main__":
    main(sys.argv[1:])
