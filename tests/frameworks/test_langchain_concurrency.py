"""Many searches at once on one event loop, none of which may block it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import AsyncChild, Child, documents, ids
from tests.frameworks.loops import SLOW, Meeting, given_up, printed, slowly
from tests.helpers import HashEmbedder
from voicevault_retrievers.langchain import (
    BM25Index,
    BM25Retriever,
    HybridIndex,
    HybridRetriever,
    PageDiversityFilter,
    VectorRetriever,
    chunk_of,
)
from voicevault_retrievers.store import KnowledgeBase

QUERIES = [f"{word} {at}" for at in range(10) for word in ("pump", "seal", "hose", "lamp", "door")]


def three_channels(**options: Any) -> HybridRetriever:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    return HybridRetriever(
        channels={
            "bm25": BM25Retriever.from_documents(documents()),
            "dense": VectorRetriever.from_documents(documents(), HashEmbedder()),
            "store": store,
        },
        rerank=SLOW,
        stages=[PageDiversityFilter()],
        **options,
    )


async def test_the_watch_sees_a_blocking_call(watched: Any) -> None:
    with pytest.raises(watched.BlockingError):
        slowly("pump", [])


async def test_fifty_searches_at_once_do_not_block_the_loop(watched: Any) -> None:
    retriever = three_channels()
    found = await asyncio.gather(*(retriever.ainvoke(query) for query in QUERIES))
    expected = await asyncio.to_thread(retriever.batch, QUERIES)
    assert found == expected
    assert all("degraded" not in document.metadata["voicevault"] for each in found for document in each)


async def test_a_knowledge_base_is_opened_and_searched_without_blocking(watched: Any, tmp_path: Path) -> None:
    def made() -> None:
        with KnowledgeBase.create("manual", root=tmp_path, embedder=HashEmbedder()) as base:
            base.add([chunk_of(document) for document in documents()])

    await asyncio.to_thread(made)
    retriever = HybridRetriever(kb_names=[tmp_path / "manual"], embeddings=HashEmbedder())
    found = await asyncio.gather(*(retriever.ainvoke(query, rerank=False) for query in QUERIES))
    assert ids(found[0])[:1] == ids(await retriever.ainvoke(QUERIES[0], k=1))


async def test_indexes_are_changed_and_searched_without_blocking(watched: Any, tmp_path: Path) -> None:
    hybrid = await asyncio.to_thread(HybridIndex.open, tmp_path / "base", embeddings=HashEmbedder())
    for index in (BM25Index(), hybrid):

        async def change(at: int, index: Any = index) -> None:
            await index.aupsert([Document(f"pump number{at}", id=str(at))])
            assert ids(await index.ainvoke(f"number{at}", k=1)) == [str(at)]
            assert len(await index.aget([str(at)])) == 1
            if at % 2:
                await index.adelete([str(at)])

        await asyncio.gather(*(change(at) for at in range(20)))
        assert sorted(ids(await index.ainvoke("pump", k=50))) == sorted(str(at) for at in range(0, 20, 2))
    await asyncio.to_thread(hybrid.close)


async def test_children_that_wait_are_waited_for_together() -> None:
    """All channels of all searches are inside their children at once."""
    meeting = Meeting(3 * 50)

    class Joining(AsyncChild):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            await meeting.join()
            return self.found

    channels = {name: Joining(found=documents(), seen=[]) for name in ("one", "two", "three")}
    retriever = HybridRetriever(channels=channels, rerank=SLOW)
    found = await asyncio.gather(*(retriever.ainvoke("pump") for _ in range(50)))
    assert [len(each) for each in found] == [5] * 50


async def test_searches_that_were_given_up_do_not_keep_others_from_their_places() -> None:
    gate = threading.Event()

    class Hung(Child):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            gate.wait(60)
            return self.found

    hung = HybridRetriever(channels={"hung": Hung(found=documents(), seen=[])})
    assert await given_up(lambda: hung.ainvoke("pump"), gate, BM25Retriever.from_documents(documents()).ainvoke("pump"))


@pytest.mark.program
def test_a_function_that_hangs_does_not_keep_a_program_from_its_end() -> None:
    program = """
import asyncio, threading
from langchain_core.documents import Document
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, as_channel

def hang(query):
    threading.Event().wait(300)

hung = as_channel(hang, timeout=0.1)
retriever = HybridRetriever(channels={"bm25": BM25Retriever.from_texts(["pump"]), "hung": hung})
print(len(asyncio.run(retriever.ainvoke("pump"))))
"""
    assert printed(program) == "1\n"
