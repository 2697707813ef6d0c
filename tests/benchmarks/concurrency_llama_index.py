"""Fifty searches at once, beside QueryFusionRetriever over the same retrievers; writes its own file in results/.

python -m tests.benchmarks.concurrency_llama_index

Three channels and a reranker. "remote": each channel awaits 20 ms, as a server would answer, and the reranker holds a
thread for 20 ms. "local": BM25 and exact vectors over 2,000 nodes, a VectorStoreIndex, and a reranker that costs
nothing; 20 nodes of each channel. The peer fuses by RRF, writes no queries, and searches its children by their async
search, as it does by default; a postprocessor reranks what it found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from tests.benchmarks.concurrency_measure import WAIT, Searched, by_length, compared, texts
from tests.benchmarks.results import write
from tests.frameworks.llama_index_parts import HashEmbedding
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, VectorRetriever
from voicevault_retrievers.pipeline.options import Fusion

DEPTH, PEER = 20, "QueryFusionRetriever"


class Remote(BaseRetriever):
    """Answers after a while, as a server would."""

    def __init__(self, found: Sequence[TextNode]) -> None:
        super().__init__()
        self.nodes = found

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        time.sleep(WAIT)
        return self._found()

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        await asyncio.sleep(WAIT)
        return self._found()

    def _found(self) -> list[NodeWithScore]:
        """New ones each time: the peer writes its scores into them."""
        return [NodeWithScore(node=node, score=1 / at) for at, node in enumerate(self.nodes, 1)]


class PeerRerank(BaseNodePostprocessor):
    """Reranks as LlamaIndex's own do: in a thread, by the default of `apostprocess_nodes`."""

    wait: float

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        time.sleep(self.wait)
        return sorted(nodes, key=lambda node: -len(node.text))


def main() -> None:
    """Measure and write."""
    nodes = [TextNode(id_=f"d{at:04d}", text=text) for at, text in enumerate(texts(2000, 40))]
    rows = [
        *compared("remote", {"voicevault": _ours(_remote(nodes), WAIT), PEER: _theirs(_remote(nodes), WAIT)}),
        *compared("local", {"voicevault": _ours(_local(nodes), 0.0), PEER: _theirs(_local(nodes), 0.0)}),
    ]
    write("concurrency_llama_index", rows, ["voicevault-retrievers", "llama-index-core"])


def _ours(channels: dict[str, BaseRetriever], wait: float) -> Searched:
    ours = HybridRetriever(channels=channels, rerank=by_length(wait), fusion=Fusion(depth=DEPTH))
    return Searched(ours.retrieve, ours.aretrieve)


def _theirs(channels: dict[str, BaseRetriever], wait: float) -> Searched:
    fusion = QueryFusionRetriever(
        list(channels.values()),
        llm=MockLLM(),
        mode=FUSION_MODES.RECIPROCAL_RANK,
        num_queries=1,
        similarity_top_k=DEPTH,
    )
    rerank = PeerRerank(wait=wait)

    def search(query: str) -> list[NodeWithScore]:
        return rerank.postprocess_nodes(fusion.retrieve(query), query_str=query)

    async def asearch(query: str) -> list[NodeWithScore]:
        return await rerank.apostprocess_nodes(await fusion.aretrieve(query), query_str=query)

    return Searched(search, asearch)


def _remote(nodes: list[TextNode]) -> dict[str, BaseRetriever]:
    return {name: Remote(nodes[at : at + DEPTH]) for at, name in enumerate(("one", "two", "three"))}


def _local(nodes: list[TextNode]) -> dict[str, BaseRetriever]:
    model = HashEmbedding(embed_dim=64)
    return {
        "bm25": BM25Retriever.from_nodes(nodes, k=DEPTH),
        "dense": VectorRetriever.from_nodes(nodes, model, k=DEPTH),
        "index": VectorStoreIndex(nodes=nodes, embed_model=model).as_retriever(similarity_top_k=DEPTH),
    }


if __name__ == "__main__":
    main()
