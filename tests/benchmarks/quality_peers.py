"""The frameworks' own hybrid retrievers as they come, over the same vectors: LangChain's and LlamaIndex's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import Stemmer
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import BaseRetriever as LlamaIndexRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.retrievers.bm25 import BM25Retriever as LlamaIndexBM25
from numpy.typing import NDArray

from tests.benchmarks.quality import DEPTH, Ahead, Judged
from voicevault_retrievers import Chunk
from voicevault_retrievers.evaluation import ndcg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # langchain-community says at import that it is no longer kept
    from langchain_community.retrievers import BM25Retriever as LangChainBM25

LANGCHAIN = "LangChain EnsembleRetriever"
LLAMA_INDEX = "LlamaIndex QueryFusionRetriever"
FETCHED = 100

Search = Callable[[str], Sequence[str]]
Nearest = Callable[[str], list[int]]
"""From a question to the places of the nearest chunks, by ascending id."""


def gains(
    chunks: Sequence[Chunk], matrix: NDArray[np.float32], embedder: Ahead, questions: Sequence[Judged]
) -> dict[str, list[float]]:
    """Of each peer the nDCG@10 of every question; `matrix` is that of the chunks by ascending id."""
    ordered = sorted(chunks, key=lambda chunk: chunk.id)

    def nearest(text: str) -> list[int]:
        found: list[int] = np.argsort(-(matrix @ embedder.rows[text]), kind="stable")[:FETCHED].tolist()
        return found

    searches: Mapping[str, Search] = {
        LANGCHAIN: _langchain(ordered, nearest),
        LLAMA_INDEX: _llama_index(ordered, nearest),
    }
    return {
        name: [ndcg(search(question.text), question.grades, DEPTH) for question in questions]
        for name, search in searches.items()
    }


def _langchain(chunks: Sequence[Chunk], nearest: Nearest) -> Search:
    documents = [Document(chunk.text, metadata={"id": chunk.id}) for chunk in chunks]

    class Dense(LangChainRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
            return [documents[at] for at in nearest(query)]

    words = LangChainBM25.from_documents(
        [document for document in documents if document.page_content.split()], k=FETCHED
    )
    both = EnsembleRetriever(retrievers=[words, Dense()], weights=[0.5, 0.5], id_key="id")
    return lambda text: [document.metadata["id"] for document in both.invoke(text)]


def _llama_index(chunks: Sequence[Chunk], nearest: Nearest) -> Search:
    nodes = [TextNode(id_=chunk.id, text=chunk.text) for chunk in chunks]

    class Dense(LlamaIndexRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return [
                NodeWithScore(node=nodes[at], score=1 / (1 + rank))
                for rank, at in enumerate(nearest(query_bundle.query_str))
            ]

    words = LlamaIndexBM25.from_defaults(
        nodes=nodes, similarity_top_k=min(FETCHED, len(nodes)), stemmer=Stemmer.Stemmer("english"), language="en"
    )
    both = QueryFusionRetriever(
        [words, Dense()],
        llm=MockLLM(),
        mode="reciprocal_rerank",
        num_queries=1,
        similarity_top_k=FETCHED,
        use_async=False,
    )
    return lambda text: [found.node.node_id for found in both.retrieve(text)]
