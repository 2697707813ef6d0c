"""LlamaIndex: vector stores, their indexes and retrievers as channels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.schema import BaseNode, IndexNode, TextNode
from llama_index.core.vector_stores import (
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from tests.frameworks.llama_index_parts import TEXTS, HashEmbedding, ids, nodes, recorded
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.engines import foreign
from voicevault_retrievers.errors import ConfigError, FilterNotSupportedError
from voicevault_retrievers.llama_index import HybridRetriever, HybridVectorStore, LlamaIndexEmbedder, as_channel
from voicevault_retrievers.llama_index.channels import RetrieverChannel
from voicevault_retrievers.llama_index.store_channels import VectorStoreChannel

QUESTION = "drain the pump before winter"


class Counting(HashEmbedding):
    """Keeps the questions that it was asked, and in which thread."""

    asked: list[tuple[str, bool]] = []  # noqa: RUF012 - pydantic copies it

    def _get_query_embedding(self, query: str) -> list[float]:
        self.asked.append((query, threading.current_thread() is threading.main_thread()))
        return super()._get_query_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Waiting(Counting):
    """One whose async embedding waits for something."""

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._answer(query)

    async def _answer(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Served(SimpleVectorStore):
    """One with an async query of its own, which holds its nodes; it keeps what it was asked."""

    stores_text: bool = True
    held: dict[str, BaseNode] = {}  # noqa: RUF012 - pydantic copies it
    seen: list[VectorStoreQuery] = []  # noqa: RUF012

    def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:
        self.held.update({node.node_id: node for node in nodes})
        return super().add(nodes, **options)

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        self.seen.append(query)
        found = super().query(query, **options)
        held = [self.held[name] for name in found.ids or ()]
        return VectorStoreQueryResult(nodes=held, similarities=found.similarities, ids=found.ids)

    async def aquery(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        return self.query(query, **options)


def indexed(
    store: BasePydanticVectorStore | None = None,
    given: Sequence[BaseNode] | None = None,
    model: Any = None,
    **options: Any,
) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store or SimpleVectorStore())
    return VectorStoreIndex(
        nodes() if given is None else given, storage_context=context, embed_model=model or HashEmbedding(), **options
    )


def test_what_is_searched_by_its_store() -> None:
    index = indexed()
    assert isinstance(as_channel(index), VectorStoreChannel)
    assert repr(as_channel(index)) == "VectorStoreChannel(SimpleVectorStore)"
    assert isinstance(as_channel(Served(), embed_model=HashEmbedding()), VectorStoreChannel)
    assert isinstance(as_channel(index.as_retriever()), RetrieverChannel)
    assert as_channel(index, kind="question").kind == "question"
    with pytest.raises(ConfigError, match="SimpleVectorStore holds no texts: give its index"):
        as_channel(SimpleVectorStore(), embed_model=HashEmbedding())
    with pytest.raises(ConfigError, match=r"say by whose with as_channel\(store, embed_model=\.\.\.\)"):
        as_channel(Served())


async def test_an_index_with_objects_enters_them() -> None:
    target = TextNode(id_="target", text="the whole manual")
    pointing = IndexNode(id_="pointing", text=QUESTION, index_id="manual", obj=target)
    index = indexed(given=nodes(), objects=[pointing])
    channel = as_channel(index)
    assert isinstance(channel, RetrieverChannel)
    for found in (channel.search(QUESTION, 2), await channel.asearch(QUESTION, 2)):
        assert found.ids[0] == "target"
    with pytest.raises(FilterNotSupportedError):
        channel.search(Query(QUESTION, where={"key": 1}), 2)


async def test_where_questions_are_embedded() -> None:
    """A model whose async call never waits would compute on the event loop."""
    for model, here in ((Counting(), False), (Waiting(), True)):
        channel = VectorStoreChannel(indexed(Served(), model=model))
        assert (await channel.asearch(QUESTION, 1)).ids == ("valve",)
        assert model.asked == [(QUESTION, here)]
    model = Waiting()
    assert (await VectorStoreChannel(indexed(model=model)).asearch(QUESTION, 1)).ids == ("valve",)
    assert model.asked == [(QUESTION, True)]  # whatever the store is


async def test_a_question_is_embedded_once_however_deep_it_goes() -> None:
    model = Counting()
    store = type("Unknown", (Served,), {})()
    channel = VectorStoreChannel(indexed(store, model=model))
    query = Query(
        QUESTION, where={"key": 3}, variants=(Variant("the pump"), Variant("a word", channels=frozenset({"bm25"})))
    )
    for is_async in (False, True):
        found = await channel.asearch(query, 1) if is_async else channel.search(query, 1)
        assert found.ids == ("alarm",)
        assert sorted(text for text, _ in model.asked) == [QUESTION, "the pump"]
        assert len(store.seen) == 6  # one, two and four of each
        model.asked.clear()
        store.seen.clear()


async def test_a_query_brings_its_vector() -> None:
    model = Counting()
    channel = VectorStoreChannel(indexed(Served(), model=model))
    vector = HashEmbedding()._embed(TEXTS["alarm"])
    for vectors in ({"": vector}, {LlamaIndexEmbedder(model).fingerprint: vector}):
        for text in (QUESTION, ""):
            query = Query(text, vectors={key: np.array(value) for key, value in vectors.items()})
            channel.embedder.dimension  # noqa: B018 - a bare vector is compared with it
            model.asked.clear()
            assert channel.search(query, 1).ids == ("alarm",) == (await channel.asearch(query, 1)).ids
            assert model.asked == []
    other = Query(QUESTION, vectors={"": np.ones(3), "another": np.ones(16)})
    assert channel.search(other, 1).ids == ("valve",) == (await channel.asearch(other, 1)).ids
    assert channel.search(Query(" ", vectors={"another": np.ones(16)}), 1).ids == ()


@pytest.mark.parametrize("store", [Served, SimpleVectorStore])
async def test_a_retriever_is_asked_with_a_vector_that_fits(store: type[SimpleVectorStore]) -> None:
    model = Counting()
    channel = as_channel(VectorIndexRetriever(indexed(store(), model=model), similarity_top_k=1))
    fitting = HashEmbedding()._embed(TEXTS["alarm"])
    for vector, best, again in ((fitting, "alarm", []), ([1.0] * 3, "valve", [QUESTION])):
        query = Query(QUESTION, vectors={"": np.array(vector)})
        for is_async in (False, True):
            model.asked.clear()
            found = await channel.asearch(query, 1) if is_async else channel.search(query, 1)
            assert (found.ids, found.errors) == ((best,), ())
            assert [text for text, _ in model.asked if text != "dimension"] == again
    assert channel.search(Query(" ", vectors={"": np.ones(3)}), 1).ids == ()


async def test_a_text_store_is_asked_with_the_text() -> None:
    class Managed(Served):
        is_embedding_query: bool = False

        def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
            assert query.query_embedding is None
            word = (query.query_str or "").split()[0]
            held = [node for node in self.held.values() if word in node.get_content()]
            return VectorStoreQueryResult(nodes=held[: query.similarity_top_k])

    model = Counting()
    channel = VectorStoreChannel(indexed(Managed(), model=model))
    for found in (channel.search("water level", 9), await channel.asearch("water level", 9)):
        assert [(hit.id, hit.score) for hit in found] == [("filter", None), ("alarm", None)]
    assert channel.search(" ", 9).hits == ()
    assert model.asked == []


def test_what_the_docstore_has_no_more_is_left_out() -> None:
    index = indexed()
    index.docstore.delete_document("valve")
    assert as_channel(index).search(QUESTION, 9).ids[0] == "pump"
    assert len(as_channel(index).search(QUESTION, 3)) == 3
    index.index_struct.nodes_dict.pop("pump")
    assert len(as_channel(index).search(QUESTION, 3)) == 3


def test_ids_of_a_store_are_looked_up_in_the_index() -> None:
    class Numbering(SimpleVectorStore):
        """Gives its vectors numbers, as Faiss does."""

        def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:
            copied = [node.model_copy(update={"id_": str(at)}) for at, node in enumerate(nodes)]
            return super().add(copied, **options)

    found = as_channel(indexed(Numbering())).search(Query(QUESTION, where={"key": {"$lt": 3}}), 9)
    assert found.ids == as_channel(indexed()).search(Query(QUESTION, where={"key": {"$lt": 3}}), 9).ids


# Filters


async def test_a_retriever_is_filtered_by_its_store_where_it_asks_for_no_more() -> None:
    index = indexed()
    query = Query(QUESTION, where={"key": {"$gte": 1}})
    channel = as_channel(index.as_retriever(similarity_top_k=2)).named("dense")
    expected = [name for name in VectorStoreChannel(index).search(QUESTION, 9).ids if name != "pump"][:2]
    for found in (channel.search(query, 9), await channel.asearch(query, 9)):
        assert list(found.ids) == expected
        assert found.hits[0].votes[0].stage == "dense"
    assert channel.search(query, 1).ids == tuple(expected[:1])
    some = as_channel(VectorIndexRetriever(index, similarity_top_k=9, node_ids=["pump", "alarm"]))
    assert some.search(query, 9).ids == ("alarm",)


@pytest.mark.parametrize(
    "options",
    [
        {"vector_store_query_mode": "mmr"},
        {"filters": MetadataFilters(filters=[MetadataFilter(key="key", value=1)])},
        {"doc_ids": ["manual"]},
        {"vector_store_kwargs": {"mmr_threshold": 0.5}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_any_other_retriever_fails_closed(options: dict[str, Any]) -> None:
    channel = as_channel(indexed().as_retriever(**options))
    for narrowed in ({"where": {"key": 1}}, {"require": {"key": 1}}):
        with pytest.raises(FilterNotSupportedError, match="give its index or vector store in its place"):
            channel.search(Query(QUESTION, **narrowed), 2)


async def test_what_rights_forbid_is_not_shown() -> None:
    index = indexed()
    with recorded(RetrievalEndEvent) as events:
        for part in (index, index.as_retriever()):
            retriever = HybridRetriever(channels={"dense": part}, require={"key": {"$gte": 2}})
            assert set(ids(retriever.retrieve(QUESTION))) <= {"filter", "alarm"}
            assert set(ids(await retriever.aretrieve(QUESTION))) <= {"filter", "alarm"}
    assert {name for event in events for name in ids(event.nodes)} <= {"filter", "alarm"}
    assert as_channel(index).search(Query(QUESTION, require={}), 9).hits == ()


async def test_a_search_that_ends_at_its_depth_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_DEPTH", 2)
    channel = VectorStoreChannel(indexed(type("Unknown", (Served,), {})()))
    query = Query(QUESTION, where={"key": {"$gte": 2}})
    for found in (channel.search(query, 2), await channel.asearch(query, 2)):
        (note,) = found.errors
        assert (len(found), note.kind, note.degrades) == (0, "FilterDepth", True)
    assert channel.search(Query(QUESTION), 2).errors == ()


async def test_where_looking_deeper_fails_what_was_found_stands() -> None:
    class Limited(Served):
        def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
            if query.similarity_top_k > 2:
                raise RuntimeError("at most 2")
            return super().query(query, **options)

    channel = VectorStoreChannel(indexed(Limited()))
    nearest = channel.search(QUESTION, 2).ids
    query = Query(QUESTION, where={"key": {"$ne": nodes()[list(TEXTS).index(nearest[0])].metadata["key"]}})
    for found in (channel.search(query, 2), await channel.asearch(query, 2)):
        assert found.ids == nearest[1:]
        assert [(note.kind, str(note.error)) for note in found.errors] == [("RuntimeError", "at most 2")]
    with pytest.raises(RuntimeError, match="at most 2"):
        channel.search(query, 3)


def test_our_own_store_is_given_the_whole_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HybridVectorStore.open(tmp_path / "kb", embed_model=HashEmbedding())
    index = indexed(store)
    asked: list[VectorStoreQuery] = []
    query = HybridVectorStore.query

    def recorded(own: HybridVectorStore, given: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        asked.append(given)
        return query(own, given, **options)

    monkeypatch.setattr(HybridVectorStore, "query", recorded)
    found = as_channel(index).search(
        Query(QUESTION, where={"tags": {"$in": ["alarm"]}}, require={"key": {"$gt": 1}}), 1
    )
    assert found.ids == ("alarm",)
    assert len(asked) == 1


def test_a_model_of_another_size_is_no_match() -> None:
    index = indexed(model=MockEmbedding(embed_dim=4))
    assert len(as_channel(index).search(Query("", vectors={"": np.ones(4)}), 9)) == 4
    assert as_channel(index).search(Query("", vectors={"": np.ones(3)}), 9).hits == ()
