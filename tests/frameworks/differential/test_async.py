"""Async is awaited: parts that are async alone, and what must not run on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode

from tests.frameworks import langchain_parts, llama_index_parts
from tests.frameworks.loops import Meeting
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.langchain import channels
from voicevault_retrievers.langchain.models import NamedTextModel
from voicevault_retrievers.llama_index import convert

MODEL = HashEmbedder()


def row(text: str) -> list[float]:
    return [float(value) for value in MODEL.embed_queries([text])[0]]


class AsyncAlone(Embeddings):
    """Is asked over a network by an async client."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError("use the async call")

    def embed_query(self, text: str) -> list[float]:
        raise NotImplementedError("use the async call")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return list(map(row, texts))

    async def aembed_query(self, text: str) -> list[float]:
        await asyncio.sleep(0)
        self.asked.append(text)
        return row(text)


class AsyncAloneAtOnce(AsyncAlone):
    """Never waits for anything."""

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return list(map(row, texts))

    async def aembed_query(self, text: str) -> list[float]:
        return row(text)


class AsyncModel(BaseEmbedding):
    """The same for LlamaIndex."""

    def _get_query_embedding(self, query: str) -> list[float]:
        raise NotImplementedError("use the async call")

    def _get_text_embedding(self, text: str) -> list[float]:
        raise NotImplementedError("use the async call")

    async def _aget_query_embedding(self, query: str) -> list[float]:
        await asyncio.sleep(0)
        return row(query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        await asyncio.sleep(0)
        return row(text)


class AsyncModelAtOnce(AsyncModel):
    async def _aget_query_embedding(self, query: str) -> list[float]:
        return row(query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return row(text)


@pytest.mark.parametrize("made", [AsyncAlone, AsyncAloneAtOnce])
async def test_embeddings_that_are_async_alone_are_awaited_by_langchains_classes(
    made: Callable[[], AsyncAlone], tmp_path: Path
) -> None:
    documents = langchain_parts.documents()
    question = "flush the pump housing"
    expected = langchain.VectorRetriever.from_documents(documents, HashEmbedder()).invoke(question)
    vectors = await langchain.VectorRetriever.afrom_documents(documents, made())
    assert langchain_parts.ids(await vectors.ainvoke(question)) == langchain_parts.ids(expected)
    hybrid = await langchain.HybridRetriever.afrom_documents(documents, made(), k=9)
    await hybrid.aadd([Document("A zeppelin", id="new")])
    found = await hybrid.ainvoke("zeppelin")
    assert set(found[0].metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    assert "degraded" not in found[0].metadata["voicevault"]
    index = await langchain.HybridIndex.aopen(tmp_path / "kb", embeddings=made())
    await index.aupsert(documents)
    found = await index.ainvoke(question)
    assert set(found[0].metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    index.close()
    base = langchain.HybridRetriever(kb_names=[tmp_path / "kb"], embeddings=made())
    found = await base.ainvoke(question)
    assert set(found[0].metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    with pytest.raises(NotImplementedError):
        await asyncio.to_thread(vectors.invoke, "another question")


@pytest.mark.parametrize("made", [AsyncModel, AsyncModelAtOnce])
async def test_embeddings_that_are_async_alone_are_awaited_by_llama_indexs_classes(
    made: Callable[[], AsyncModel], tmp_path: Path
) -> None:
    nodes = llama_index_parts.nodes()
    question = "drain the pump"
    vectors = await llama_index.VectorRetriever.afrom_nodes(nodes, made())
    assert llama_index_parts.ids(await vectors.aretrieve(question))[0] == "valve"
    hybrid = await llama_index.HybridRetriever.afrom_nodes(nodes, made(), k=9)
    await hybrid.aadd([TextNode(id_="new", text="A zeppelin")])
    found = await hybrid.aretrieve("A zeppelin")
    assert set(llama_index_parts.told(found[0])["channels"]) == {"bm25", "dense"}
    index = VectorStoreIndex([], embed_model=made())
    await index.ainsert_nodes(nodes)
    both = await llama_index.HybridRetriever.afrom_index(index, k=9)
    await both.aadd([TextNode(id_="new", text="A zeppelin")])
    for part in (index, index.as_retriever(similarity_top_k=9)):
        searched = llama_index.HybridRetriever(channels={"dense": part}, k=9)
        assert "degraded" not in llama_index_parts.told((await searched.aretrieve(question))[0])
    found = await both.aretrieve("A zeppelin")
    assert set(llama_index_parts.told(found[0])["channels"]) == {"bm25", "dense"}
    store = await llama_index.HybridVectorStore.aopen(tmp_path / "kb", embed_model=made())
    store.close()
    with pytest.raises(NotImplementedError):
        await asyncio.to_thread(vectors.retrieve, "another question")


async def test_as_many_questions_as_there_are_are_awaited_at_once() -> None:
    """More than there are worker threads."""
    meeting = Meeting(100)

    class Meets(AsyncAlone):
        async def aembed_query(self, text: str) -> list[float]:
            if text.startswith("question"):
                await meeting.join()
            return row(text)

    retriever = await langchain.HybridRetriever.afrom_documents(langchain_parts.documents(), Meets())
    await asyncio.gather(*(retriever.ainvoke(f"question {at}") for at in range(100)))
    assert meeting.here == 100


async def test_the_async_call_goes_before_the_sync_one() -> None:
    class Both(AsyncAlone):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return list(map(row, texts))

        def embed_query(self, text: str) -> list[float]:
            raise AssertionError("the sync call")

    embeddings = Both()
    retriever = langchain.VectorRetriever.from_documents(langchain_parts.documents(), embeddings)
    await retriever.ainvoke("pump")
    await retriever.ainvoke("pump")
    assert embeddings.asked == ["pump"]


class AsyncStore(InMemoryVectorStore):
    """A store of an async client: it has async calls alone."""

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        raise NotImplementedError

    similarity_search = similarity_search_with_score = add_documents = delete = get_by_ids  # type: ignore[assignment]

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        await asyncio.sleep(0)
        return InMemoryVectorStore.get_by_ids(self, ids)

    async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        InMemoryVectorStore.delete(self, ids)


async def test_a_store_that_is_async_alone_is_followed_searched_and_changed() -> None:
    store = AsyncStore(AsyncAlone())
    given = await store.aadd_documents(langchain_parts.documents())
    keywords = await langchain.BM25Retriever.afrom_vector_store(store, ids=given, language="en")
    retriever = langchain.HybridRetriever(channels={"bm25": keywords, "dense": store}, k=9)
    await retriever.aadd([Document("A zeppelin", id="new")])
    await retriever.adelete(["seal"])
    found = await retriever.ainvoke("pump zeppelin")
    told = {document.id: set(document.metadata["voicevault"]["channels"]) for document in found}
    assert told["new"] == {"bm25", "dense"}
    assert "seal" not in told
    assert "degraded" not in found[0].metadata["voicevault"]


class AsyncChat(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "async"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError("use the async call")

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(0)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("pump"))])


async def test_a_chat_model_by_its_name_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    chat_models = pytest.importorskip("langchain.chat_models")
    monkeypatch.setattr(chat_models, "init_chat_model", lambda name: AsyncChat())
    assert await NamedTextModel("any:model").acomplete("a question") == "pump"
    for model in (AsyncChat(), "any:model"):
        expander = langchain.QueryExpander(llm=model)
        retriever = langchain_parts.hybrid(expansion=expander)
        found = await retriever.ainvoke("seal")
        assert "degraded" not in found[0].metadata["voicevault"]


# What does not run on the loop


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Iterator[set[int]]:
    """The threads that a function is called in."""
    threads: set[int] = set()
    original = getattr(module, name)

    def recording(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.get_ident())
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, recording)
        yield threads


class Awaited(BaseRetriever):
    found: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.found


async def test_hundreds_of_documents_are_converted_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(f"pump {at}", id=str(at)) for at in range(300)]
    keywords = langchain.BM25Retriever.from_documents(documents, language="en", k=300)
    with recorded(monkeypatch, langchain.base, "document_of") as threads:
        assert len(await keywords.ainvoke("pump")) == 300
    assert threads
    assert threading.get_ident() not in threads
    foreign_one = langchain.HybridRetriever(channels={"one": Awaited(found=documents)}, k=300)
    with recorded(monkeypatch, channels, "chunk_of") as threads:
        assert len(await foreign_one.ainvoke("pump")) == 300
    assert threads
    assert threading.get_ident() not in threads


async def test_hundreds_of_nodes_are_converted_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [TextNode(id_=str(at), text=f"pump {at}") for at in range(300)]
    keywords = llama_index.BM25Retriever.from_nodes(nodes, language="en", k=300)
    with recorded(monkeypatch, convert, "node_of_hit") as threads:
        assert len(await keywords.aretrieve("pump")) == 300
    assert threads
    assert threading.get_ident() not in threads
    store = llama_index_parts.HashEmbedding()
    index = VectorStoreIndex(nodes, embed_model=store)
    with recorded(monkeypatch, llama_index.store_channels, "chunk_of") as threads:
        assert len(await llama_index.HybridRetriever(channels={"one": index}, k=300).aretrieve("pump")) == 300
    assert threads
    assert threading.get_ident() not in threads


class Hanging(BaseRetriever):
    gate: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.gate.wait()
        return []


class HangingStore(InMemoryVectorStore):
    gate: Any = None

    def similarity_search(self, *args: Any, **kwargs: Any) -> list[Document]:
        self.gate.wait()
        return []


@pytest.mark.parametrize("how", ["async", "sync"])
async def test_a_remote_part_that_hangs_does_not_stop_searches_without_it(how: str) -> None:
    gate = threading.Event()
    documents = langchain_parts.documents()
    keywords = langchain.BM25Retriever.from_documents(documents, language="en")
    others = llama_index.BM25Retriever.from_nodes(llama_index_parts.nodes(), language="en")
    hangs = langchain.HybridRetriever(channels={"bm25": keywords, "remote": Hanging(gate=gate)})
    hung: list[Any] = []
    try:
        hung += [asyncio.ensure_future(hangs.ainvoke(f"pump {at}")) for at in range(100)]
        await asyncio.sleep(0)
        for at in range(10):
            if how == "async":
                found = await asyncio.wait_for(keywords.ainvoke(f"seal {at}"), 30)
                nodes = await asyncio.wait_for(others.aretrieve(f"pump {at}"), 30)
            else:
                found = await asyncio.wait_for(asyncio.to_thread(keywords.invoke, f"seal {at}"), 30)
                nodes = await asyncio.wait_for(asyncio.to_thread(others.retrieve, f"pump {at}"), 30)
            assert found
            assert nodes
    finally:
        gate.set()
        await asyncio.gather(*hung)
