"""What users write by mistake: each line that ends in a comment has the error that the comment names, and no other."""

from __future__ import annotations

from langchain_core.documents import Document

from voicevault_retrievers import Fusion
from voicevault_retrievers.langchain import BM25Retriever, CrossEncoderReranker, HybridRetriever, retrieval_tool


async def mistaken(retriever: HybridRetriever, documents: list[Document]) -> None:
    HybridRetriever(channels={}, fusoin="rrf")  # call-arg
    HybridRetriever(channels={}, fusion=Fusion(on_error="ignore"))  # arg-type
    HybridRetriever(channels={}, k="3")  # arg-type
    CrossEncoderReranker(topn=3)  # call-arg
    BM25Retriever.from_documents("a text")  # arg-type
    BM25Retriever.from_documents(documents).add("a text")  # arg-type
    retriever.search("pump", weigths={"bm25": 1.0})  # call-arg
    len(retriever.search("pump").documents)  # attr-defined
    retriever.invoke(["pump"])  # arg-type
    texts: list[str] = await retriever.ainvoke("pump")  # assignment
    retriever.add(texts)  # arg-type
    retrieval_tool(retriever, markers="footnotes")  # arg-type
