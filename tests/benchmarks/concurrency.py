"""Fifty searches at once, beside EnsembleRetriever with the same channels; writes results/concurrency.json.

python -m tests.benchmarks.concurrency

Three channels and a reranker. "remote": each channel awaits 20 ms, as a server would answer, and the reranker holds a
thread for 20 ms. "local": BM25 and exact vectors over 2,000 documents, an InMemoryVectorStore, and a reranker that
costs nothing; 20 documents of each channel. The peer's reranker stands in LangChain's ContextualCompressionRetriever.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore

from tests.benchmarks.results import Row, write
from tests.helpers import HashEmbedder
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, VectorRetriever
from voicevault_retrievers.rerank import CallableScorer

SEARCHES, ROUNDS, WAIT = 50, 5, 0.02
WORDS = [f"word{at}" for at in range(500)]


class Remote(BaseRetriever):
    """Answers after a while, as a server would."""

    found: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        time.sleep(WAIT)
        return self.found

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(WAIT)
        return self.found


class PeerReranker(BaseDocumentCompressor):
    """Reranks as LangChain's own do: in a thread, by the default of `acompress_documents`."""

    wait: float

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        time.sleep(self.wait)
        return sorted(documents, key=lambda document: -len(document.page_content))


def main() -> None:
    """Measure and write."""
    rng = np.random.default_rng(7)
    documents = [Document(" ".join(rng.choice(WORDS, 40)), id=f"d{at:04d}") for at in range(2000)]
    queries = [" ".join(rng.choice(WORDS, 3)) for _ in range(SEARCHES)]
    rows = []
    for case, channels, wait in (("remote", _remote(documents), WAIT), ("local", _local(documents), 0.0)):
        for system, searches in _systems(channels, wait).items():
            for metric, value in _measured(searches, queries).items():
                rows.append(Row(system, case, metric, value))
    write("concurrency", rows, ["voicevault-retrievers", "langchain-core", "langchain-classic"])


def _systems(channels: dict[str, BaseRetriever], wait: float) -> dict[str, Any]:
    def score(query: str, passages: Sequence[str]) -> list[float]:
        time.sleep(wait)
        return [float(len(passage)) for passage in passages]

    ensemble = EnsembleRetriever(retrievers=list(channels.values()), weights=[1 / 3] * 3)
    return {
        "voicevault": HybridRetriever(channels=channels, depth=20, rerank=CallableScorer(score, name="by length")),
        "EnsembleRetriever": ContextualCompressionRetriever(
            base_retriever=ensemble, base_compressor=PeerReranker(wait=wait)
        ),
    }


def _remote(documents: list[Document]) -> dict[str, BaseRetriever]:
    return {name: Remote(found=documents[at : at + 20]) for at, name in enumerate(("one", "two", "three"))}


def _local(documents: list[Document]) -> dict[str, BaseRetriever]:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=64))
    store.add_documents(documents)
    return {
        "bm25": BM25Retriever.from_documents(documents, k=20),
        "dense": VectorRetriever.from_documents(documents, HashEmbedder(64), k=20),
        "store": store.as_retriever(search_kwargs={"k": 20}),
    }


def _measured(searched: Any, queries: Sequence[str]) -> dict[str, float]:
    async def at_once() -> None:
        await asyncio.gather(*(searched.ainvoke(query) for query in queries))

    at_once_s = _median(lambda: asyncio.run(at_once()))
    one_s = _median(lambda: [searched.invoke(query) for query in queries[:10]])
    return {"searches/s, 50 at once": SEARCHES / at_once_s, "ms, one alone": one_s / 10 * 1e3}


def _median(run: Callable[[], Any]) -> float:
    run()
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
