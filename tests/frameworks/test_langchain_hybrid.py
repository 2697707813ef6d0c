"""HybridRetriever: what a call and a configuration may say, stages behind it, and how it is kept."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.load import dumpd, dumps, loads
from langchain_core.runnables import ConfigurableField, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import AsyncChild, Child, by_length, documents, hybrid, ids
from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers.answers import ContextBuilder as Builder
from voicevault_retrievers.dense.exact import ExactVectors
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.langchain import (
    BM25Retriever,
    ContextReorder,
    CrossEncoderReranker,
    HybridRetriever,
    LLMReranker,
    PageDiversityFilter,
    ParentExpander,
    QueryExpander,
    StagedRetriever,
    VectorRetriever,
    chunk_of,
)
from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.rerank import CallableScorer
from voicevault_retrievers.store import KnowledgeBase

SHORT_FIRST = CallableScorer(lambda query, passages: [-float(len(p)) for p in passages], name="short first")
LONG_FIRST = CallableScorer(by_length, name="long first")


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    with KnowledgeBase.create("manual", root=tmp_path, embedder=HashEmbedder()) as base:
        base.add([chunk_of(document) for document in documents()])
    return tmp_path


def lengths(found: Sequence[Document]) -> list[int]:
    return [len(document.page_content) for document in found]


def reciprocal(document: Document, k: int) -> float:
    """The fused score of a document by Reciprocal Rank Fusion with this constant."""
    return sum(1 / (k + told["rank"]) for told in document.metadata["voicevault"]["channels"].values())


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the knowledge bases that are opened from now on, each time."""
    opened: list[str] = []
    open_ = KnowledgeBase.open

    def counting(base: Any, **options: Any) -> KnowledgeBase:
        opened.append(Path(base).name)
        return open_(base, **options)

    monkeypatch.setattr(KnowledgeBase, "open", counting)
    return opened


# What a call can say


async def test_a_call_says_how_it_is_fused_and_reranked() -> None:
    by_short = CrossEncoderReranker(scorer=SHORT_FIRST, blend=1)
    retriever = hybrid(rerank=CrossEncoderReranker(scorer=LONG_FIRST, blend=1))
    long, short = retriever.invoke("pump"), retriever.invoke("pump", rerank=by_short)
    assert lengths(long) == sorted(lengths(long), reverse=True)
    assert lengths(short) == sorted(lengths(long))
    assert short == await retriever.ainvoke("pump", rerank=by_short)
    bare = retriever.invoke("pump", rerank=False, fusion=RRF(k=1))
    assert "rerank" not in bare[0].metadata["voicevault"]
    assert bare[0].metadata["relevance_score"] == reciprocal(bare[0], 1)
    assert bare == await retriever.ainvoke("pump", rerank=False, fusion=RRF(k=1))
    named = retriever.invoke("pump", rerank=False, fusion="rrf")[0]
    assert named.metadata["relevance_score"] == reciprocal(named, 60)
    assert retriever.invoke("pump") == long
    assert retriever.search("pump", rerank=by_short).hits[0].chunk.id == short[0].id
    assert (await retriever.asearch("pump", rerank=by_short)).hits[0].chunk.id == short[0].id


@pytest.mark.parametrize(("option", "value"), [("fusion", "rff"), ("fusion", 60), ("rerank", 3), ("kk", 3)])
async def test_what_a_call_says_wrongly_is_refused(option: str, value: Any) -> None:
    with pytest.raises((ConfigError, TypeError), match=r"rrf|fusion|stage|kk"):
        hybrid().invoke("pump", **{option: value})
    with pytest.raises((ConfigError, TypeError), match=r"rrf|fusion|stage|kk"):
        await hybrid().ainvoke("pump", **{option: value})


async def test_batches_are_what_single_calls_are() -> None:
    retriever, queries = hybrid(), ["pump", "seal", "zeppelin", "lamp"]
    single = [retriever.invoke(query, k=2) for query in queries]
    assert retriever.batch(queries, k=2) == single == await retriever.abatch(queries, k=2)


async def test_every_field_can_be_configured() -> None:
    fields = ("k", "where", "fusion", "rerank")
    retriever = hybrid().configurable_fields(**{name: ConfigurableField(name) for name in fields})
    chain = RunnablePassthrough() | retriever
    for searched in (retriever, chain):
        for configurable in (
            {"k": 1},
            {"where": {"page": 1}},
            {"fusion": {"weights": {"bm25": 0.0}}},
            {"fusion": RRF(k=1)},
            {"rerank": SHORT_FIRST, "k": 2},
        ):
            expected = hybrid(**configurable).invoke("pump")
            assert searched.invoke("pump", {"configurable": configurable}) == expected
            assert await searched.ainvoke("pump", {"configurable": configurable}) == expected
    with pytest.raises(ConfigError, match="whole number"):
        retriever.invoke("pump", {"configurable": {"k": -1}})


def test_a_configured_call_opens_no_knowledge_base_again(manual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = counted(monkeypatch)
    retriever = HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder())
    configured = retriever.configurable_fields(k=ConfigurableField("k"), kb_names=ConfigurableField("bases"))
    for k in (1, 2, 3):
        assert len(configured.invoke("pump", {"configurable": {"k": k}})) == k
    assert retriever.invoke("pump", rerank=LONG_FIRST)
    assert opened == ["manual"]
    with KnowledgeBase.create("other", root=manual, embedder=HashEmbedder()) as base:
        base.add([chunk_of(Document("A pump for oil", id="oil"))])
    assert ids(configured.invoke("pump", {"configurable": {"bases": [manual / "other"]}})) == ["oil"]
    assert len(configured.invoke("pump", {"configurable": {"k": 2}})) == 2
    assert opened.count("manual") == 1


def test_what_is_committed_is_seen_after_a_reload_by_all_copies(manual: Path) -> None:
    retriever = HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder(), k=9)
    twin = copy.copy(retriever)
    before = ids(retriever.invoke("oil"))
    with KnowledgeBase.open("manual", root=manual, embedder=HashEmbedder()) as base:
        base.add([chunk_of(Document("Oil for the hinge", id="oil"))])
    assert ids(retriever.invoke("oil")) == before
    assert retriever.reload()
    assert not retriever.reload()
    assert "oil" in ids(retriever.invoke("oil"))
    assert "oil" in ids(twin.invoke("oil"))


# What it searches


def test_knowledge_bases_and_other_channels_are_searched_together(manual: Path) -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    more = {"child": Child(found=documents()[:2], seen=[]), "store": store, "list": ListChannel([("flush", 1.0)])}
    retriever = HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder(), channels=more)
    found = retriever.invoke("pump")
    assert found[0].id == "flush"
    assert set(found[0].metadata["voicevault"]["channels"]) == {"bm25", "dense", "child", "store", "list"}
    with pytest.raises(ConfigError, match="give bm25 other names"):
        HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder(), channels={"bm25": store})


def test_documents_without_ids_are_told_by_their_metadata() -> None:
    def bare(**more: Any) -> list[Document]:
        return [Document(text, metadata={"key": text[:5], **more}) for text in ("pump one", "seal two")]

    channels = {"a": Child(found=bare(seen=0), seen=[]), "b": AsyncChild(found=bare(seen=1)[::-1], seen=[])}
    assert len(HybridRetriever(channels=channels).invoke("pump")) == 4
    found = HybridRetriever(channels={name: as_channel(part, id_key="key") for name, part in channels.items()}).invoke(
        "pump"
    )
    assert sorted(ids(found)) == ["pump ", "seal "]
    assert all(set(document.metadata["voicevault"]["channels"]) == {"a", "b"} for document in found)


# What a query becomes


async def test_a_chat_model_expands_and_its_answer_is_for_vectors_alone() -> None:
    wordings = FakeListChatModel(responses=["seal of hot water", "seal of hot water"])
    found = hybrid(expansion=wordings).invoke("zeppelin")
    assert "seal" in ids(found)
    assert found == await hybrid(expansion=wordings).ainvoke("zeppelin")
    assert hybrid(expansion=[True, wordings]).search("where is the pump").query.text == "where is the pump"
    answer = FakeListChatModel(responses=["seal of hot water"])
    told = [
        document.metadata["voicevault"]["channels"]
        for document in hybrid(expansion=QueryExpander(llm=answer, size=1, hyde=True)).invoke("zeppelin")
    ]
    assert told
    assert all(set(channels) == {"dense"} for channels in told)
    assert {channels["dense"]["query"] for channels in told} & {"seal of hot water"}


async def test_a_model_that_fails_leaves_the_question_and_says_so() -> None:
    def down(prompt: str) -> str:
        raise OSError("no route to the model")

    for found in (hybrid(expansion=down).invoke("pump"), await hybrid(expansion=down).ainvoke("pump")):
        assert [document.id for document in found] == ids(hybrid().invoke("pump"))
        assert found[0].metadata["voicevault"]["degraded"] == ["expansion: OSError"]
    with pytest.raises(OSError, match="no route"):
        hybrid(expansion=down, fusion=Fusion(on_error="raise")).invoke("pump")


# Stages behind it


async def test_a_compressor_behind_a_retriever_is_a_stage_that_fills_up() -> None:
    retriever = hybrid(k=3) >> PageDiversityFilter(max_chunks_per_page=1)
    found = retriever.invoke("pump seal lamp door hose")
    assert [document.metadata["page"] for document in found] == [0, 1, 2] or len(found) == 3
    assert len({document.metadata["page"] for document in found}) == 3
    assert found == await retriever.ainvoke("pump seal lamp door hose")
    assert isinstance(retriever, HybridRetriever)
    assert repr(retriever).count("PageDiversityFilter") == 1


async def test_stages_follow_in_their_order() -> None:
    retriever = (
        hybrid() >> CrossEncoderReranker(scorer=LONG_FIRST, top_n=3) >> PageDiversityFilter(max_chunks_per_page=1)
    )
    found = retriever.invoke("pump seal")
    assert lengths(found) == sorted(lengths(found), reverse=True)
    assert len({document.metadata["page"] for document in found}) == len(found) <= 3
    assert found == await retriever.ainvoke("pump seal")
    same = hybrid(stages=[CrossEncoderReranker(scorer=LONG_FIRST, top_n=3), PageDiversityFilter(max_chunks_per_page=1)])
    assert same.invoke("pump seal") == found
    assert len(hybrid().invoke("pump seal", k=5)) == 5
    assert len(retriever.invoke("pump seal", k=2)) == 2


def test_a_reranker_behind_a_retriever_scores_as_many_as_it_is_told() -> None:
    asked: list[int] = []

    def counting(query: str, passages: Sequence[str]) -> list[float]:
        asked.append(len(passages))
        return by_length(query, passages)

    reranker = CrossEncoderReranker(scorer=CallableScorer(counting, name="counting"), depth=2)
    assert len((hybrid() >> reranker).invoke("pump seal", k=1)) == 1
    assert len(reranker.compress_documents(documents(), "pump")) == len(documents())
    whole = CrossEncoderReranker(scorer=CallableScorer(counting, name="counting"))
    assert len(whole.compress_documents(documents(), "pump")) == len(documents())
    assert asked == [2, 2, len(documents())]


async def test_any_retriever_takes_a_stage() -> None:
    child = AsyncChild(found=documents(), seen=[])
    retriever = child >> CrossEncoderReranker(scorer=LONG_FIRST, blend=1)
    found = retriever.invoke("pump")
    assert lengths(found) == sorted(lengths(found), reverse=True)
    assert "fused" not in found[0].metadata["voicevault"]
    assert found == await retriever.ainvoke("pump")
    assert len(child.seen) == 2
    store = InMemoryVectorStore.from_documents(documents(), DeterministicFakeEmbedding(size=8))
    for k, foreign in ((2, store.as_retriever(search_kwargs={"k": 2})), (4, store.as_retriever()), (5, child)):
        assert len(foreign.invoke("pump")) == k == len((foreign >> CrossEncoderReranker(scorer=LONG_FIRST)).invoke("p"))
        bound = foreign.with_config(tags=["a"]) >> PageDiversityFilter(max_chunks_per_page=9)
        assert len(bound.invoke("pump")) == k
    reordered = (store.as_retriever() >> ContextReorder()).invoke("pump")
    assert [document.metadata["voicevault"]["citation"] for document in reordered] == [1, 3, 4, 2]
    assert hybrid(channels={"found": lambda query: documents()}).invoke("pump")


class Reverse(BaseDocumentCompressor):
    """Somebody else's compressor: turns the order round, shortens the texts, drops one."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        return [document.model_copy(update={"page_content": document.page_content[:4]}) for document in documents][
            :0:-1
        ]


class Forgetful(BaseDocumentTransformer):
    """Makes new documents without their ids, as LLMChainExtractor and EmbeddingsRedundantFilter do."""

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        return [Document(each.page_content, metadata=each.metadata) for each in documents][::-1]


class Rewrites(BaseDocumentCompressor):
    """Somebody else's compressor: makes new documents without metadata."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        return [Document(document.page_content[:4]) for document in documents]


async def test_documents_that_rights_do_not_permit_after_a_stage_are_told() -> None:
    given = [Document("the pump hums", id="a", metadata={"acl": "x"})]
    for require, texts in ((None, ["the "]), ({"acl": "x"}, [])):
        own = HybridRetriever.from_documents(given, HashEmbedder(), require=require) >> Rewrites()
        for result in (own.search("pump"), await own.asearch("pump")):
            assert [hit.text for hit in result.hits] == texts
            told = [f"{failure.degrades}: {failure.message}" for failure in result.errors]
            assert (told != []) is (texts == [])
            assert all(one.startswith("True: Rewrites returned new documents whose metadata") for one in told)


class Picky(BaseDocumentCompressor):
    """Counts what it is given, as one that asks a model of each document, and keeps nothing."""

    given: list[int]

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        self.given.append(len(documents))
        return []


async def test_a_compressor_of_somebody_elses_is_asked_once_and_for_no_more_than_is_wanted() -> None:
    picky = Picky(given=[])
    assert (hybrid(k=2) >> picky).invoke("pump seal lamp door hose") == []
    assert await (hybrid(k=2) >> picky).ainvoke("pump seal lamp door hose") == []
    assert picky.given == [2, 2]
    for reranked in (
        hybrid(k=4) >> CrossEncoderReranker(scorer=LONG_FIRST, top_n=3),
        hybrid(k=4, rerank=CrossEncoderReranker(scorer=LONG_FIRST, top_n=3)),
    ):
        assert len(reranked.invoke("pump seal lamp door hose")) == 3
        (reranked >> picky).invoke("pump seal lamp door hose")
    assert picky.given[2:] == [3, 3]


class Split(BaseDocumentTransformer):
    """Cuts each document into words, as a text splitter into parts."""

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        return [Document(word, metadata=each.metadata) for each in documents for word in each.page_content.split()]


class Scored(BaseDocumentCompressor):
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        scores = [np.float32(1 / rank) for rank, _ in enumerate(documents, 1)]
        pairs = zip(documents, scores, strict=True)
        return [each.model_copy(update={"metadata": {**each.metadata, "relevance_score": s}}) for each, s in pairs]


def test_the_parts_that_a_splitter_makes_of_a_document_have_ids_of_their_own() -> None:
    whole = [document.page_content for document in hybrid(k=2).invoke("pump seal")]
    found = (hybrid(k=2) >> Split()).invoke("pump seal")
    assert len(set(ids(found))) == len(found) > 2
    assert " ".join(document.page_content for document in found).split() == " ".join(whole).split()


def test_a_compressors_scores_of_numpy_are_scores() -> None:
    found = (hybrid(k=3) >> Scored()).invoke("pump seal")
    assert [document.metadata["relevance_score"] for document in found] == pytest.approx([1, 1 / 2, 1 / 3])


class Stranger(Reverse):
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        return [Document("not from here", id="stranger")]


async def test_a_compressor_of_somebody_elses_is_a_stage_too() -> None:
    before = hybrid(k=3).invoke("pump")
    found = (hybrid(k=3) >> Reverse()).invoke("pump")
    assert found == await (hybrid(k=3) >> Reverse()).ainvoke("pump")
    assert {len(document.page_content) for document in found} == {4}
    told = found[0].metadata["voicevault"]
    assert "text" not in told  # what a compressor left out is not kept
    assert told["Reverse"]["rank"] == 1
    assert set(ids(before)) & set(ids(found))
    bare = (hybrid(k=3) >> Forgetful()).invoke("pump")
    assert ids(bare) == ids(before)[::-1]
    assert "degraded" not in bare[0].metadata["voicevault"]
    added = (hybrid(k=3) >> Stranger()).invoke("pump")
    assert [document.page_content for document in added] == [
        document.page_content for document in Stranger().compress_documents(before, "pump")
    ]


@pytest.mark.parametrize("stage", ["rerank", 3, BM25Retriever])
def test_what_is_no_stage_is_refused(stage: Any) -> None:
    with pytest.raises(ConfigError, match="document compressor"):
        hybrid() >> stage


# How it is kept


@pytest.mark.filterwarnings("ignore:The function `loads`")
def test_what_is_made_of_plain_options_can_be_dumped_and_loaded(manual: Path) -> None:
    retriever = HybridRetriever(
        kb_names=[(manual / "manual").as_uri()],
        k=3,
        fusion={"method": "rrf", "weights": {"bm25": 2.0}},
        rerank="ms-marco-MiniLM-L-12-v2",
    )
    again = loads(dumps(retriever), allowed_objects=[HybridRetriever], valid_namespaces=["voicevault_retrievers"])
    assert again == retriever
    assert dumpd(retriever)["kwargs"]["rerank"] == "ms-marco-MiniLM-L-12-v2"
    assert "made" not in dumpd(retriever)["kwargs"]
    assert dumpd(retriever)["id"] == ["voicevault_retrievers", "langchain", "HybridRetriever"]


def test_what_is_made_of_live_objects_says_so_in_a_dump() -> None:
    dumped = dumpd(hybrid())
    assert dumped["kwargs"]["channels"]["bm25"]["type"] == "not_implemented"


def test_pickles_and_copies_search_alike(manual: Path) -> None:
    for retriever in (hybrid(k=2), HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder(), k=2)):
        expected = ids(retriever.invoke("pump seal"))
        for again in (pickle.loads(pickle.dumps(retriever)), copy.deepcopy(retriever), copy.copy(retriever)):
            assert ids(again.invoke("pump seal")) == expected


def test_langsmith_is_told_what_is_searched() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    bm25 = BM25Retriever.from_documents(documents())
    assert HybridRetriever(channels={"bm25": bm25, "store": store})._get_ls_params() == {
        "ls_retriever_name": "hybrid",
        "ls_vector_store_provider": "InMemoryVectorStore",
        "ls_embedding_provider": "DeterministicFakeEmbedding",
        "ls_embedding_model": None,
    }
    assert bm25._get_ls_params() == {"ls_retriever_name": "bm25"}
    assert VectorRetriever(vectorstore=store)._get_ls_params()["ls_vector_store_provider"] == "InMemoryVectorStore"


@pytest.mark.parametrize(
    ("options", "said"),
    [({"retrievers": []}, "`channels`"), ({"model": "m"}, "`scorer`"), ({"search_kwargs": {}}, "`k` and `where`")],
)
def test_an_option_of_langchain_classics_is_named_as_it_is_here(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HybridRetriever(**options)


# What a search must not wait for, or lose


def test_an_embedding_server_that_is_down_costs_its_channel_alone() -> None:
    class Down(DeterministicFakeEmbedding):
        def embed_query(self, text: str) -> list[float]:
            raise ConnectionError("no route to the embedding server")

    index = ExactVectors.build([chunk_of(document) for document in documents()], HashEmbedder(8))
    dense = VectorRetriever(index=index, embeddings=Down(size=8))
    found = HybridRetriever(channels={"bm25": BM25Retriever.from_documents(documents()), "dense": dense}).invoke("pump")
    assert found[0].metadata["voicevault"]["degraded"] == ["dense: ConnectionError"]


async def test_a_search_does_not_wait_for_what_another_makes(manual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder())
    expected, making, made = await retriever.ainvoke("pump"), threading.Event(), threading.Event()

    def slow(*given: Any, **options: Any) -> Any:
        making.set()
        assert made.wait(10)
        raise ConfigError("made at last")

    monkeypatch.setattr("voicevault_retrievers.langchain.composed.ComposedRetriever._preset", slow)
    other = asyncio.create_task(retriever.ainvoke("pump", fusion=RRF(k=1)))
    await asyncio.to_thread(making.wait, 10)
    assert await asyncio.wait_for(retriever.ainvoke("pump"), 5) == expected
    made.set()
    with pytest.raises(ConfigError, match="at last"):
        await other


def test_bases_that_calls_configure_are_reloaded_and_stay_open(manual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tenant{at}" for at in range(10)]
    for name in names:
        with KnowledgeBase.create(name, root=manual, embedder=HashEmbedder()) as base:
            base.add([chunk_of(Document("pump", id=name))])
    opened = counted(monkeypatch)
    retriever = HybridRetriever(kb_names=[manual / "manual"], embeddings=HashEmbedder())
    tenants = retriever.configurable_fields(kb_names=ConfigurableField("kb"))
    for name in names * 2:
        assert ids(tenants.invoke("pump", {"configurable": {"kb": [manual / name]}})) == [name]
    assert sorted(opened) == names
    with KnowledgeBase.open("tenant3", root=manual, embedder=HashEmbedder()) as base:
        base.add([chunk_of(Document("pump", id="new"))])
    assert retriever.reload()
    assert set(ids(tenants.invoke("pump", {"configurable": {"kb": [manual / "tenant3"]}}))) == {"tenant3", "new"}


def test_a_context_is_made_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    build = Builder.build

    def counting(self: Builder, hits: Any, *given: Any, **options: Any) -> Any:
        made.append(len(hits))
        return build(self, hits, *given, **options)

    monkeypatch.setattr(Builder, "build", counting)
    retriever = hybrid()
    retriever.invoke("pump")
    assert made == []
    result = retriever.search("pump")
    assert (result.context.text, result.context_tokens > 0, made) == (result.context.text, True, [len(result.hits)])


def test_the_rights_of_a_retriever_hold_for_stages_behind_it() -> None:
    store = {"p": Document("the parent's secret", metadata={"page": 1})}
    child = Document("a pump", id="c", metadata={"page": 0, "parent_id": "p"})
    inner = BM25Retriever.from_documents([child], require={"page": 0})
    for outer in (
        inner >> ParentExpander(store=store),
        inner.with_config(tags=["a"]) >> ParentExpander(store=store),
        StagedRetriever(retriever=inner, stages=[ParentExpander(store=store)]),
    ):
        assert [document.page_content for document in outer.invoke("pump")] == ["a pump"]
    (open_,) = (BM25Retriever.from_documents([child]) >> ParentExpander(store=store)).invoke("pump")
    assert open_.page_content == "the parent's secret"


def test_a_store_that_does_not_say_its_k_takes_stages() -> None:
    class Vague(InMemoryVectorStore):
        def similarity_search(self, query: str, *args: Any, **kwargs: Any) -> list[Document]:
            return super().similarity_search(query, *args, **kwargs)

    store = Vague.from_documents(documents(), DeterministicFakeEmbedding(size=8))
    assert len((store.as_retriever() >> PageDiversityFilter(max_chunks_per_page=9)).invoke("pump")) == 5


def test_a_model_is_looked_up_when_it_is_asked() -> None:
    for retriever in (hybrid(expansion="no-such-provider:m"), hybrid() >> LLMReranker(llm="no-such-provider:m")):
        with pytest.raises((ConfigError, ImportError), match=r"no-such-provider:m|is not installed"):
            retriever.invoke("pump")
