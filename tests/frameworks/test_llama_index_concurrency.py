"""Many searches at once on one event loop, none of which may block it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import VectorStoreQuery

from tests.frameworks.llama_index_parts import HashEmbedding, ListRetriever, embedded, nodes, scored
from tests.frameworks.loops import SLOW, Meeting, given_up, printed
from voicevault_retrievers.llama_index import (
    BM25Retriever,
    CrossEncoderRerank,
    HybridRetriever,
    HybridVectorStore,
    VectorRetriever,
    provenance,
)
from voicevault_retrievers.pipeline.options import Rerank

QUERIES = [f"{word} {at}" for at in range(10) for word in ("pump", "valve", "filter", "alarm", "winter")]


class Awaiting(ListRetriever):
    """Waits before it answers, as one behind a server does."""

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        await asyncio.sleep(0.001)
        return self._retrieve(query_bundle)


def searched() -> HybridRetriever:
    """Three channels, and a child that awaits."""
    return HybridRetriever(
        channels={
            "bm25": BM25Retriever.from_nodes(nodes(), language="en"),
            "dense": VectorRetriever.from_nodes(nodes(), HashEmbedding()),
            "index": VectorStoreIndex(nodes=nodes(), embed_model=HashEmbedding()),
            "child": Awaiting(scored(("valve", 0.9), ("alarm", 0.5))),
        },
        rerank=Rerank(SLOW, max_chunks_per_page=1),
    )


def told(found: Sequence[NodeWithScore]) -> list[Any]:
    return [(node.node.to_dict(), node.score, provenance(node)) for node in found]


async def test_fifty_searches_at_once_do_not_block_the_loop(watched: Any) -> None:
    retriever = await asyncio.to_thread(searched)
    found = await asyncio.gather(*(retriever.aretrieve(query) for query in QUERIES))
    expected = await asyncio.to_thread(lambda: [retriever.retrieve(query) for query in QUERIES])
    assert [told(each) for each in found] == [told(each) for each in expected]
    assert all("degraded" not in (provenance(node) or {}) for each in found for node in each)
    assert len({tuple(node.node_id for node in each) for each in found}) > 1


async def test_fifty_rerankings_at_once_do_not_block_the_loop(watched: Any) -> None:
    rerank, given = CrossEncoderRerank(SLOW, on_error="raise"), scored(("valve", 0.9), ("pump", 0.5))
    found = await asyncio.gather(*(rerank.apostprocess_nodes(given, query_str=query) for query in QUERIES))
    expected = await asyncio.to_thread(rerank.postprocess_nodes, given, query_str="pump")
    assert [told(each) for each in found] == [told(expected)] * 50


async def test_a_knowledge_base_is_opened_and_searched_without_blocking(watched: Any, tmp_path: Path) -> None:
    def made() -> None:
        store = HybridVectorStore.open("manual", root=tmp_path, embed_model=HashEmbedding(), language="en")
        store.add(embedded(nodes()))
        store.close()

    await asyncio.to_thread(made)
    retriever = HybridRetriever(kb_names=[tmp_path / "manual"], embed_model=HashEmbedding())
    found = await asyncio.gather(*(retriever.aretrieve(query) for query in QUERIES))
    again = HybridRetriever(kb_names=[tmp_path / "manual"], embed_model=HashEmbedding())
    expected = await asyncio.to_thread(lambda: [again.retrieve(query) for query in QUERIES])
    assert all(found)
    assert [told(each) for each in found] == [told(each) for each in expected]


async def test_a_vector_store_is_changed_and_searched_without_blocking(watched: Any, tmp_path: Path) -> None:
    store = await asyncio.to_thread(HybridVectorStore.open, tmp_path / "kb", embed_model=HashEmbedding(), language="en")
    index = await asyncio.to_thread(VectorStoreIndex.from_vector_store, store, HashEmbedding())
    retriever = index.as_retriever(vector_store_query_mode="hybrid")

    async def change(at: int) -> None:
        await store.async_add(embedded([TextNode(id_=str(at), text=f"pump number{at}")]))
        asked = VectorStoreQuery(query_str=f"number{at}", similarity_top_k=1, mode="sparse")  # type: ignore[arg-type]
        assert (await store.aquery(asked)).ids == [str(at)]
        assert len(await store.aget_nodes([str(at)])) == 1
        assert await retriever.aretrieve(f"pump number{at}")
        if at % 2:
            await store.adelete_nodes([str(at)])

    await asyncio.gather(*(change(at) for at in range(20)))
    kept = await store.aget_nodes()
    assert {node.node_id for node in kept} == {str(at) for at in range(0, 20, 2)}
    await asyncio.to_thread(store.close)


async def test_keywords_are_changed_and_searched_without_blocking(watched: Any, tmp_path: Path) -> None:
    bm25 = BM25Retriever.from_nodes([], language="en", k=50)

    async def change(at: int) -> None:
        await bm25.aadd([TextNode(id_=str(at), text=f"pump number{at}")])
        assert (await bm25.aretrieve(f"number{at}"))[0].node_id == str(at)
        if at % 2:
            await bm25.adelete([str(at)])

    await asyncio.gather(*(change(at) for at in range(20)))
    assert {node.node_id for node in await bm25.aretrieve("pump")} == {str(at) for at in range(0, 20, 2)}
    await bm25.apersist(tmp_path / "kept")
    again = await asyncio.to_thread(BM25Retriever.from_persist_dir, tmp_path / "kept", k=50)
    assert told(await again.aretrieve("pump")) == told(await bm25.aretrieve("pump"))


async def test_children_that_wait_are_waited_for_together() -> None:
    """All channels of all searches are inside their children at once."""
    meeting = Meeting(3 * 50)

    class Joining(ListRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            raise AssertionError("the sync search was called")

        async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            await meeting.join()
            return self.found

    channels = {name: Joining(scored(("valve", 0.9))) for name in ("one", "two", "three")}
    retriever = HybridRetriever(channels=channels, rerank=SLOW)
    found = await asyncio.gather(*(retriever.aretrieve("pump") for _ in range(50)))
    assert [len(each) for each in found] == [1] * 50


async def test_searches_that_were_given_up_do_not_keep_others_from_their_places() -> None:
    gate = threading.Event()

    class Hung(ListRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            gate.wait(60)
            return self.found

    hung = HybridRetriever(channels={"hung": Hung([])})
    assert await given_up(lambda: hung.aretrieve("pump"), gate, BM25Retriever.from_nodes(nodes()).aretrieve("pump"))


@pytest.mark.program
def test_a_child_that_hangs_does_not_keep_a_program_from_its_end() -> None:
    program = """
import asyncio, threading
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import TextNode
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, as_channel

class Hung(BaseRetriever):
    def _retrieve(self, query_bundle):
        threading.Event().wait(300)

bm25 = BM25Retriever.from_nodes([TextNode(text="pump")])
retriever = HybridRetriever(channels={"bm25": bm25, "hung": as_channel(Hung(), timeout=0.1)})
print(len(asyncio.run(retriever.aretrieve("pump"))))
"""
    assert printed(program) == "1\n"
