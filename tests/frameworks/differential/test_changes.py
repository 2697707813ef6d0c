"""Adding to and deleting from a hybrid retriever: all of its channels, or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from tests.frameworks import langchain_parts, llama_index_parts
from tests.frameworks.llama_index_parts import HashEmbedding
from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index import HybridVectorStore
from voicevault_retrievers.store import KnowledgeBase


def found_by(retriever: langchain.HybridRetriever, query: str) -> dict[str | None, set[str]]:
    return {d.id: set(d.metadata["voicevault"]["channels"]) for d in retriever.invoke(query)}


def nodes_found_by(retriever: llama_index.HybridRetriever, query: str) -> dict[str, set[str]]:
    return {n.node_id: set(llama_index_parts.told(n)["channels"]) for n in retriever.retrieve(query)}


BOTH = {"bm25", "dense"}


async def test_documents_in_memory_are_added_and_deleted_in_both_channels() -> None:
    retriever = langchain_parts.hybrid(k=9)
    retriever.invoke("pump")
    assert retriever.add([Document("A zeppelin lands", id="zeppelin", metadata={"page": 3})]) == ["zeppelin"]
    assert found_by(retriever, "zeppelin lands")["zeppelin"] == BOTH
    assert next(iter(found_by(retriever, "A zeppelin lands"))) == "zeppelin"
    assert await retriever.aadd([Document("The seal of the hatch")], ids=["seal"]) == ["seal"]
    found = {d.id: d.page_content for d in retriever.invoke("pump seal")}
    assert found["seal"] == "The seal of the hatch"
    retriever.delete(["zeppelin", "nobody"])
    await retriever.adelete(["seal"])
    assert not {"zeppelin", "seal"} & set(found_by(retriever, "zeppelin seal pump"))


async def test_nodes_in_memory_are_added_and_deleted_in_both_channels() -> None:
    retriever = llama_index_parts.hybrid(k=9)
    retriever.retrieve("pump")
    assert retriever.add([TextNode(id_="zeppelin", text="A zeppelin lands")]) == ["zeppelin"]
    assert nodes_found_by(retriever, "A zeppelin lands")["zeppelin"] == BOTH
    assert await retriever.aadd([TextNode(id_="pump", text="Another zeppelin")]) == ["pump"]
    assert {n.node_id: n.text for n in retriever.retrieve("zeppelin")}["pump"] == "Another zeppelin"
    retriever.delete(["zeppelin", "nobody"])
    await retriever.adelete(["pump"])
    assert not {"zeppelin", "pump"} & set(nodes_found_by(retriever, "zeppelin pump"))


def test_what_was_added_and_deleted_again_changes_no_score() -> None:
    retriever = langchain_parts.hybrid(k=9, fusion=None)
    before = retriever.invoke("pump seal")
    retriever.add([Document("pump pump pump", id="new")])
    assert retriever.invoke("pump seal") != before
    retriever.delete(["new"])
    assert retriever.invoke("pump seal") == before


def chroma() -> VectorStore:
    client = pytest.importorskip("chromadb").EphemeralClient()
    name, embeddings = f"changes-{len(client.list_collections())}", DeterministicFakeEmbedding(size=8)
    store: VectorStore = pytest.importorskip("langchain_chroma").Chroma(name, embeddings, client=client)
    store.add_texts(["The pump"], ids=["pump"])
    return store


def in_memory() -> VectorStore:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_texts(["The pump"], ids=["pump"])
    return store


@pytest.mark.parametrize("made", [in_memory, chroma])
async def test_a_vector_store_and_its_keyword_copy_are_changed_as_one(made: Any) -> None:
    store = made()
    keywords = langchain.BM25Retriever.from_vector_store(store, language="en")
    retriever = langchain.HybridRetriever(channels={"bm25": keywords, "dense": store}, k=9)
    (new,) = retriever.add([Document("A zeppelin", metadata={"page": 1})])
    assert found_by(retriever, "zeppelin")[new] == BOTH
    assert store.get_by_ids([new])[0].page_content == "A zeppelin"
    await retriever.aadd([Document("Another airship", id="pump")])
    assert [d.page_content for d in keywords.invoke("airship pump")] == ["Another airship"]
    await retriever.adelete([new])
    assert not store.get_by_ids([new])
    assert new not in found_by(retriever, "zeppelin")


@pytest.mark.parametrize("kept", ["docstore", "store"])
async def test_an_index_and_its_keyword_copy_are_changed_as_one(kept: str, tmp_path: Path) -> None:
    given = llama_index_parts.nodes()
    index = VectorStoreIndex(given, embed_model=HashEmbedding())
    if kept == "store":
        store = HybridVectorStore.open("store", root=tmp_path, embed_model=HashEmbedding())
        index = VectorStoreIndex.from_vector_store(store, HashEmbedding())
        index.insert_nodes(given)
    retriever = llama_index.HybridRetriever.from_index(index, language="en", k=9)
    retriever.add([TextNode(id_="zeppelin", text="A zeppelin lands")])
    assert nodes_found_by(retriever, "A zeppelin lands")["zeppelin"] == BOTH
    assert "zeppelin" in {n.node_id for n in index.as_retriever(similarity_top_k=9).retrieve("A zeppelin lands")}
    await retriever.aadd([TextNode(id_="pump", text="Another zeppelin")])
    assert {n.node_id: n.text for n in retriever.retrieve("Another zeppelin")}["pump"] == "Another zeppelin"
    await retriever.adelete(["zeppelin", "pump", "nobody"])
    assert not {"zeppelin", "pump"} & set(nodes_found_by(retriever, "Another zeppelin"))
    assert len(index.as_retriever(similarity_top_k=9).retrieve("water")) <= 3


def test_a_channel_that_cannot_be_changed_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    fixed = {"list": ListChannel([("pump", 1.0)])}
    ours = langchain_parts.hybrid(channels=fixed)
    theirs = llama_index_parts.hybrid(channels=fixed)
    for change in (
        lambda: ours.add([Document("zeppelin", id="new")]),
        lambda: ours.delete(["pump"]),
        lambda: theirs.add([TextNode(id_="new", text="zeppelin")]),
        lambda: theirs.delete(["pump"]),
    ):
        with pytest.raises(ConfigError, match="channel 'list' is a ListChannel"):
            change()
    assert "new" not in found_by(ours, "zeppelin")
    assert "pump" in nodes_found_by(theirs, "pump")
    with KnowledgeBase.create("manual", root=tmp_path, embedder=HashEmbedder()):
        pass
    for based in (
        langchain.HybridRetriever(kb_names=[tmp_path / "manual"], embeddings=HashEmbedder()),
        llama_index.HybridRetriever(tmp_path / "manual", embed_model=HashEmbedder()),
    ):
        with pytest.raises(ConfigError, match="of knowledge bases"):
            based.delete(["a"])


def test_two_stores_are_not_changed_as_one() -> None:
    retriever = langchain.HybridRetriever(channels={"one": in_memory(), "other": in_memory()})
    with pytest.raises(ConfigError, match="'one' and 'other' are stores outside memory"):
        retriever.add([Document("zeppelin")])


def test_a_copy_of_a_store_that_is_not_searched_beside_it_is_named() -> None:
    keywords = langchain.BM25Retriever.from_vector_store(in_memory(), language="en")
    retriever = langchain.HybridRetriever(channels={"words": keywords, "other": in_memory()})
    with pytest.raises(ConfigError, match="channel 'words' is a copy of a InMemoryVectorStore"):
        retriever.delete(["pump"])


class Failing(HashEmbedder):
    fails = False

    def embed_documents(self, texts: Sequence[str]) -> Any:
        if self.fails:
            raise OSError("no route to the model")
        return super().embed_documents(texts)


def test_where_embedding_fails_no_channel_is_changed() -> None:
    model = Failing()
    retriever = langchain.HybridRetriever.from_documents(langchain_parts.documents(), model, k=9)
    before = retriever.invoke("pump")
    model.fails = True
    with pytest.raises(OSError, match="no route"):
        retriever.add([Document("pump pump pump", id="new")])
    model.fails = False
    assert retriever.invoke("pump") == before
