"""LlamaIndex: what an index no longer holds, or holds otherwise by now, beside the index's own retriever."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from tests.frameworks.llama_index_parts import HashEmbedding
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, HybridVectorStore, VectorRetriever

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

NAMES = ("pump", "valve", "filter", "alarm")
UUIDS = {name: f"00000000-0000-0000-0000-00000000000{at}" for at, name in enumerate(NAMES)}


def node(name: str, text: str, team: str = "public") -> TextNode:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{name}")}
    return TextNode(id_=UUIDS.get(name, name), text=text, metadata={"team": team}, relationships=source)


def nodes() -> list[TextNode]:
    return [
        node("pump", "The pump is primed before the start"),
        node("valve", "Close the valve and drain the pump"),
        node("filter", "The filter of the pump is rinsed"),
        node("alarm", "An alarm sounds when the pump stops"),
    ]


def simple() -> VectorStoreIndex:
    return VectorStoreIndex(nodes(), embed_model=HashEmbedding())


def over(store: Any) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes(), storage_context=context, embed_model=HashEmbedding())


def chroma() -> VectorStoreIndex:
    client = pytest.importorskip("chromadb").EphemeralClient()
    collection = client.create_collection(f"deleted-{len(client.list_collections())}-llama")
    return over(pytest.importorskip("llama_index.vector_stores.chroma").ChromaVectorStore(chroma_collection=collection))


def qdrant() -> VectorStoreIndex:
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    return over(pytest.importorskip("llama_index.vector_stores.qdrant").QdrantVectorStore("deleted", client=client))


@pytest.fixture(params=[simple, chroma, qdrant, "hybrid"])
def index(request: pytest.FixtureRequest, tmp_path: Any) -> VectorStoreIndex:
    if request.param == "hybrid":
        return over(HybridVectorStore.open("store", root=tmp_path, embed_model=HashEmbedding()))
    made: Callable[[], VectorStoreIndex] = request.param
    return made()


def texts(found: Iterable[NodeWithScore]) -> set[str]:
    return {node.text for node in found}


def retrievers(index: VectorStoreIndex) -> list[Any]:
    keywords = BM25Retriever.from_vector_store(index, language="en", k=9)
    return [keywords, HybridRetriever.from_index(index, language="en", k=9)]


async def both_ways(retriever: Any, query: str) -> list[list[NodeWithScore]]:
    return [retriever.retrieve(query), await retriever.aretrieve(query)]


async def test_a_deleted_document_is_found_by_nobody(index: VectorStoreIndex) -> None:
    both = retrievers(index)
    assert len(texts(both[0].retrieve("pump"))) == 4
    index.delete_ref_doc("doc-valve")
    gone = "Close the valve and drain the pump"
    assert gone not in texts(index.as_retriever(similarity_top_k=9).retrieve("pump"))
    for retriever in both:
        for found in await both_ways(retriever, "pump"):
            assert texts(found) == {one.text for one in nodes()} - {gone}


async def test_an_old_text_and_an_old_right_are_not_given(index: VectorStoreIndex) -> None:
    both = retrievers(index)
    index.delete_ref_doc("doc-valve")
    index.insert_nodes([node("valve", "The pump valve is secret", team="board")])
    for retriever in both:
        for found in await both_ways(retriever, "valve"):
            assert "The pump valve is secret" in texts(found)
            assert "Close the valve and drain the pump" not in texts(found)
        permitted = retriever.with_options(require={"team": "public"})
        for found in await both_ways(permitted, "valve pump"):
            assert not any("valve" in text for text in texts(found))
            assert len(found) == 3


async def test_what_is_inserted_is_found_at_once_or_after_refresh(index: VectorStoreIndex) -> None:
    both = retrievers(index)
    new = "00000000-0000-0000-0000-0000000000ff"
    index.insert_nodes([node(new, "A zeppelin lands")])
    at_once = not index.vector_store.stores_text
    assert (texts(both[0].retrieve("zeppelin")) == {"A zeppelin lands"}) is at_once
    both[1].retrieve("zeppelin")
    assert both[1].refresh() is not at_once
    assert not await both[1].arefresh()
    both[0].refresh()
    for retriever in both:
        assert "A zeppelin lands" in texts(retriever.retrieve("zeppelin")[:1])


def test_what_the_docstore_says_otherwise_is_taken_over() -> None:
    index = simple()
    both = retrievers(index)
    index.docstore.add_documents([node("pump", "A turbine spins")])
    assert texts(both[0].retrieve("primed")) == set()
    for retriever in both:
        assert "The pump is primed before the start" not in texts(retriever.retrieve("pump"))
        retriever.refresh()
    assert texts(both[0].retrieve("turbine")) == {"A turbine spins"}


def test_vectors_that_are_gone_take_their_nodes_along_though_the_docstore_keeps_them() -> None:
    index = simple()
    both = retrievers(index)
    index.delete_nodes([UUIDS["pump"]])
    assert UUIDS["pump"] in index.docstore.docs
    for retriever in [*both, VectorRetriever.from_vector_store(index, k=9)]:
        assert len(retriever.retrieve("pump")) == 3


def test_a_store_that_does_not_look_up_by_id_says_so_once(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    class Listing(HybridVectorStore):
        """Lists its nodes, and gives none by id."""

        def get_nodes(self, node_ids: Any = None, filters: Any = None) -> Any:
            if node_ids is not None:
                raise NotImplementedError
            return super().get_nodes(None, filters)

    index = over(Listing.open("listing", root=tmp_path, embed_model=HashEmbedding()))
    with caplog.at_level(logging.WARNING):
        keywords = BM25Retriever.from_vector_store(index, language="en", k=9)
    assert caplog.text.count("Listing gives nothing by id") == 1
    index.delete_ref_doc("doc-valve")
    keywords.retrieve("pump")
    assert keywords.refresh()
    assert len(keywords.retrieve("pump")) == 3
    assert caplog.text.count("gives nothing by id") == 1


def test_a_copy_is_changed_where_it_was_taken_of() -> None:
    keywords = BM25Retriever.from_vector_store(simple(), language="en")
    for change in (lambda: keywords.add([node("new", "new")]), lambda: keywords.delete(["pump"])):
        with pytest.raises(ConfigError, match="follows it: add and delete there"):
            change()
