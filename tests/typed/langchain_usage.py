"""What users write with the LangChain classes: mypy --strict finds nothing wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import DocumentIndex, InMemoryRecordManager, index
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.stores import BaseStore
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import VectorStore
from typing_extensions import assert_type

from voicevault_retrievers import Fusion, Rerank
from voicevault_retrievers.answers import ResolvedAnswer
from voicevault_retrievers.core.types import Citation, Context, Result
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.langchain import (
    BM25Index,
    BM25Retriever,
    ContextBuilder,
    ContextReorder,
    CrossEncoderReranker,
    HybridIndex,
    HybridRetriever,
    HybridStore,
    LangChainEmbedder,
    LLMReranker,
    LocalEmbeddings,
    MMRFilter,
    NearDuplicateFilter,
    PageDiversityFilter,
    ParentExpander,
    QueryExpander,
    RecencyReranker,
    RelevanceFilter,
    RetrievalMiddleware,
    RetrieverChannel,
    StagedRetriever,
    VectorRetriever,
    VectorStoreChannel,
    WeightedReranker,
    as_channel,
    chunk_of,
    content_blocks,
    document_of,
    flatten_provenance,
    given_citations,
    remove_provenance,
    resolve_citations,
    retrieval_tool,
    skippable,
)
from voicevault_retrievers.store import KnowledgeBase

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from these sources:\n{context}"), ("human", "{question}")]
)

# Retrievers


def keyword_search(documents: list[Document], store: VectorStore) -> None:
    retriever = BM25Retriever.from_documents(documents, language="en", k=3, where={"page": 1})
    assert_type(retriever, BM25Retriever)
    assert_type(BM25Retriever.from_texts(["a"], [{"page": 1}], ["id"], preprocess_func=str.split), BM25Retriever)
    assert_type(BM25Retriever.from_vector_store(store, formula="okapi"), BM25Retriever)
    assert_type(retriever.add(documents), list[str])
    assert_type(retriever.delete(["id"]), int)
    retriever.persist(Path("kept"))
    assert_type(BM25Retriever.from_persist_dir("kept", k=3), BM25Retriever)
    assert_type(retriever.invoke("pump", k=2, where={"page": {"$gte": 2}}), list[Document])


def vector_search(documents: list[Document], store: VectorStore, embeddings: Embeddings) -> list[VectorRetriever]:
    LangChainEmbedder(embeddings).embed_queries(["pump"])
    assert_type(LocalEmbeddings().embed_query("pump"), list[float])
    return [
        VectorRetriever(vectorstore=store, k=3),
        VectorRetriever.from_documents(documents, embeddings),
        VectorRetriever.from_documents(documents, embeddings, persist_dir="vectors", collection_name="manuals"),
        VectorRetriever.from_persist_dir("vectors", embeddings, collection_name="manuals"),
    ]


async def hybrid_search(documents: list[Document], store: VectorStore, theirs: BaseRetriever) -> None:
    retriever = HybridRetriever(
        channels={"bm25": BM25Retriever.from_documents(documents), "dense": store, "theirs": theirs},
        k=3,
        fusion=Fusion(RRF(k=20), weights={"bm25": 0.4}, depth={"dense": 50}, on_error="raise"),
        rerank=Rerank("ms-marco-MiniLM-L-6-v2", max_chunks_per_page=2),
        timeout=2.0,
        require={"tenant": "a"},
        tags=["manuals"],
    )
    assert_type(HybridRetriever.from_documents(documents, language="de", k=3), HybridRetriever)
    assert_type(HybridRetriever(kb_names=[Path("kbs/manuals"), Path("kbs/notes")]), HybridRetriever)
    found = retriever.invoke("pump", {"tags": ["mine"]}, k=2, weights={"bm25": 1.0}, fusion="rrf", rerank=False)
    assert_type(found, list[Document])
    assert_type(await HybridRetriever.afrom_documents(documents, k=3), HybridRetriever)
    assert_type(retriever.add(documents, ids=["a"]), list[str])
    await retriever.adelete(["a"])
    assert_type(await retriever.arefresh(), bool)
    assert_type(await retriever.ainvoke("pump", k=2, where={"page": 1}), list[Document])
    assert_type(await retriever.abatch(["pump", "seal"]), list[list[Document]])
    assert_type(retriever.search("pump", 2, where={"page": 1}, weights={"bm25": 1.0}), Result)
    result = await retriever.asearch("pump", require={"tenant": "a"})
    scores: list[float | None] = [hit.score for hit in result.hits]
    assert_type([document_of(hit) for hit in result.hits], list[Document])
    assert_type(flatten_provenance(remove_provenance(map(document_of, result.hits))), list[Document])
    if result.degraded or not scores:
        raise RuntimeError("; ".join(str(failure) for failure in result.errors))


def other_peoples_parts(documents: list[Document], store: VectorStore, theirs: BaseRetriever) -> HybridRetriever:
    def own(question: str) -> list[Document]:
        return [document for document in documents if question in document.page_content]

    channels = {
        "theirs": RetrieverChannel(theirs, "keyword", timeout=1.0),
        "store": VectorStoreChannel(store),
        "own": as_channel(RunnableLambda(own)),
    }
    return HybridRetriever(channels=channels, k=len({chunk_of(document).id for document in documents}))


def incremental(documents: list[Document], embeddings: Embeddings) -> None:
    records = InMemoryRecordManager("manuals")
    records.create_schema()
    with HybridIndex.open("manuals", root="kbs", embeddings=embeddings, k=3) as kept:
        index(documents, records, kept, cleanup="incremental", source_id_key="source")
        kept.delete(where={"page": 1})
        assert_type(kept.get(["id"]), list[Document])
        assert_type(kept, HybridIndex)
    held: DocumentIndex = BM25Index.from_documents(documents, language="en")
    held.upsert(documents)
    index(documents, records, BM25Index(k=3), cleanup="full")


# Vector stores


async def stored(documents: list[Document], embeddings: Embeddings, kb: KnowledgeBase) -> BaseRetriever:
    store = HybridStore.from_documents(documents, embeddings, fusion="rrf", require={"tenant": "a"})
    assert_type(store, HybridStore)
    assert_type(HybridStore.open("manuals", embeddings, root="kbs", language="de"), HybridStore)
    assert_type(await HybridStore.aopen("qdrant://localhost/manuals", embeddings), HybridStore)
    assert_type(await HybridStore.afrom_texts(["a"], embeddings, [{"page": 1}], ids=["id"], base=kb), HybridStore)
    assert_type(HybridStore(base=kb).add_documents(documents, ids=["id"]), list[str])
    assert_type(await store.aadd_texts(["a"]), list[str])
    assert_type(store.similarity_search("pump", k=3, filter={"page": 1}, weights={"bm25": 2.0}), list[Document])
    assert_type(store.similarity_search_with_score("pump"), list[tuple[Document, float]])
    assert_type(await store.amax_marginal_relevance_search("pump", fetch_k=50), list[Document])
    return store.as_retriever(search_type="mmr", search_kwargs={"k": 3, "require": {"group": "b"}})


# After the search


def refined(retriever: HybridRetriever, model: BaseChatModel, parents: BaseStore[str, Document]) -> HybridRetriever:
    compressors: list[BaseDocumentCompressor] = [
        CrossEncoderReranker(scorer="ms-marco-MiniLM-L-12-v2", top_n=3, timeout=1.0, on_error="raise"),
        LLMReranker(llm=model, top_n=3),
        LLMReranker(llm="openai:gpt-5", depth=40, window=20, stride=10, timeout=None),
        WeightedReranker(weights={"fused": 0.7}, scale_fused=True),
        RecencyReranker(weight=0.2, half_life_days=7, date_key="published", reference_date="2026-01-01"),
        MMRFilter(lambda_mult=0.5, by="shingles", top_n=3),
        NearDuplicateFilter(threshold=0.9),
        RelevanceFilter(least=0.3),
        PageDiversityFilter(max_chunks_per_page=1),
        ParentExpander(store=parents, max_tokens=2000),
        ContextReorder(),
    ]
    for compressor in compressors:
        retriever = retriever >> compressor
    return retriever >> skippable(LLMReranker(llm=model))


def staged(theirs: BaseRetriever) -> StagedRetriever:
    return theirs >> CrossEncoderReranker(top_n=3)


async def compressed(documents: Sequence[Document]) -> list[Document]:
    reranked = CrossEncoderReranker(top_n=3).compress_documents(documents, "pump")
    return await PageDiversityFilter().acompress_documents(reranked, "pump")


# Chains


def expanding(documents: list[Document], model: BaseChatModel) -> HybridRetriever:
    expander = QueryExpander(llm=model, size=4, hyde=True, timeout=5.0)
    assert_type(expander.invoke("pump"), list[str])
    return HybridRetriever.from_documents(documents, expansion=expander)


def answering(retriever: HybridRetriever, model: BaseChatModel) -> Runnable[Any, str]:
    context = retriever | ContextBuilder(max_tokens=2000, markers="numbered") | str
    return RunnableParallel(context=context, question=RunnablePassthrough()) | PROMPT | model | StrOutputParser()


async def cited(documents: list[Document], answer: AIMessage) -> list[Citation]:
    context = await ContextBuilder().ainvoke({"documents": documents, "history": []})
    assert_type(context, Context)
    assert_type(content_blocks(context, "search_result"), list[dict[str, Any]])
    resolved = resolve_citations(answer, context)
    assert_type(resolved, ResolvedAnswer)
    return [citation for marker in resolved.markers for citation in marker.citations]


# Agents


def agent_parts(retriever: HybridRetriever) -> tuple[BaseTool, RetrievalMiddleware]:
    tool = retrieval_tool(retriever, name="manuals", k=3, filters=["page"], max_tokens=2000)
    assert_type(given_citations({"messages": []}), tuple[Citation, ...])
    return tool, RetrievalMiddleware(retriever, k=3, on_unresolved="retry")
