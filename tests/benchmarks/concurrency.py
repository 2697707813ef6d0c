"""Fifty searches at once, beside EnsembleRetriever with the same channels; writes results/concurrency.json.

python -m tests.benchmarks.concurrency

Three channels and a reranker. "remote": each channel awaits 20 ms, as a server would answer, and the reranker holds a
thread for 20 ms. "local": BM25 and exact vectors over 2,000 documents, an InMemoryVectorStore, and a reranker that
costs nothing; 20 documents of each channel. The peer's reranker stands in LangChain's ContextualCompressionRetriever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore

from tests.benchmarks.concurrency_measure import WAIT, Searched, by_length, compared, texts
from tests.benchmarks.results import write
from tests.helpers import HashEmbedder
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, VectorRetriever
from voicevault_retrievers.pipeline.options import Fusion

PEER = "EnsembleRetriever"


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
    documents = [Document(text, id=f"d{at:04d}") for at, text in enumerate(texts(2000, 40))]
    rows = [
        *compared("remote", {"voicevault": _ours(_remote(documents), WAIT), PEER: _theirs(_remote(documents), WAIT)}),
        *compared("local", {"voicevault": _ours(_local(documents), 0.0), PEER: _theirs(_local(documents), 0.0)}),
    ]
    write("concurrency", rows, ["voicevault-retrievers", "langchain-core", "langchain-classic"])


def _ours(channels: dict[str, BaseRetriever], wait: float) -> Searched:
    ours = HybridRetriever(channels=channels, rerank=by_length(wait), fusion=Fusion(depth=20))
    return Searched(ours.invoke, ours.ainvoke)


def _theirs(channels: dict[str, BaseRetriever], wait: float) -> Searched:
    ensemble = EnsembleRetriever(retrievers=list(channels.values()), weights=[1 / 3] * 3)
    theirs = ContextualCompressionRetriever(base_retriever=ensemble, base_compressor=PeerReranker(wait=wait))
    return Searched(theirs.invoke, theirs.ainvoke)


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


if __name__ == "__main__":
    main()
