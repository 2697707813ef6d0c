"""What is set up wrongly raises with us as in the frameworks, beside channels that answer; outages are marked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_openai import ChatOpenAI
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai import OpenAI

from tests.model_server import ModelServer, answers, model_server
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError, MissingExtraError, RerankerNotAvailableError
from voicevault_retrievers.langchain import BM25Retriever, CrossEncoderReranker, LLMReranker, QueryExpander
from voicevault_retrievers.langchain.models import NamedTextModel

TEXTS = {"pump": "Flush the pump housing", "valve": "Close the valve of the pump"}
NO_MODEL = b'{"error": {"message": "The model `gpt` does not exist", "type": "x", "code": "model_not_found"}}'


def documents() -> list[Document]:
    return [Document(text, id=name) for name, text in TEXTS.items()]


def nodes() -> list[Any]:
    return [TextNode(id_=name, text=text) for name, text in TEXTS.items()]


@pytest.fixture
def unknown() -> Iterator[ModelServer]:
    """A server that knows no model."""
    with model_server(answers(NO_MODEL, 404)) as server:
        yield server


@pytest.fixture
def down() -> Iterator[ModelServer]:
    with model_server(answers(b"down", 503)) as server:
        yield server


def in_memory() -> VectorStore:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    store.embedding = DeterministicFakeEmbedding(size=4)
    return store


def faiss() -> VectorStore:
    pytest.importorskip("faiss")
    store = FAISS.from_documents(documents(), DeterministicFakeEmbedding(size=8))
    store.embedding_function = DeterministicFakeEmbedding(size=4)
    return store


def chroma() -> VectorStore:
    store = pytest.importorskip("langchain_chroma").Chroma("of-eight", DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    store._embedding_function = DeterministicFakeEmbedding(size=4)
    found: VectorStore = store
    return found


def qdrant() -> VectorStore:
    clients, models = pytest.importorskip("qdrant_client"), pytest.importorskip("qdrant_client.models")
    client = clients.QdrantClient(":memory:")
    client.create_collection("x", vectors_config=models.VectorParams(size=8, distance=models.Distance.COSINE))
    stores = pytest.importorskip("langchain_qdrant")
    stores.QdrantVectorStore(client, "x", DeterministicFakeEmbedding(size=8)).add_texts(["pump"])
    other = DeterministicFakeEmbedding(size=4)
    found: VectorStore = stores.QdrantVectorStore(client, "x", other, validate_collection_config=False)
    return found


@pytest.mark.parametrize("make", [in_memory, faiss, chroma, qdrant])
async def test_a_langchain_store_of_another_dimension_raises(make: Callable[[], VectorStore]) -> None:
    store = make()
    with pytest.raises(Exception) as native:  # noqa: PT011 - each store has an error of its own
        store.similarity_search("pump")
    for part in (store, store.as_retriever()):
        hybrid = langchain.HybridRetriever(channels={"bm25": BM25Retriever.from_documents(documents()), "dense": part})
        with pytest.raises(type(native.value)):
            hybrid.invoke("pump")
        with pytest.raises(type(native.value)):
            await hybrid.ainvoke("pump")


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
@pytest.mark.parametrize("kind", ["simple", "chroma", "qdrant"])
async def test_a_llama_index_store_of_another_dimension_raises(kind: str) -> None:
    context = None
    if kind == "chroma":
        collection = pytest.importorskip("chromadb").EphemeralClient().get_or_create_collection("nodes-of-eight")
        stores = pytest.importorskip("llama_index.vector_stores.chroma")
        context = StorageContext.from_defaults(vector_store=stores.ChromaVectorStore(chroma_collection=collection))
    elif kind == "qdrant":
        client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
        stores = pytest.importorskip("llama_index.vector_stores.qdrant")
        context = StorageContext.from_defaults(vector_store=stores.QdrantVectorStore("x", client=client))
    held = [TextNode(id_=str(uuid5(NAMESPACE_OID, node.node_id)), text=node.text) for node in nodes()]
    index = VectorStoreIndex(held, embed_model=MockEmbedding(embed_dim=8), storage_context=context)
    index._embed_model = MockEmbedding(embed_dim=4)
    with pytest.raises(Exception) as native:  # noqa: PT011 - each store has an error of its own
        index.as_retriever().retrieve("pump")
    for part in (index, index.as_retriever()):
        keywords = llama_index.BM25Retriever.from_nodes(nodes())
        hybrid = llama_index.HybridRetriever(channels={"bm25": keywords, "dense": part})
        with pytest.raises(type(native.value)):
            hybrid.retrieve("pump")
        if kind == "simple":  # the others want an async client
            with pytest.raises(type(native.value)):
                await hybrid.aretrieve("pump")


@pytest.mark.parametrize("name", ["no/such-model", "no-such-model"])
async def test_a_cross_encoder_that_does_not_exist_raises(name: str, tmp_path: Path) -> None:
    reranker = CrossEncoderReranker(scorer=name)
    with pytest.raises(RerankerNotAvailableError, match=name):
        reranker.compress_documents(documents(), "pump")
    with pytest.raises(RerankerNotAvailableError, match=name):
        await reranker.acompress_documents(documents(), "pump")
    with pytest.raises(RerankerNotAvailableError, match=name):
        (BM25Retriever.from_documents(documents()) >> reranker).invoke("pump")
    found = [NodeWithScore(node=node, score=1.0) for node in nodes()]
    rerank = llama_index.CrossEncoderRerank(model=name)
    with pytest.raises(RerankerNotAvailableError, match=name):
        rerank.postprocess_nodes(found, QueryBundle("pump"))
    with pytest.raises(RerankerNotAvailableError, match=name):
        await rerank.apostprocess_nodes(found, QueryBundle("pump"))
    with pytest.raises(RerankerNotAvailableError, match=name):
        (llama_index.BM25Retriever.from_nodes(nodes()) >> rerank).retrieve("pump")


def chat(server: ModelServer) -> ChatOpenAI:
    return ChatOpenAI(model="gpt", base_url=f"{server.url}/v1", api_key="key", max_retries=0)  # type: ignore[arg-type]


def llm(server: ModelServer) -> OpenAI:
    return OpenAI("gpt-4", api_base=f"{server.url}/v1", api_key="key", max_retries=0)


def expanded(model: Any) -> langchain.HybridRetriever:
    return langchain.HybridRetriever(
        channels={"bm25": BM25Retriever.from_documents(documents())}, expansion=QueryExpander(llm=model)
    )


async def test_a_chat_model_that_does_not_exist_raises(unknown: ModelServer) -> None:
    with pytest.raises(Exception, match="does not exist") as native:
        chat(unknown).invoke("pump")
    expander = expanded(chat(unknown))
    for retriever in (expander, BM25Retriever.from_documents(documents()) >> LLMReranker(llm=chat(unknown))):
        with pytest.raises(type(native.value)):
            retriever.invoke("pump")
        with pytest.raises(type(native.value)):
            await retriever.ainvoke("pump")
    with pytest.raises(Exception, match="does not exist") as native:
        llm(unknown).complete("pump")
    found = [NodeWithScore(node=node, score=1.0) for node in nodes()]
    with pytest.raises(type(native.value)):
        llama_index.LLMRerank(llm=llm(unknown)).postprocess_nodes(found, QueryBundle("pump"))
    with pytest.raises(type(native.value)):
        await llama_index.LLMRerank(llm=llm(unknown)).apostprocess_nodes(found, QueryBundle("pump"))


async def test_a_chat_model_that_is_down_is_marked(down: ModelServer) -> None:
    reranked = BM25Retriever.from_documents(documents()) >> LLMReranker(llm=chat(down))
    for documents_found in (reranked.invoke("pump"), await reranked.ainvoke("pump")):
        assert len(documents_found) == len(TEXTS)
        assert documents_found[0].metadata["voicevault"]["degraded"] == ["llm_rerank: OpenAIAPIError"]
    found = [NodeWithScore(node=node, score=1.0) for node in nodes()]
    (first, *_) = llama_index.LLMRerank(llm=llm(down)).postprocess_nodes(found, QueryBundle("pump"))
    (said,) = (llama_index.provenance(first) or {})["degraded"]
    assert said == "llm_rerank: InternalServerError"


@pytest.mark.parametrize("name", ["no-such-model", "nobody:model", "anthropic:claude"])
def test_a_name_that_makes_no_chat_model_raises(name: str) -> None:
    pytest.importorskip("langchain")
    retriever = expanded(name)
    with pytest.raises((ConfigError, ImportError)):
        retriever.invoke("pump")
    with pytest.raises((ConfigError, ImportError)):
        NamedTextModel(name).complete("pump")


def test_the_extra_of_chat_models_by_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    retriever = expanded("openai:gpt-5")
    with pytest.raises(MissingExtraError, match=r"\[agents\]"):
        retriever.invoke("pump")
