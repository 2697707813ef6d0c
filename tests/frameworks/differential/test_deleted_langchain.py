"""LangChain: what a vector store no longer holds, or holds otherwise by now, beside the store's own search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from tests.frameworks.langchain_parts import documents, ids
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever


def in_memory() -> InMemoryVectorStore:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    return store


def flat() -> list[Document]:
    return [Document(d.page_content, id=d.id, metadata={"page": d.metadata["page"]}) for d in documents()]


def chroma() -> VectorStore:
    client = pytest.importorskip("chromadb").EphemeralClient()
    name, embeddings = f"deleted-{len(client.list_collections())}", DeterministicFakeEmbedding(size=8)
    store: VectorStore = pytest.importorskip("langchain_chroma").Chroma(name, embeddings, client=client)
    store.add_documents(flat())
    return store


def qdrant() -> VectorStore:
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    models = pytest.importorskip("qdrant_client.models")
    client.create_collection("deleted", models.VectorParams(size=8, distance=models.Distance.COSINE))
    made = pytest.importorskip("langchain_qdrant").QdrantVectorStore
    store: VectorStore = made(client, "deleted", DeterministicFakeEmbedding(size=8))
    store.add_documents(flat(), ids=[UUIDS[str(d.id)] for d in documents()])
    return store


def faiss() -> VectorStore:
    library = pytest.importorskip("faiss")
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS

    store = FAISS(DeterministicFakeEmbedding(size=8), library.IndexFlatL2(8), InMemoryDocstore(), {})
    store.add_documents(flat())
    return store


UUIDS = {str(d.id): f"00000000-0000-0000-0000-00000000000{at}" for at, d in enumerate(documents())}
STORES = [in_memory, chroma, qdrant, faiss]


def named(store: VectorStore, name: str) -> str:
    return UUIDS[name] if "Qdrant" in type(store).__name__ else name


def texts(found: Sequence[Document]) -> set[str]:
    return {document.page_content for document in found}


def retrievers(store: VectorStore) -> list[Any]:
    keywords = BM25Retriever.from_vector_store(store, language="en", k=9)
    return [keywords, HybridRetriever(channels={"bm25": keywords, "dense": store}, k=9)]


@pytest.mark.parametrize("made", STORES)
async def test_a_deleted_document_is_found_by_nobody(made: Callable[[], VectorStore]) -> None:
    store = made()
    both = retrievers(store)
    assert "The pump seal is rated for hot water" in texts(both[0].invoke("pump"))
    store.delete([named(store, "seal")])
    theirs = texts(store.similarity_search("pump", k=9))
    for retriever in both:
        for found in (retriever.invoke("pump"), await retriever.ainvoke("pump")):
            assert "The pump seal is rated for hot water" not in texts(found)
            assert texts(found) <= theirs
            assert len(found) >= 2


@pytest.mark.parametrize("made", [in_memory, chroma, qdrant])
async def test_an_old_text_and_an_old_right_are_not_given(made: Callable[[], VectorStore]) -> None:
    store = made()
    both = retrievers(store)
    assert any("hot water" in text for text in texts(both[0].invoke("pump", require={"page": 0})))
    seal = named(store, "seal")
    store.add_documents([Document("The pump seal was replaced", id=seal, metadata={"page": 7})], ids=[seal])
    for retriever in both:
        for found in (retriever.invoke("pump seal"), await retriever.ainvoke("pump seal")):
            assert "The pump seal was replaced" in texts(found)
            assert not any("hot water" in text for text in texts(found))
        for permitted in (retriever.invoke("seal", require={"page": 0}), retriever.invoke("seal", where={"page": 0})):
            assert not any("replaced" in text for text in texts(permitted))
    assert texts(both[0].invoke("replaced", require={"page": 7})) == {"The pump seal was replaced"}
    assert both[0].invoke("rated") == []


def test_hits_that_are_gone_are_made_up_for_by_those_behind_them() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document(f"pump {'pump ' * (at % 7)}", id=f"{at:03}") for at in range(200)])
    keywords = BM25Retriever.from_vector_store(store, language="en", k=5)
    first = ids(keywords.invoke("pump"))
    store.delete([str(one) for one in first])
    assert len(keywords.invoke("pump")) == 5
    store.delete([f"{at:03}" for at in range(190)])
    assert len(keywords.invoke("pump", k=20)) == 10


@pytest.mark.parametrize(("made", "at_once"), [(in_memory, True), (faiss, True), (chroma, False), (qdrant, False)])
async def test_what_is_added_is_found_at_once_or_after_refresh(made: Callable[[], VectorStore], at_once: bool) -> None:
    store = made()
    both = retrievers(store)
    new = "00000000-0000-0000-0000-0000000000ff"
    store.add_documents([Document("A zeppelin", id=new, metadata={"page": 1})], ids=[new])
    assert (texts(both[0].invoke("zeppelin")) == {"A zeppelin"}) is at_once
    assert both[1].refresh() is not at_once
    assert not await both[1].arefresh()
    for retriever in both:
        assert retriever.invoke("zeppelin")[0].page_content == "A zeppelin"


class Unasked(InMemoryVectorStore):
    """Lists nothing by id once it has been read."""

    refuses = False

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        if self.refuses:
            raise OSError("no route to the store")
        return super().get_by_ids(ids)


def test_a_store_that_cannot_be_asked_fails_the_channel_and_nothing_unchecked_leaves() -> None:
    store = Unasked(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    keywords, hybrid = retrievers(store)
    store.refuses = True
    with pytest.raises(OSError, match="no route"):
        keywords.invoke("pump")
    found = hybrid.invoke("pump")
    assert {tuple(document.metadata["voicevault"]["channels"]) for document in found} == {("dense",)}
    assert found[0].metadata["voicevault"]["degraded"]


class Forgetful(InMemoryVectorStore):
    """Lists its documents, and gives none by id."""

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        if len(ids) == 1:
            raise NotImplementedError
        return super().get_by_ids(ids)


def test_a_store_that_does_not_look_up_by_id_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Forgetful(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    with caplog.at_level(logging.WARNING):
        keywords = BM25Retriever.from_vector_store(store, language="en")
    assert caplog.text.count("Forgetful gives nothing by id") == 1
    store.delete(["seal"])
    keywords.invoke("pump")
    assert keywords.refresh()
    assert "seal" not in ids(keywords.invoke("pump"))
    assert caplog.text.count("gives nothing by id") == 1


def test_a_copy_is_changed_where_it_was_taken_of() -> None:
    keywords = BM25Retriever.from_vector_store(in_memory(), language="en")
    for change in (lambda: keywords.add([Document("new")]), lambda: keywords.delete(["seal"])):
        with pytest.raises(ConfigError, match="follows it: add and delete there"):
            change()
