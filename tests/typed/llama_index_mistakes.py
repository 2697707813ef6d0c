"""What users write by mistake: each line that ends in a comment has the error that the comment names, and no other."""

from __future__ import annotations

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode

from voicevault_retrievers import Fusion
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    CitationPostprocessor,
    CitedQueryEngine,
    CrossEncoderRerank,
    HybridRetriever,
    HybridVectorStore,
    LLMRerank,
    PageDiversityPostprocessor,
    ParentExpansionPostprocessor,
    PipelineRetriever,
    QueryExpander,
    RetrievalTool,
    VectorRetriever,
    provenance,
)
from voicevault_retrievers.pipeline.pipeline import Pipeline


async def retrievers(retriever: HybridRetriever, nodes: list[BaseNode], channel: Channel) -> None:
    HybridRetriever(channels={}, fusoin="rrf")  # arg-type
    HybridRetriever(channels={}, fusion=Fusion(depht=5))  # call-arg
    HybridRetriever(channels={}, similarity_top_k="3")  # arg-type
    HybridRetriever.from_nodes(nodes, mode="reciprocal_rerank")  # call-arg
    PipelineRetriever(Pipeline(channel), top_k=3)  # arg-type
    BM25Retriever.from_nodes("a text")  # arg-type
    BM25Retriever.from_defaults(nodes, skip_stemming=True)  # call-arg
    BM25Retriever.from_nodes(nodes).add("a text")  # arg-type
    VectorRetriever.from_nodes(nodes, score_threshold=0.5)  # call-arg
    retriever.search("pump", weigths={"bm25": 1.0})  # call-arg
    len(retriever.search("pump").nodes)  # attr-defined
    texts: list[str] = await retriever.aretrieve("pump")  # assignment
    provenance(retriever.retrieve("pump")[0])["channels"]  # index
    retriever.add(texts)  # arg-type
    retriever >> 3  # operator


async def parts(retriever: BaseRetriever, engine: CitedQueryEngine, nodes: list[BaseNode]) -> None:
    CrossEncoderRerank(topn=3)  # call-arg
    CrossEncoderRerank(3)  # arg-type
    LLMRerank(choice_batch_size=5)  # call-arg
    PageDiversityPostprocessor(max_per_page=1)  # call-arg
    ParentExpansionPostprocessor(nodes)  # arg-type
    CitationPostprocessor(markers="footnotes")  # arg-type
    CrossEncoderRerank().postprocess_nodes(nodes)  # arg-type
    QueryExpander(hyde=None)  # arg-type
    HybridVectorStore.open("manuals", embed_model=3)  # arg-type
    answer: str = await engine.aquery("pump")  # assignment
    engine.query(["pump"])  # arg-type
    RetrievalTool.from_defaults(retriever, filter=["page"])  # call-arg
    RetrievalTool(retriever, name=answer, markers="footnotes")  # arg-type
