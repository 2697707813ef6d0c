"""What users write with the LlamaIndex classes: mypy --strict finds nothing wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.tools import BaseTool, QueryEngineTool, ToolOutput
from llama_index.core.vector_stores import ExactMatchFilter, MetadataFilters
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryResult
from llama_index.core.workflow import Context as WorkflowContext
from typing_extensions import assert_type

from voicevault_retrievers import Fusion, Rerank
from voicevault_retrievers.answers import ResolvedAnswer
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Citation, Result
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    CitationPostprocessor,
    CitedQueryEngine,
    CitedSynthesizer,
    CrossEncoderRerank,
    HybridRetriever,
    HybridVectorStore,
    LlamaIndexEmbedder,
    LLMRerank,
    MMRPostprocessor,
    NearDuplicatePostprocessor,
    NodeWithProvenance,
    PageDiversityPostprocessor,
    ParentExpansionPostprocessor,
    PipelineRetriever,
    QueryExpander,
    RecencyPostprocessor,
    RelevancePostprocessor,
    RetrievalTool,
    RetrieverChannel,
    SearchDegradedEvent,
    SearchStepEndEvent,
    SearchStepStartEvent,
    SentenceWindowPostprocessor,
    VectorRetriever,
    VectorStoreChannel,
    WeightedRerank,
    as_channel,
    citations_of,
    cite_prompts,
    conversation_citations,
    filter_of,
    given_citations,
    provenance,
    resolve_citations,
    skippable,
)
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import PageCap
from voicevault_retrievers.store import KnowledgeBase

# Retrievers


def keyword_search(nodes: list[BaseNode], index: VectorStoreIndex) -> None:
    retriever = BM25Retriever.from_nodes(nodes, language="en", similarity_top_k=3, where={"page": 1}, on_error="raise")
    assert_type(retriever, BM25Retriever)
    assert_type(BM25Retriever.from_defaults(nodes, formula="okapi", verbose=True), BM25Retriever)
    assert_type(BM25Retriever.from_vector_store(index, docstore=index.docstore, k=3), BM25Retriever)
    assert_type(retriever.add(nodes), list[str])
    assert_type(retriever.delete(["id"]), int)
    retriever.persist(Path("kept"))
    assert_type(BM25Retriever.from_persist_dir("kept", k=3, timeout=2.0), BM25Retriever)
    assert_type(retriever.with_options(k=2, where={"page": {"$gte": 2}}).retrieve("pump"), list[NodeWithScore])


def vector_search(nodes: list[BaseNode], index: VectorStoreIndex, embed_model: BaseEmbedding) -> list[VectorRetriever]:
    LlamaIndexEmbedder(embed_model).embed_queries(["pump"])
    return [
        VectorRetriever(index, k=3),
        VectorRetriever.from_nodes(nodes, embed_model, timeout=2.0),
        VectorRetriever.from_nodes(nodes, embed_model, persist_dir="vectors", collection_name="manuals"),
        VectorRetriever.from_persist_dir("vectors", embed_model, collection_name="manuals", similarity_top_k=3),
        VectorRetriever.from_vector_store(index.vector_store, embed_model, require={"tenant": "a"}),
    ]


async def hybrid_search(nodes: list[BaseNode], store: BasePydanticVectorStore, theirs: BaseRetriever) -> None:
    retriever = HybridRetriever(
        channels={"bm25": BM25Retriever.from_nodes(nodes), "dense": store, "theirs": theirs},
        k=3,
        fusion=Fusion(RRF(k=20), weights={"bm25": 0.4}, depth={"dense": 50}, on_error="raise"),
        rerank=Rerank("ms-marco-MiniLM-L-6-v2", max_chunks_per_page=2),
        timeout=2.0,
        require=MetadataFilters(filters=[ExactMatchFilter(key="tenant", value="a")]),
        node_postprocessors=[PageCap(1), SentenceWindowPostprocessor()],
        callback_manager=CallbackManager(),
        object_map={"table": theirs},
    )
    assert_type(HybridRetriever.from_nodes(nodes, language="de", similarity_top_k=3, rerank=True), HybridRetriever)
    assert_type(HybridRetriever([Path("kbs/manuals"), Path("kbs/notes")], preset="voicevault"), HybridRetriever)
    theirs_too: BaseRetriever = retriever
    assert_type(theirs_too.retrieve(QueryBundle("pump", custom_embedding_strs=["seal"])), list[NodeWithScore])
    assert_type(await HybridRetriever.afrom_nodes(nodes, k=3), HybridRetriever)
    assert_type(retriever.add(nodes), list[str])
    await retriever.adelete(["a"])
    assert_type(await retriever.arefresh(), bool)
    assert_type(await retriever.aretrieve("pump"), list[NodeWithScore])
    assert_type(retriever.with_options(k=2, weights={"bm25": 1.0}, fusion="rrf", rerank=False), HybridRetriever)
    assert_type(retriever.search("pump", 2, where={"page": 1}, weights={"bm25": 1.0}), Result)
    result = await retriever.asearch("pump", require={"tenant": "a"})
    scores: list[float | None] = [hit.score for hit in result.hits]
    if result.degraded or not scores:
        raise RuntimeError("; ".join(str(failure) for failure in result.errors))


def told(nodes: list[NodeWithScore]) -> dict[str, Any]:
    own = [node.provenance for node in nodes if isinstance(node, NodeWithProvenance)]
    assert_type(own, list[dict[str, Any]])
    return provenance(nodes[0]) or {}


def filters(given: MetadataFilters) -> None:
    assert_type(filter_of(given), Filter | None)


def other_peoples_parts(index: VectorStoreIndex, theirs: BaseRetriever, own: Channel) -> list[PipelineRetriever]:
    return [
        PipelineRetriever(Pipeline(as_channel(index)), k=3),
        HybridRetriever(
            channels={"theirs": as_channel(theirs, kind="keyword", timeout=1.0), "index": index, "own": own}
        ),
        HybridRetriever(channels={"theirs": RetrieverChannel(theirs, "graph"), "store": VectorStoreChannel(index)}),
        HybridRetriever.from_index(index, language="en", formula="lucene", channels={"theirs": theirs}, k=3),
    ]


class Manuals(HybridRetriever):
    def __init__(self, *, k: int = 3, **options: Any) -> None:
        super().__init__("manuals", k=k, **options)


def own_class(nodes: list[BaseNode]) -> None:
    assert_type(Manuals.from_nodes(nodes, k=3), Manuals)
    assert_type(Manuals().with_options(k=2) >> PageCap(1), Manuals)


# A vector store


async def kept(nodes: list[BaseNode], embed_model: BaseEmbedding, dense: BasePydanticVectorStore) -> VectorStoreIndex:
    store = HybridVectorStore.open("manuals", root="kbs", embed_model=embed_model, language="en", fusion=RRF())
    assert_type(HybridVectorStore.open(Path("kbs/manuals"), dense=dense), HybridVectorStore)
    assert_type(HybridVectorStore.from_persist_dir("copy"), HybridVectorStore)
    assert_type(store.client, KnowledgeBase)
    await IngestionPipeline(transformations=[embed_model], vector_store=store).arun(nodes=nodes)
    assert_type(store.add(nodes), list[str])
    assert_type(store.get_nodes(["id"]), list[BaseNode])
    assert_type(await store.aquery(VectorStoreQuery(query_str="pump")), VectorStoreQueryResult)
    storage = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=embed_model)


# After the search


def refined(retriever: HybridRetriever, model: LLM, docstore: BaseDocumentStore) -> HybridRetriever:
    postprocessors: list[BaseNodePostprocessor] = [
        CrossEncoderRerank("ms-marco-MiniLM-L-12-v2", top_n=3, timeout=1.0, on_error="raise"),
        LLMRerank(model, top_n=3, window=20, prompt=PromptTemplate("{query_str} {context_str}")),
        LLMRerank(lambda prompt: "[1]", depth=20, timeout=None),
        WeightedRerank(weights={"fused": 0.7}, scale_fused=True, dense=retriever),
        RecencyPostprocessor(weight=0.2, half_life_days=7, date_key="published", reference_date="2026-01-01"),
        MMRPostprocessor(lambda_mult=0.5, by="shingles", top_n=3),
        NearDuplicatePostprocessor(threshold=0.9),
        RelevancePostprocessor(least=0.3),
        PageDiversityPostprocessor(max_chunks_per_page=1),
        ParentExpansionPostprocessor(docstore, max_tokens=2000, use_source=True, require={"tenant": "a"}),
        SentenceWindowPostprocessor(window_key="window", max_chars=4000),
    ]
    for postprocessor in postprocessors:
        retriever = retriever >> postprocessor
    return retriever >> skippable(LLMRerank(model))


async def postprocessed(nodes: list[NodeWithScore], parents: dict[str, BaseNode]) -> list[NodeWithScore]:
    reranker = CrossEncoderRerank(top_n=3)
    stage: Stage = reranker.stage
    reranked = reranker.postprocess_nodes(nodes, query_str=f"pump {stage.name}")
    return await ParentExpansionPostprocessor(parents).apostprocess_nodes(reranked, query_str="pump")


# Questions and answers


async def expanding(nodes: list[BaseNode], model: LLM, engine: BaseQueryEngine) -> HybridRetriever:
    expander = QueryExpander(model, size=4, hyde=True, prompt="{num_queries} of {query_str}", timeout=5.0)
    assert_type(expander.run("pump"), QueryBundle)
    assert_type(await expander.awordings("pump"), list[str])
    assert_type(expander.rewriter, Rewriter)
    TransformQueryEngine(engine, query_transform=QueryExpander(), transform_metadata={}).query("pump")
    return HybridRetriever.from_nodes(nodes, expansion=[True, expander])


async def answering(retriever: HybridRetriever, model: LLM) -> list[Citation]:
    engine = CitedQueryEngine.from_args(retriever, model, node_postprocessors=[CrossEncoderRerank()], max_tokens=2000)
    assert_type(engine.with_retriever(retriever), CitedQueryEngine)
    response = engine.query("When is the pump drained?")
    assert_type(response.citations, tuple[Citation, ...])
    assert_type(response.source_nodes, list[NodeWithScore])
    again = await engine.aquery(QueryBundle("pump"))
    if again.unresolved:
        raise RuntimeError(f"{again}: {[marker.text for marker in again.unresolved]} of {again.context.text}")
    return [*response.citations, *again.citations]


def with_their_engines(retriever: HybridRetriever, model: LLM, index: VectorStoreIndex) -> BaseQueryEngine:
    synthesizer: BaseSynthesizer = get_response_synthesizer(model, **cite_prompts("source"))
    cited = CitedSynthesizer(synthesizer, markers="source", metadata_mode=MetadataMode.LLM)
    citing = CitationPostprocessor(max_tokens=2000, markers="source", reorder=True)
    engine = RetrieverQueryEngine.from_args(retriever, model, response_synthesizer=cited)
    ContextChatEngine.from_defaults(retriever, system_prompt=citing.instruction, node_postprocessors=[citing])
    assert_type(resolve_citations(engine.query("pump")), ResolvedAnswer)
    assert_type(citations_of(retriever.retrieve("pump")), tuple[Citation, ...])
    return index.as_query_engine(model, node_postprocessors=[citing])


# Agents


async def agent_parts(
    retriever: HybridRetriever, engine: CitedQueryEngine, output: AgentOutput, context: WorkflowContext[Any]
) -> list[BaseTool]:
    tool = RetrievalTool(retriever, name="manuals", k=3, filters=["page"], max_tokens=2000)
    assert_type(await tool.acall("pump", {"page": 1}), ToolOutput)
    given = [*given_citations(output), *await conversation_citations(context)]
    assert_type(resolve_citations("As in [1].", given), ResolvedAnswer)
    return [tool, RetrievalTool.from_defaults(retriever, markers="source"), QueryEngineTool.from_defaults(engine)]


# Traces


class Progress(BaseEventHandler):
    lines: list[str]

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if isinstance(event, SearchStepStartEvent):
            self.lines.append(f"{event.kind} {event.name}: {', '.join(event.queries)}")
        elif isinstance(event, SearchStepEndEvent):
            self.lines.append(f"{event.kind} {event.name}: {len(event.hits)} hits")
        elif isinstance(event, SearchDegradedEvent):
            self.lines += event.degraded
