"""Which nodes are the same: LlamaIndex's own fusion beside ours, over parts that each cut the same documents."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import BaseNode, Document

from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever

QUESTION = "how is the pump reset"
TEXTS = (
    "Reset the pump with the green key.",
    "The pump leaks where its seal is worn.",
    "Reset the alarm, then the pump.",
    "The pump stands at the gate.",
)


def cut(**metadata: Any) -> list[BaseNode]:
    """The nodes of documents as a reader loads them, cut anew: under ids of their own."""
    loaded = [
        Document(text=text, metadata={"file_name": "pump.pdf", "page_label": str(at), **metadata})
        for at, text in enumerate(TEXTS)
    ]
    return SentenceSplitter().get_nodes_from_documents(loaded)


async def test_each_node_comes_once_as_from_the_fusion_of_llama_index_and_is_found_by_both() -> None:
    index = VectorStoreIndex(cut(), embed_model=MockEmbedding(8))
    keywords = BM25Retriever.from_defaults(nodes=cut(), similarity_top_k=10)
    dense = index.as_retriever(similarity_top_k=10)
    native = QueryFusionRetriever(
        [keywords, dense], llm=MockLLM(), num_queries=1, mode="reciprocal_rerank", similarity_top_k=10, use_async=False
    )
    expected = sorted(node.text for node in native.retrieve(QUESTION))
    assert expected == sorted(TEXTS)
    ours = HybridRetriever(channels={"words": keywords, "dense": index}, fusion=RRF(), k=10)
    for found in (ours.retrieve(QUESTION), await ours.aretrieve(QUESTION)):
        assert sorted(node.text for node in found) == expected
        assert all({vote.stage for vote in hit.votes} == {"words", "dense"} for hit in ours.search(QUESTION).hits)
        assert {node.node_id for node in found} == {hit.id for hit in ours.search(QUESTION).hits}


def test_one_text_on_two_pages_is_two_nodes_in_both() -> None:
    twice = [Document(text="Left blank.", metadata={"page_label": page}) for page in ("3", "8")]
    parts = [SentenceSplitter().get_nodes_from_documents(twice) for _ in range(2)]
    index = VectorStoreIndex(parts[0], embed_model=MockEmbedding(8))
    keywords = BM25Retriever.from_defaults(nodes=parts[1], similarity_top_k=10)
    native = QueryFusionRetriever(
        [keywords, index.as_retriever()], llm=MockLLM(), num_queries=1, mode="reciprocal_rerank", use_async=False
    )
    ours = HybridRetriever(channels={"words": keywords, "dense": index}, k=10)
    for retriever in (native, ours):
        assert sorted(node.metadata["page_label"] for node in retriever.retrieve("blank")) == ["3", "8"]


@pytest.mark.parametrize("team", ["red", "blue"])
def test_a_merged_node_has_the_metadata_that_the_rights_permit(team: str) -> None:
    index = VectorStoreIndex(cut(team="blue"), embed_model=MockEmbedding(8))
    keywords = BM25Retriever.from_defaults(nodes=cut(team="red"))
    ours = HybridRetriever(channels={"words": keywords, "dense": index}, k=10, require={"team": team})
    found = ours.retrieve(QUESTION)
    assert sorted(node.text for node in found) == sorted(TEXTS)
    assert {node.metadata["team"] for node in found} == {team}
