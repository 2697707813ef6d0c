"""What of LlamaIndex keeps a node's provenance, and what cannot, as docs/explanation/provenance.md says."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine import CondensePlusContextChatEngine, CondenseQuestionChatEngine, ContextChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import (
    FixedRecencyPostprocessor,
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    PIINodePostprocessor,
    PrevNextNodePostprocessor,
    SentenceEmbeddingOptimizer,
    SimilarityPostprocessor,
    TimeWeightedPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.retrievers import (
    AutoMergingRetriever,
    QueryFusionRetriever,
    RecursiveRetriever,
    RouterRetriever,
    TransformRetriever,
)
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import QueryEngineTool, RetrieverTool

from tests.frameworks.llama_index_parts import Answering, HashEmbedding
from voicevault_retrievers.llama_index import (
    CitationPostprocessor,
    CitedQueryEngine,
    HybridRetriever,
    HybridVectorStore,
    NodeWithProvenance,
    QueryExpander,
    RetrievalTool,
    provenance,
)

PAGE = Path(__file__).parents[2] / "docs/explanation/provenance.md"
QUESTION = "is the pump primed?"
PRIME, DRAIN, FLOOD = "The pump is primed in spring.", "The pump is drained in autumn.", "The pump stands dry."


def found_nodes() -> list[TextNode]:
    """Two children of one parent, one of another, in a row."""
    given = [
        TextNode(id_=name, text=text, metadata={"date": "2026-01-02", "window": text})
        for name, text in {"a": PRIME, "b": DRAIN, "c": FLOOD}.items()
    ]
    for node, parent in zip(given, ("first", "first", "second"), strict=True):
        node.relationships[NodeRelationship.PARENT] = RelatedNodeInfo(node_id=parent)
    given[2].relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id="d")
    return given


def docstore() -> SimpleDocumentStore:
    """The parents, of whose children all of the first's and half of the second's are found; and a neighbour."""
    held = SimpleDocumentStore()
    for parent, children in {"first": "ab", "second": "cxyz"}.items():
        related = {NodeRelationship.CHILD: [RelatedNodeInfo(node_id=child) for child in children]}
        held.add_documents([TextNode(id_=parent, text="all of it", relationships=related)])
    held.add_documents([*found_nodes(), TextNode(id_="d", text="The next page.")])
    return held


def searched() -> HybridRetriever:
    return HybridRetriever.from_nodes(found_nodes(), HashEmbedding(), k=3)


def found() -> list[NodeWithScore]:
    return searched().retrieve(QUESTION)


def through(postprocessor: BaseNodePostprocessor) -> list[NodeWithScore]:
    return postprocessor.postprocess_nodes(found(), query_str=QUESTION)


def retrieved(retriever: BaseRetriever) -> list[NodeWithScore]:
    return retriever.retrieve(QUESTION)


def sources(engine: Any) -> list[NodeWithScore]:
    response = engine.chat(QUESTION) if hasattr(engine, "chat") else engine.query(QUESTION)
    nodes: list[NodeWithScore] = response.source_nodes
    return nodes


def saying(answer: str) -> Answering:
    return Answering(answer=answer)


def engine() -> RetrieverQueryEngine:
    return RetrieverQueryEngine.from_args(searched(), llm=MockLLM())


def chat(kind: Any, over: Any) -> Any:
    """A chat engine; its default memory is a database that is not closed."""
    return kind.from_defaults(over, llm=MockLLM(), memory=ChatMemoryBuffer.from_defaults())


def tool() -> QueryEngineTool:
    return QueryEngineTool.from_defaults(engine(), name="pumps", description="pumps")


def sub_questions() -> list[NodeWithScore]:
    asked = '```json\n{"items": [{"sub_question": "is it?", "tool_name": "pumps"}]}\n```'
    generator = LLMQuestionGenerator.from_defaults(saying(asked))
    return sources(SubQuestionQueryEngine.from_defaults([tool()], MockLLM(), question_gen=generator, use_async=False))


def stored(tmp: Path) -> list[NodeWithScore]:
    """Found by the vector store, through the nodes of LlamaIndex's own retriever."""
    context = StorageContext.from_defaults(vector_store=HybridVectorStore.open(tmp / "kb", embed_model=HashEmbedding()))
    index = VectorStoreIndex(found_nodes(), storage_context=context, embed_model=HashEmbedding())
    return index.as_retriever(vector_store_query_mode="hybrid").retrieve(QUESTION)


def again() -> list[NodeWithScore]:
    """Found nodes as the nodes of a new index."""
    given = [node.node for node in found()]
    return VectorStoreIndex(given, embed_model=MockEmbedding(embed_dim=8)).as_retriever().retrieve(QUESTION)


def copied(twin: Callable[[Any], Any]) -> list[NodeWithScore]:
    return [NodeWithScore(node=twin(node.node), score=node.score) for node in found()]


def kept_in(store: SimpleDocumentStore) -> list[NodeWithScore]:
    store.add_documents([node.node for node in found()])
    return [NodeWithScore(node=node) for node in store.get_nodes(["a", "b"])]


CHOICE = '[{"choice": 1, "reason": "it is about pumps"}]'
ROUTED = LLMSingleSelector.from_defaults(saying(CHOICE))
PARTS: dict[str, Callable[[Path], Sequence[NodeWithScore]]] = {
    "SimilarityPostprocessor": lambda tmp: through(SimilarityPostprocessor(similarity_cutoff=0.0)),
    "LongContextReorder": lambda tmp: through(LongContextReorder()),
    "MetadataReplacementPostProcessor": lambda tmp: through(MetadataReplacementPostProcessor("window")),
    "LLMRerank": lambda tmp: through(LLMRerank(llm=saying("Doc: 1, Relevance: 9"))),
    "FixedRecencyPostprocessor": lambda tmp: through(FixedRecencyPostprocessor(top_k=2)),
    "TimeWeightedPostprocessor": lambda tmp: through(TimeWeightedPostprocessor()),
    "SentenceEmbeddingOptimizer": lambda tmp: through(
        SentenceEmbeddingOptimizer(HashEmbedding(), percentile_cutoff=0.5, tokenizer_fn=lambda text: text.split(" is "))
    ),
    "PIINodePostprocessor": lambda tmp: through(
        PIINodePostprocessor(llm=saying('[NAME]\nOutput Mapping:\n{"a": "b"}'))
    ),
    "PrevNextNodePostprocessor": lambda tmp: through(PrevNextNodePostprocessor(docstore=docstore())),
    "CitationPostprocessor": lambda tmp: through(CitationPostprocessor()),
    "QueryFusionRetriever": lambda tmp: retrieved(
        QueryFusionRetriever([searched(), searched()], MockLLM(), num_queries=1, use_async=False)
    ),
    "RecursiveRetriever": lambda tmp: retrieved(RecursiveRetriever("pumps", {"pumps": searched()})),
    "RouterRetriever": lambda tmp: retrieved(
        RouterRetriever(ROUTED, [RetrieverTool.from_defaults(searched(), description="pumps")], llm=MockLLM())
    ),
    "TransformRetriever": lambda tmp: retrieved(TransformRetriever(searched(), QueryExpander())),
    "AutoMergingRetriever": lambda tmp: retrieved(
        AutoMergingRetriever(searched(), StorageContext.from_defaults(docstore=docstore()))  # type: ignore[arg-type]
    ),
    "VectorStoreIndex.as_retriever": stored,
    "RetrieverQueryEngine": lambda tmp: sources(engine()),
    "TransformQueryEngine": lambda tmp: sources(TransformQueryEngine(engine(), QueryExpander())),
    "RouterQueryEngine": lambda tmp: sources(RouterQueryEngine(ROUTED, [tool()], MockLLM())),
    "SubQuestionQueryEngine": lambda tmp: sub_questions(),
    "CitationQueryEngine": lambda tmp: sources(CitationQueryEngine(searched(), MockLLM())),
    "CitedQueryEngine": lambda tmp: sources(CitedQueryEngine(searched(), llm=MockLLM())),
    "ContextChatEngine": lambda tmp: sources(chat(ContextChatEngine, searched())),
    "CondensePlusContextChatEngine": lambda tmp: sources(chat(CondensePlusContextChatEngine, searched())),
    "CondenseQuestionChatEngine": lambda tmp: sources(chat(CondenseQuestionChatEngine, engine())),
    "RetrieverTool": lambda tmp: RetrieverTool.from_defaults(searched()).call(QUESTION).raw_output,
    "QueryEngineTool": lambda tmp: tool().call(QUESTION).raw_output.source_nodes,
    "RetrievalTool": lambda tmp: RetrievalTool(searched()).call(QUESTION).raw_output,
    "copy.deepcopy": lambda tmp: copied(copy.deepcopy),
    "pickle.dumps(found)": lambda tmp: pickle.loads(pickle.dumps(found())),
    "pickle.dumps(found.node)": lambda tmp: copied(lambda node: pickle.loads(pickle.dumps(node))),
    "BaseNode.model_copy": lambda tmp: copied(lambda node: node.model_copy()),
    "NodeWithProvenance.from_json": lambda tmp: [NodeWithProvenance.from_json(node.to_json()) for node in found()],
    "BaseNode.from_dict": lambda tmp: copied(lambda node: TextNode.from_dict(node.to_dict())),
    "SimpleDocumentStore": lambda tmp: kept_in(SimpleDocumentStore()),
    "VectorStoreIndex": lambda tmp: again(),
}


def outcome(nodes: Sequence[NodeWithScore]) -> str:
    assert nodes
    told = [bool(provenance(node)) for node in nodes]
    return "kept" if all(told) else "partly" if any(told) else "lost"


def written() -> dict[str, str]:
    """The outcomes that the page's table has, by part."""
    rows = re.findall(r"(?m)^\| (kept|partly|lost)\b[^|]*\|(.*)\|$", PAGE.read_text(encoding="utf-8"))
    return {name: kind for kind, names in rows for name in re.findall("`([^`]+)`", names)}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_does_to_the_provenance_what_the_page_says(part: str, tmp_path: Path) -> None:
    if part == "FixedRecencyPostprocessor" and find_spec("pandas") is None:
        pytest.skip("needs pandas")
    assert outcome(PARTS[part](tmp_path)) == written()[part]


def test_the_page_names_every_part_that_is_tested_and_no_other() -> None:
    assert written().keys() == PARTS.keys()


def test_found_nodes_can_be_put_into_chroma() -> None:
    chromadb = pytest.importorskip("chromadb")
    stores = pytest.importorskip("llama_index.vector_stores.chroma")
    plain = [TextNode(id_=text, text=text, metadata={"page": at}) for at, text in enumerate((PRIME, DRAIN, FLOOD))]
    found = HybridRetriever.from_nodes(plain, HashEmbedding()).retrieve("pump")
    store = stores.ChromaVectorStore(chroma_collection=chromadb.EphemeralClient().create_collection("found-nodes"))
    VectorStoreIndex(
        [node.node for node in found],
        embed_model=HashEmbedding(),
        storage_context=StorageContext.from_defaults(vector_store=store),
    )
    kept = {node.node_id: node.metadata for node in store.get_nodes([node.node_id for node in found])}
    assert kept == {node.node_id: node.metadata for node in found}
    assert all(provenance(node) for node in found)
