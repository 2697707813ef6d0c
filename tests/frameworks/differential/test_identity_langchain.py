"""Which documents are the same: LangChain's own fusion beside ours, on documents as loaders give them, without ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.pipeline.options import Fusion

pytest.importorskip("langchain_classic")

from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever as CommunityBM25
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever

QUESTION = "how is the pump reset"
TEXTS = (
    "Reset the pump with the green key.",
    "The pump leaks where its seal is worn.",
    "ERR_2043: the gearbox oil is too warm.",
    "Reset the alarm, then the pump.",
    "Visitors meet at the gate.",
)
LOADED: dict[str, Callable[[int], dict[str, Any]]] = {
    "text": lambda at: {"source": "pump.txt"},
    "PyPDF": lambda at: {
        "producer": "x", "creationdate": "2026-01-02T03:04:05+00:00", "source": "pump.pdf", "total_pages": 5,
        "page": at, "page_label": str(at + 1),
    },
    "Unstructured": lambda at: {
        "source": "pump.pdf", "languages": ["eng"], "page_number": at + 1, "category": "NarrativeText",
        "coordinates": {"points": ((0.0, 1.5), (2.0, 3.0)), "system": "PixelSpace"}, "element_id": f"e{at}",
    },
    "Docling": lambda at: {"source": "pump.pdf", "dl_meta": {"doc_items": [{"self_ref": f"#/texts/{at}"}]}},
}  # fmt: skip
EMBEDDINGS = DeterministicFakeEmbedding(size=32)


def in_memory(documents: list[Document]) -> VectorStore:
    return InMemoryVectorStore.from_documents(documents, EMBEDDINGS)


def faiss(documents: list[Document]) -> VectorStore:
    pytest.importorskip("faiss")
    from langchain_community.vectorstores import FAISS

    return FAISS.from_documents(documents, EMBEDDINGS)


def chroma(documents: list[Document]) -> VectorStore:
    from langchain_chroma import Chroma
    from langchain_community.vectorstores.utils import filter_complex_metadata

    return Chroma.from_documents(filter_complex_metadata(documents), EMBEDDINGS, collection_name="identity")


def qdrant(documents: list[Document]) -> VectorStore:
    stores = pytest.importorskip("langchain_qdrant")

    return stores.QdrantVectorStore.from_documents(
        documents, EMBEDDINGS, location=":memory:", collection_name="identity"
    )


def loaded(kind: str) -> list[Document]:
    return [Document(text, metadata=LOADED[kind](at)) for at, text in enumerate(TEXTS)]


def told(document: Document) -> tuple[str, str]:
    """The text and the metadata that was indexed, as JSON; what a store or a search adds is left out."""
    added = ("voicevault", "relevance_score", "_id", "_collection_name")
    own = {key: value for key, value in document.metadata.items() if key not in added}
    return document.page_content, json.dumps(own, sort_keys=True)


@pytest.mark.parametrize("kind", LOADED)
@pytest.mark.parametrize("make", [in_memory, faiss, qdrant])
async def test_each_document_comes_once_as_from_the_ensemble_and_is_found_by_both(
    kind: str, make: Callable[[list[Document]], VectorStore]
) -> None:
    store = make(loaded(kind))
    keywords = CommunityBM25.from_documents(loaded(kind), k=5)
    native = EnsembleRetriever(retrievers=[keywords, store.as_retriever(search_kwargs={"k": 5})], weights=[0.4, 0.6])
    ours = HybridRetriever(
        channels={"bm25": keywords, "dense": store}, fusion=Fusion(RRF(k=60), weights={"bm25": 0.4, "dense": 0.6}), k=10
    )
    expected = native.invoke(QUESTION)
    assert len(expected) == len(TEXTS)
    for found in (ours.invoke(QUESTION), await ours.ainvoke(QUESTION)):
        assert [told(document) for document in found] == [told(document) for document in expected]
        assert all(list(document.metadata["voicevault"]["channels"]) == ["bm25", "dense"] for document in found)
    own = HybridRetriever(channels={"bm25": BM25Retriever.from_documents(loaded(kind)), "dense": store}, k=10)
    best = own.invoke(QUESTION)[0]
    assert best.page_content == TEXTS[0]
    assert set(best.metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    assert "degraded" not in best.metadata["voicevault"]


def test_a_store_that_keeps_part_of_the_metadata_finds_the_same_documents() -> None:
    pytest.importorskip("langchain_chroma")
    for kind in LOADED:
        store = chroma(loaded(kind))
        try:
            ours = HybridRetriever(channels={"bm25": BM25Retriever.from_documents(loaded(kind)), "dense": store}, k=10)
            found = ours.invoke(QUESTION)
            assert sorted(document.page_content for document in found) == sorted(TEXTS)
            assert {told(document) for document in found[:1]} <= {told(document) for document in loaded(kind)}
        finally:
            store.delete_collection()  # type: ignore[attr-defined]  # of Chroma


def test_one_text_on_two_pages_is_two_documents_where_the_ensemble_has_one() -> None:
    pages = [Document("Left blank.", metadata={"source": "pump.pdf", "page": page}) for page in (3, 8)]
    store = in_memory(pages)
    keywords = CommunityBM25.from_documents(pages, k=5)
    native = EnsembleRetriever(retrievers=[keywords, store.as_retriever()], weights=[0.5, 0.5])
    assert len(native.invoke("blank")) == 1
    found = HybridRetriever(channels={"bm25": keywords, "dense": store}).invoke("blank")
    assert sorted(document.metadata["page"] for document in found) == [3, 8]
    assert all(set(document.metadata["voicevault"]["channels"]) == {"bm25", "dense"} for document in found)


def test_an_id_key_holds_for_retrievers_of_others_and_for_our_own() -> None:
    def keyed(**more: Any) -> list[Document]:
        return [Document(text, metadata={"key": f"k{at}", **more}) for at, text in enumerate(TEXTS)]

    store = in_memory(keyed(of="store"))
    native = EnsembleRetriever(
        retrievers=[CommunityBM25.from_documents(keyed(of="words"), k=5), store.as_retriever(search_kwargs={"k": 5})],
        weights=[0.5, 0.5],
        id_key="key",
    )
    own = BM25Retriever.from_documents(keyed(of="words"))
    found = HybridRetriever(
        channels={"bm25": as_channel(own, id_key="key"), "dense": as_channel(store, id_key="key")}, k=10
    ).invoke(QUESTION)
    assert sorted(str(document.id) for document in found) == sorted(
        document.metadata["key"] for document in native.invoke(QUESTION)
    )
    assert set(found[0].metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    contradicting = HybridRetriever(channels={"bm25": own, "dense": store}, k=10).invoke(QUESTION)
    assert len(contradicting) > len(TEXTS)


def test_a_merged_document_has_the_metadata_that_the_rights_permit() -> None:
    def of(team: str) -> list[Document]:
        return [Document(text, metadata={"team": team}) for text in TEXTS]

    channels = {"bm25": BM25Retriever.from_documents(of("blue")), "dense": in_memory(of("red"))}
    found = HybridRetriever(channels=channels, k=10).invoke(QUESTION, require={"team": "red"})
    assert {document.metadata["team"] for document in found} == {"red"}
    assert len(found) == len(TEXTS)
    assert all(list(document.metadata["voicevault"]["channels"]) == ["dense"] for document in found)
