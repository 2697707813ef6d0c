"""The LangChain parts: channels of other people's, embeddings, single retrievers, compressors."""

from __future__ import annotations

import copy
import logging
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import TEXTS, AsyncChild, Child, Hashed, Runs, by_length, documents, hybrid, ids
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain as ours
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Query, Ranking, Variant
from voicevault_retrievers.dense import VectorChannel
from voicevault_retrievers.dense.exact import ExactVectors
from voicevault_retrievers.engines import foreign
from voicevault_retrievers.errors import (
    ConfigError,
    FilterNotSupportedError,
    MissingExtraError,
    RetrievalError,
)
from voicevault_retrievers.langchain import (
    BM25Retriever,
    ContextReorder,
    CrossEncoderReranker,
    HybridRetriever,
    LangChainEmbedder,
    MMRFilter,
    NearDuplicateFilter,
    PageDiversityFilter,
    ParentExpander,
    RetrieverChannel,
    VectorRetriever,
    VectorStoreChannel,
    as_channel,
    chunk_of,
)
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.rerank import CallableScorer

# Other people's parts as channels


def test_what_can_be_a_channel() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    assert isinstance(as_channel(store), VectorStoreChannel)
    assert isinstance(as_channel(Child(found=[], seen=[])), RetrieverChannel)
    assert isinstance(as_channel(RunnableLambda(lambda _: documents())), RetrieverChannel)
    channel = BM25.from_chunks([])
    assert as_channel(channel) is channel
    with pytest.raises(ConfigError, match="int"):
        as_channel(3)
    with pytest.raises(ConfigError, match="Document, not str"):
        as_channel(RunnableLambda(lambda _: ["text"])).search("pump")


async def test_a_retriever_as_a_channel_has_ranks_and_no_scores() -> None:
    parent = HybridRetriever(channels={"child": AsyncChild(found=documents(), seen=[])})
    found = parent.invoke("pump", k=2)
    assert ids(found) == ["flush", "seal"] == ids(await parent.ainvoke("pump", k=2))
    assert found[1].metadata["voicevault"]["channels"]["child"] == {
        "rank": 2, "kind": "semantic", "weight": 1.0, "contribution": 1 / 62, "query": "pump",
    }  # fmt: skip


def test_a_retriever_of_this_package_joins_with_its_scores_words_and_filters() -> None:
    inner = BM25Retriever.from_documents(documents(), k=1, where={"page": 0})
    outer = HybridRetriever(channels={"keywords": inner})
    found = outer.invoke("pump seal")
    assert set(ids(found)) == {"flush", "seal"}
    told = found[0].metadata["voicevault"]["channels"]["keywords"]
    assert told["matched_terms"] == ["pump", "seal"]
    assert "parts" not in told
    assert told["score"] == inner.invoke("pump seal")[0].metadata["relevance_score"]
    assert outer.invoke("pump", where={"page": 1}) == []
    with pytest.raises(ConfigError, match="timeout"):
        HybridRetriever(channels={"keywords": BM25Retriever.from_documents(documents(), timeout=3)})


def vector_store(kind: type[InMemoryVectorStore] = InMemoryVectorStore) -> InMemoryVectorStore:
    store = kind(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    return store


class Relevant(InMemoryVectorStore):
    """A store that says what its scores mean: here they are similarities already."""

    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: similarity - 1  # below 0, of which the public method would warn


class Reversed(InMemoryVectorStore):
    def _select_relevance_score_fn(self) -> Any:
        return lambda similarity: -similarity


@pytest.mark.parametrize(("kind", "below"), [(InMemoryVectorStore, 0), (Relevant, 1), (Reversed, 0)])
async def test_a_vector_store_keeps_its_order_and_scores_that_mean_something(
    kind: type[InMemoryVectorStore], below: int
) -> None:
    store = vector_store(kind)
    retriever = VectorRetriever(vectorstore=store, k=3)
    found = retriever.invoke("hot water")
    assert found == await retriever.ainvoke("hot water")
    expected = store.similarity_search_with_score("hot water", k=3)
    assert ids(found) == [document.id for document, _ in expected]
    scores = [document.metadata.get("relevance_score") for document in found]
    assert scores == pytest.approx([score - below for _, score in expected])


@pytest.mark.parametrize("filters", [{"where": {"page": 0}}, {"require": {"page": 0}}])
async def test_what_cannot_filter_is_not_searched(filters: dict[str, Any]) -> None:
    child = AsyncChild(found=documents(), seen=[])
    alone = HybridRetriever(channels={"part": child}, **filters)
    with pytest.raises(FilterNotSupportedError):
        alone.invoke("pump")
    with pytest.raises(FilterNotSupportedError):
        await alone.ainvoke("pump")
    joined = HybridRetriever(channels={"part": child, "bm25": BM25Retriever.from_documents(documents())}, **filters)
    found = joined.invoke("pump")
    assert set(ids(found)) == {"flush", "seal"}
    assert "part: FilterNotSupportedError" in found[0].metadata["voicevault"]["degraded"][0]
    assert child.seen == []


class Deep(AsyncChild):
    """Takes k, and no filter."""

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any, k: int = 4) -> list[Document]:
        return (await super()._aget_relevant_documents(query, run_manager=run_manager))[:k]

    def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 4) -> list[Document]:
        return super()._get_relevant_documents(query, run_manager=run_manager)[:k]


class Unknown(InMemoryVectorStore):
    """A store of whose filters nothing is known."""


async def test_what_takes_k_is_asked_deeper_until_enough_pass() -> None:
    store = vector_store(Unknown)
    parts = [Deep(found=documents(), seen=[]), store, store.as_retriever(), store.as_retriever(search_type="mmr")]
    for channel in map(as_channel, parts):
        every = channel.search("pump", 5)
        for where in ({"page": 2}, {"page": {"$gte": 1}}, {"page": 9}, {"$or": []}):
            query = Query("pump", where=where)
            expected = [hit.id for hit in every if compile_filter(where)(hit.chunk.metadata)]
            assert list(channel.search(query, 2).ids) == expected[:2]
            assert channel.search(query, 2) == await channel.asearch(query, 2)
            assert channel.search(query, 2).errors == ()


async def test_a_search_that_ends_at_its_depth_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_DEPTH", 4)
    child = Deep(found=documents(), seen=[])
    query = Query("pump", where={"page": {"$in": [0, 2]}}, variants=(Variant("seal"),))
    for found in (as_channel(child).search(query, 3), await as_channel(child).asearch(query, 3)):
        assert found.ids == ("flush", "seal")  # of four, and the fifth would pass too
        (note,) = found.errors
        assert (note.kind, note.degrades) == ("FilterDepth", True)
    assert as_channel(child).search(query, 2).errors == ()


def test_what_its_owner_limits_to_k_is_whole_where_no_filter_is_given() -> None:
    """LangChain's usual `as_retriever(search_kwargs={"k": 4})` wants no more than that."""
    store = vector_store(InMemoryVectorStore)
    limited = store.as_retriever(search_kwargs={"k": 2})
    fused = ours.HybridRetriever(channels={"words": ours.BM25Retriever.from_documents(documents()), "store": limited})
    assert fused.search("pump").skipped == ()
    assert (limited >> ours.PageDiversityFilter()).search("pump").skipped == ()
    assert as_channel(limited).search("pump", 5).errors == ()
    (note,) = as_channel(limited).search(Query("pump", where={"page": {"$gte": 1}}), 5).errors
    assert note.kind == "FilterDepth"


async def test_where_looking_deeper_fails_what_was_found_stands() -> None:
    class Limited(Unknown):
        def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
            if k > 4:
                raise RuntimeError("at most 4")
            return super().similarity_search(query, k, **options)

        async def asimilarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
            return self.similarity_search(query, k, **options)

    channel = as_channel(vector_store(Limited))
    expected = [hit.id for hit in channel.search("pump", 4) if hit.chunk.metadata["page"] < 2]
    query = Query("pump", where={"page": {"$lt": 2}})
    assert len(expected) < 4
    for found in (channel.search(query, 4), await channel.asearch(query, 4)):
        assert list(found.ids) == expected
        assert list(map(str, found.errors)) == ["vectorstore: RuntimeError"]
    with pytest.raises(RuntimeError):
        channel.search(query, 5)


def test_where_nothing_can_pass_nothing_is_asked() -> None:
    child = AsyncChild(found=documents(), seen=[])
    assert as_channel(child).search(Query("pump", where={"page": 0}, require={}), 3) == Ranking()
    assert child.seen == []


async def test_a_retrievers_own_filter_stays_in_force() -> None:
    own = vector_store().as_retriever(search_kwargs={"filter": lambda document: document.metadata["page"] < 2})
    channel = as_channel(own)
    query = Query("pump", where={"page": {"$gte": 1}})
    assert set(channel.search(query, 5).ids) == {"hose", "lamp"}
    assert channel.search(query, 1) == await channel.asearch(query, 1)


async def test_an_id_may_be_in_the_metadata() -> None:
    given = [Document(text, metadata={"key": key, "n": n}) for n, (key, text) in enumerate(TEXTS.items())]
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(given)  # under ids of its own
    child = AsyncChild(found=given, seen=[])
    own = BM25Retriever.from_documents(given)
    keyed = as_channel(own, id_key="key").named("of a name")
    assert sorted(keyed.search("pump", 5).ids) == sorted(key for key, text in TEXTS.items() if "pump" in text)
    assert await keyed.asearch("pump", 5) == keyed.search("pump", 5)
    for part in (store, store.as_retriever(), child):
        channel = as_channel(part, id_key="key")
        assert set(channel.search("pump", 5).ids) == set(TEXTS)
        assert channel.search("pump", 5) == await channel.asearch("pump", 5)
    assert as_channel(child, id_key="n").search("pump", 5).ids[0] == "0"
    for part in (child, own):
        with pytest.raises(ConfigError, match=r"keys \['key', 'n'\] has no id in metadata\['missing'\]"):
            as_channel(part, id_key="missing").search("pump", 5)
    twice = [Document(text, metadata={"key": "same"}) for text in TEXTS.values()]
    assert as_channel(BM25Retriever.from_documents(twice), id_key="key").search("pump", 5).ids == ("same",)
    assert all(document.id is None for document in given)


def test_a_vector_stores_retriever_is_asked_for_as_many_as_are_wanted() -> None:
    for options, found in (({}, 4), ({"search_kwargs": {"k": 1}}, 1)):
        child = vector_store().as_retriever(**options)
        assert len(HybridRetriever(channels={"child": child}).invoke("pump", k=4)) == found


# Embeddings


def test_langchains_embeddings_become_rows_of_length_one() -> None:
    embedder = LangChainEmbedder(DeterministicFakeEmbedding(size=8))
    rows = embedder.embed_documents(["a", "b"])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)
    assert embedder.dimension == 8


def test_the_dimension_is_found_by_the_first_call_and_held() -> None:
    class Growing(DeterministicFakeEmbedding):
        model: str = "grow-1"

        def embed_query(self, text: str) -> list[float]:
            return [1.0] * (self.size + 1)

    embedder = LangChainEmbedder(Growing(size=8))
    embedder.embed_documents(["a"])
    assert embedder.fingerprint == "langchain/Growing/grow-1"
    with pytest.raises(RetrievalError, match="expected dimension 8"):
        embedder.embed_queries(["a"])


def test_a_vector_retriever_over_an_index_and_over_documents_agree() -> None:
    embeddings = DeterministicFakeEmbedding(size=8)
    index = ExactVectors.build([chunk_of(document) for document in documents()], LangChainEmbedder(embeddings))
    by_index = VectorRetriever(index=index, embeddings=embeddings)
    assert by_index.invoke(TEXTS["lamp"]) == VectorRetriever.from_documents(documents(), embeddings).invoke(
        TEXTS["lamp"]
    )
    first = by_index.invoke(TEXTS["lamp"])[0]
    assert first.id == "lamp"
    assert first.metadata["relevance_score"] == pytest.approx(1.0)
    params = by_index._get_ls_params()
    assert params["ls_embedding_provider"] == "DeterministicFakeEmbedding"


# BM25


def test_texts_have_metadata_and_ids() -> None:
    retriever = BM25Retriever.from_texts(["red lamp", "green lamp"], [{"n": 1}, {"n": 2}], ["r", "g"])
    assert ids(retriever.invoke("red lamps")) == ["r", "g"]
    assert ids(retriever.invoke("lamp", where={"n": 2})) == ["g"]
    with pytest.raises(ConfigError, match="number"):
        BM25Retriever.from_texts(["red lamp", "green lamp"], [{}])


# Compressors


def reranker(**options: Any) -> CrossEncoderReranker:
    return CrossEncoderReranker(scorer=CallableScorer(by_length, name="length"), **{"blend": 1.0, **options})


def test_a_reranker_orders_by_its_scores() -> None:
    given = hybrid().invoke("pump seal")
    found = reranker().compress_documents(given, "pump seal")
    assert sorted(ids(found), key=str) == sorted(ids(given), key=str)
    assert ids(found) == sorted(ids(found), key=lambda key: -len(TEXTS[key or ""]))
    assert [d.metadata["relevance_score"] for d in found] == [float(len(d.page_content)) for d in found]
    assert {"rerank"} == found[0].metadata["voicevault"].keys() - given[0].metadata["voicevault"].keys()
    assert reranker(top_n=2).compress_documents(given, "pump seal") == found[:2]


def test_a_reranker_loses_no_document_of_a_repeated_id_and_keeps_ties_as_they_came() -> None:
    given = [Document("bb", id="x"), Document("aa", id="x"), Document("aa"), Document("aa"), Document("ccc", id="")]
    found = reranker().compress_documents(given, "q")
    assert [document.page_content for document in found] == ["ccc", "bb", "aa", "aa", "aa"]
    assert ids(found) == ["", "x", "x", None, None]
    assert reranker().compress_documents([], "q") == []
    ties = [Document(f"{at:02d}") for at in range(12)]
    assert [document.page_content for document in reranker().compress_documents(ties, "q")] == [
        document.page_content for document in ties
    ]


async def test_a_page_filter_keeps_order_scores_and_what_has_no_page() -> None:
    given = [*documents(), Document("no page", id="free")]
    before = copy.deepcopy(given)
    found = PageDiversityFilter(max_chunks_per_page=1).compress_documents(given, "pump")
    assert found == [given[0], given[2], given[4], given[5]]
    assert found[0] is not given[0]
    assert given == before
    assert await PageDiversityFilter(max_chunks_per_page=1).acompress_documents(given, "pump") == found
    assert ids(PageDiversityFilter(max_chunks_per_document=3).compress_documents(given, "pump")) == [
        "flush", "seal", "hose", "free",
    ]  # fmt: skip


async def test_filters_compare_documents_with_each_other() -> None:
    texts = ["press the red button to stop the pump at once", "press the red button to stop the pump now", "an invoice"]
    given = [Document(text, id=f"d{at}", metadata={"n": at}) for at, text in enumerate(texts)]
    before = copy.deepcopy(given)
    for by in ("shingles", Hashed(), VectorChannel.from_chunks(map(chunk_of, given), HashEmbedder())):
        ordered = MMRFilter(lambda_mult=0.5, by=by).compress_documents(given, "pump")
        assert [document.id for document in ordered] == ["d0", "d2", "d1"]
        assert ordered[0].metadata["relevance_score"] == 0.5
        assert ordered[0].metadata["voicevault"]["mmr"] == {"rank": 1, "score": 0.5}
        unlike = NearDuplicateFilter(threshold=0.5, by=by)
        assert ids(unlike.compress_documents(given, "pump")) == ["d0", "d2"]
        assert await unlike.acompress_documents(given, "pump") == unlike.compress_documents(given, "pump")
    assert ids(MMRFilter(lambda_mult=0.5, top_n=2).compress_documents(given, "pump")) == ["d0", "d2"]
    assert given == before
    for wrong in ({"lambda_mult": 2.0}, {"by": "words"}, {"depth": 0}, {"lambda": 1.0}):
        with pytest.raises(ConfigError):
            MMRFilter(**wrong)


@pytest.mark.parametrize("options", [{"top_n": 0}, {"max_chars": 0}, {"timeout": -1}, {"topn": 1}])
def test_a_rerankers_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        reranker(**options)


async def test_compressors_show_in_traces() -> None:
    for compressor in (reranker(), PageDiversityFilter(), ContextReorder(), ParentExpander(store={})):
        runs = Runs()
        compressor.compress_documents(documents(), "pump", callbacks=[runs])
        assert set(runs.started) == {type(compressor).__name__}
        runs = Runs()
        await compressor.acompress_documents(documents(), "pump", callbacks=[runs])
        assert set(runs.started) == {type(compressor).__name__}


# The package


def test_all_names_are_there_and_sorted() -> None:
    assert ours.__all__ == sorted(ours.__all__)
    assert all(hasattr(ours, name) for name in ours.__all__)
    assert issubclass(RetrieverChannel, Channel)


def test_without_langchain_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in list(sys.modules) if name.startswith("voicevault_retrievers.langchain")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in list(sys.modules) if name.startswith("langchain_core")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"voicevault-retrievers\[langchain\]"):
        import_module("voicevault_retrievers.langchain")


async def test_what_the_default_fusion_falls_back_to_is_told_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    channels = {name: Child(found=documents(), seen=[]) for name in ("one", "other")}
    retriever = ours.HybridRetriever(channels=channels)
    told = retriever.search("pump")
    assert [failure.kind for failure in told.errors] == ["AdaptiveSum"]
    assert not told.degraded
    assert [document.id for document in retriever.invoke("pump")] == list(TEXTS)
    assert retriever.invoke("pump") == await retriever.ainvoke("pump")
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert "have no score" in caplog.text
