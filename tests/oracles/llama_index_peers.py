"""What the tests beside LlamaIndex's own parts share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata, MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from tests.frameworks.llama_index_parts import ListRetriever, scored
from voicevault_retrievers.llama_index import HybridRetriever, provenance


def peer(name: str) -> Any:
    """A class of LlamaIndex's integrations, by its full name."""
    module, _, attribute = name.rpartition(".")
    return getattr(pytest.importorskip(module), attribute)


def child(*found: tuple[str, float | None]) -> ListRetriever:
    return ListRetriever(scored(*found))


def child_of(*found: TextNode) -> ListRetriever:
    return ListRetriever([NodeWithScore(node=node, score=1.0 / at) for at, node in enumerate(found, 1)])


def fusions(*children: BaseRetriever, **options: Any) -> tuple[QueryFusionRetriever, HybridRetriever]:
    """Theirs and ours over the same retrievers."""
    chosen = {"mode": "reciprocal_rerank", "use_async": False, "similarity_top_k": 9, **options}
    theirs = QueryFusionRetriever(list(children), llm=MockLLM(), num_queries=1, **chosen)
    return theirs, HybridRetriever(channels={f"child {at}": below for at, below in enumerate(children)})


class Answering(CustomLLM):
    """Gives the same answer whatever is asked."""

    answer: str

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.answer)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


def ids(found: Iterable[NodeWithScore]) -> list[str]:
    return [node.node.node_id for node in found]


def pairs(found: Iterable[NodeWithScore]) -> list[tuple[str, float | None]]:
    return [(node.node.node_id, node.score) for node in found]


def degraded(found: Iterable[NodeWithScore]) -> str:
    (said,) = {"; ".join((provenance(node) or {})["degraded"]) for node in found}
    return said


def where(key: str, value: Any) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value)])
