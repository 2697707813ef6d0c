"""LlamaIndex parts that tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, current_thread
from typing import Any

from llama_index.core import MockEmbedding
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import Field
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.base import BaseEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    Node,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.tools import BaseTool
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index_instrumentation import get_dispatcher

from tests.helpers import HashEmbedder
from voicevault_retrievers import llama_index
from voicevault_retrievers.errors import RerankerError
from voicevault_retrievers.llama_index import HybridRetriever, provenance
from voicevault_retrievers.llama_index.convert import REF_DOC

KINDS = (
    BaseNodePostprocessor,
    BasePydanticVectorStore,
    BaseQueryEngine,
    BaseQueryTransform,
    BaseRetriever,
    BaseTool,
)
"""What LlamaHub lists."""

TEXTS = {
    "pump": "The pump is primed before the first start of the season.",
    "valve": "Close the valve and drain the pump before winter.",
    "filter": "The filter is rinsed every month with clean water.",
    "alarm": "An alarm sounds when the water level is too high.",
}


class HashEmbedding(MockEmbedding):
    """HashEmbedder as a LlamaIndex embedding model."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"embed_dim": 16, "model_name": "hash", **fields})

    def _embed(self, text: str) -> list[float]:
        return [float(value) for value in HashEmbedder(self.embed_dim).embed_queries([text])[0]]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed(text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._embed(query)


class Answering(CustomLLM):
    """Gives the same answer whatever is asked, and keeps the prompts and the threads that it was asked in."""

    answer: str
    prompts: list[str] = Field(default_factory=list)
    threads: list[Thread] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.prompts.append(prompt)
        self.threads.append(current_thread())
        if not self.answer:
            raise OSError("no route to the model")
        return CompletionResponse(text=self.answer)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


class ListRetriever(BaseRetriever):
    """Gives the same nodes whatever is asked, and keeps the bundles it was asked with."""

    def __init__(self, found: list[NodeWithScore]) -> None:
        super().__init__()
        self.found = found
        self.asked: list[QueryBundle] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.asked.append(query_bundle)
        return self.found


def public_classes() -> dict[str, type]:
    public = {name: getattr(llama_index, name) for name in llama_index.__all__}
    return {name: kind for name, kind in public.items() if isinstance(kind, type)}


def nodes() -> list[TextNode]:
    """Four chunks, each with a parent, a page, nested metadata and a key that models do not see."""
    return [
        TextNode(
            id_=name,
            text=text,
            metadata={"file_name": "manual.pdf", "page_label": str(1 + at // 2), "tags": [name, {"n": at}], "key": at},
            excluded_llm_metadata_keys=["key"],
            excluded_embed_metadata_keys=["file_name", "page_label", "tags", "key"],
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="manual")},
        )
        for at, (name, text) in enumerate(TEXTS.items())
    ]


def scored(*pairs: tuple[str, float | None]) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(id_=name, text=TEXTS.get(name, name)), score=score) for name, score in pairs]


KEPT: dict[str, BaseNode] = {
    "whole": TextNode(
        id_="n", text="filter", start_char_idx=3, end_char_idx=9, text_template="{content}!",
        metadata={"b": 1, "a": [1, {"c": None}], "key": "x"}, excluded_llm_metadata_keys=["b"],
        excluded_embed_metadata_keys=["a"], metadata_separator=" | ",
        relationships={
            NodeRelationship.SOURCE: RelatedNodeInfo(node_id="manual", metadata={"a": 1}, hash="h"),
            NodeRelationship.PARENT: RelatedNodeInfo(node_id="section"),
            NodeRelationship.NEXT: RelatedNodeInfo(node_id="m"),
            NodeRelationship.CHILD: [RelatedNodeInfo(node_id="c")],
        },
    ),
    "own keys": TextNode(id_="n", text="filter", metadata={"a": 1, "_node_content": "mine", "b": 2, REF_DOC: ["too"]}),
    "own content": TextNode(id_="n", text="filter", metadata={"_node_content": '{"class_name": "TextNode"}'}),
    "Document": Document(id_="n", text=f"filter {'x' * 70_000}", metadata={"a": 1}),
    "Node": Node(id_="n", text_resource=MediaResource(text="filter", mimetype="text/plain"), text_template="{content}"),
    "ImageNode": ImageNode(id_="n", text="a filter", image="aGVsbG8="),
    "IndexNode": IndexNode(id_="n", text="the filter", index_id="table", obj=TextNode(id_="t", text="the table")),
    "resources": Node(
        id_="n", text_resource=MediaResource(text="filter"), image_resource=MediaResource(path=Path("a.png"))
    ),
}  # fmt: skip
"""Nodes of each class that can be kept, with all that they may have."""


def embedded(given: Sequence[BaseNode]) -> list[BaseNode]:
    """Copies of nodes with their embeddings."""
    model = HashEmbedding()
    return [node.model_copy(update={"embedding": model.get_text_embedding(node.get_content())}) for node in given]


def hybrid(**options: Any) -> HybridRetriever:
    return HybridRetriever.from_nodes(nodes(), HashEmbedding(), **options)


def ids(found: Iterable[NodeWithScore]) -> list[str]:
    return [node.node_id for node in found]


def told(found: NodeWithScore) -> dict[str, Any]:
    """The provenance that a node has, without its checksum."""
    known = provenance(found)
    assert known is not None
    return {key: value for key, value in known.items() if key != "checksum"}


def where(key: str, value: Any, operator: str = "==") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=FilterOperator(operator))])


class Lengths:
    """A scorer for which longer passages are better."""

    name = "lengths"

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        return [float(len(passage)) for passage in passages]


class Broken(Lengths):
    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        raise RerankerError("out of memory")


class Recorder(BaseEventHandler):
    """Keeps the events of some kinds."""

    kinds: tuple[type, ...]
    events: list[Any] = []  # noqa: RUF012 - a pydantic field

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if isinstance(event, self.kinds):
            self.events.append(event)


@contextmanager
def recorded(*kinds: type[BaseEvent]) -> Iterator[list[Any]]:
    """The events of these kinds, or else of reranking, as they come."""
    recorder, root = Recorder(kinds=kinds or (ReRankStartEvent, ReRankEndEvent)), get_dispatcher("root")
    root.add_event_handler(recorder)
    try:
        yield recorder.events
    finally:
        root.event_handlers.remove(recorder)
