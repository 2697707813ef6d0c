"""LangChain's vector store over memory, a knowledge base and an engine: LangChain's own suite, and what is its own."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from tests.frameworks.langchain_parts import TEXTS, Hashed, documents, ids
from tests.helpers import Counting, HashEmbedder
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, LockedError
from voicevault_retrievers.fusion import RRF
from voicevault_retrievers.langchain import (
    HybridIndex,
    HybridRetriever,
    HybridStore,
    LangChainEmbedder,
    PageDiversityFilter,
)
from voicevault_retrievers.pipeline.options import Fusion
from voicevault_retrievers.store import KnowledgeBase, Limits

KINDS = ("memory", "disk", "qdrant")
QUESTION = "pump seal for hot water"


def opened(kind: str, folder: Path, embedding: Any = None, **options: Any) -> HybridStore:
    given = Hashed() if embedding is None else embedding
    if kind == "memory":
        return HybridStore(given, **options)
    if kind == "disk":
        return HybridStore.open(folder / "kb", given, **options)
    pytest.importorskip("qdrant_client")
    return HybridStore.open(f"qdrant+file://{folder}/qdrant/kb", given, **options)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[HybridStore]:
    made = opened(kind, tmp_path, fusion="rrf")
    made.add_documents(documents())
    yield made
    if made.base is not None:
        made.base.close()


# LangChain's own suite, which compares whole documents: their metadata have to come back as they were added


class TestStandardInMemory(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return HybridStore(self.get_embeddings(), provenance=False)


class TestStandardOnDisk(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:
        with KnowledgeBase.create(tmp_path / "kb", embedder=LangChainEmbedder(self.get_embeddings())) as base:
            yield HybridStore(base=base, provenance=False)


class TestStandardInQdrant(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:
        pytest.importorskip("qdrant_client")
        address = f"qdrant+file://{tmp_path}/qdrant/kb"
        with closing(connect(address, embedder=LangChainEmbedder(self.get_embeddings()))) as engine:
            yield HybridStore(base=engine, provenance=False)


# Searching


async def test_a_search_is_of_keywords_and_vectors_and_says_so(store: HybridStore) -> None:
    found = store.similarity_search(QUESTION, k=2)
    assert found == await store.asimilarity_search(QUESTION, k=2)
    assert ids(found)[0] == "seal"
    told = found[0].metadata["voicevault"]
    assert set(told["channels"]) == {"bm25", "dense"}
    assert found[0].metadata["relevance_score"] == told["fused"] == 1 / 61 + 1 / 61
    scored = store.similarity_search_with_score(QUESTION, k=5)
    assert scored == await store.asimilarity_search_with_score(QUESTION, k=5)
    assert [document for document, _ in scored[:2]] == found
    assert [score for _, score in scored] == [document.metadata["relevance_score"] for document, _ in scored]
    assert [score for _, score in scored] == sorted((score for _, score in scored), reverse=True)
    assert store.similarity_search(" ") == await store.asimilarity_search("") == []


async def test_weights_choose_the_channels(store: HybridStore) -> None:
    words = store.similarity_search(QUESTION, k=9, weights={"dense": 0})
    assert words == await store.asimilarity_search(QUESTION, k=9, weights={"dense": 0})
    assert set(ids(words)) == {"flush", "seal", "hose"}
    vectors = store.as_retriever(search_kwargs={"k": 9, "weights": {"bm25": 0}}).invoke(QUESTION)
    assert ids(vectors) == ids(store.similarity_search_by_vector(Hashed().embed_query(QUESTION), k=9))


async def test_the_nearest_are_found_whatever_their_cosines(store: HybridStore) -> None:
    vector = Hashed().embed_query("violin")
    cosines = {key: float(np.dot(HashEmbedder().embed_documents([text])[0], vector)) for key, text in TEXTS.items()}
    assert min(cosines.values()) < 0
    found = store.similarity_search_by_vector(vector, k=9)
    assert found == await store.asimilarity_search_by_vector(vector, k=9)
    assert {one.id: one.metadata["relevance_score"] for one in found} == pytest.approx(cosines, abs=1e-6)
    assert ids(found) == sorted(cosines, key=lambda key: -cosines[key])
    assert len(store.similarity_search("violin", k=9)) == len(TEXTS)
    for wrong in ([1.0, 2.0], [0.0] * 16, [float("nan")] * 16):
        with pytest.raises(ConfigError, match=r"dimension|zero|finite"):
            store.similarity_search_by_vector(wrong)


async def test_relevance_is_the_cosine_from_0_to_1(store: HybridStore) -> None:
    found = store.similarity_search_with_relevance_scores(QUESTION, k=9)
    assert found == await store.asimilarity_search_with_relevance_scores(QUESTION, k=9)
    near = store.similarity_search_by_vector(Hashed().embed_query(QUESTION), k=9)
    assert [document.id for document, _ in found] == ids(near)
    assert [score for _, score in found] == pytest.approx([one.metadata["relevance_score"] for one in near], abs=1e-6)
    far = store.similarity_search_with_relevance_scores("violin", k=9)
    assert (len(far), min(score for _, score in far)) == (5, 0.0)
    ((_, best),) = store.similarity_search_with_relevance_scores(TEXTS["lamp"], k=1)
    assert best == pytest.approx(1.0)
    assert best <= 1.0
    threshold = {"score_threshold": 0.99, "k": 9}
    retriever = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=threshold)
    assert ids(retriever.invoke(TEXTS["lamp"])) == ids(await retriever.ainvoke(TEXTS["lamp"])) == ["lamp"]


async def test_mmr_prefers_what_is_unlike_what_is_chosen(store: HybridStore) -> None:
    store.add_texts([TEXTS["seal"] + " too"], [{"page": 1}], ids=["twin"])
    assert set(ids(store.similarity_search(QUESTION, k=2))) == {"seal", "twin"}
    retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 4, "lambda_mult": 0.3})
    found = retriever.invoke(QUESTION)
    assert found == await retriever.ainvoke(QUESTION)
    assert len({"seal", "twin"} & set(ids(found))) == 1
    assert "mmr" in found[0].metadata["voicevault"]
    same = store.max_marginal_relevance_search(QUESTION, k=3, lambda_mult=1.0)
    assert ids(same) == ids(store.similarity_search(QUESTION, k=3))
    vector = Hashed().embed_query(QUESTION)
    near = store.max_marginal_relevance_search_by_vector(vector, k=3, fetch_k=1, lambda_mult=1)
    assert near == await store.amax_marginal_relevance_search_by_vector(vector, k=3, fetch_k=1, lambda_mult=1)
    assert ids(near) == ids(store.similarity_search_by_vector(vector, k=3))
    wrongs: list[dict[str, Any]] = [{"lambda_mult": 2}, {"fetch_k": 0}, {"k": -1}]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            store.max_marginal_relevance_search(QUESTION, **wrong)


async def test_a_filter_narrows_every_search(store: HybridStore) -> None:
    options: dict[str, Any] = {"k": 9, "filter": {"page": {"$gte": 1}}}
    vector = Hashed().embed_query(QUESTION)
    found = [
        store.similarity_search(QUESTION, **options),
        store.similarity_search_by_vector(vector, **options),
        store.max_marginal_relevance_search(QUESTION, **options),
        store.max_marginal_relevance_search_by_vector(vector, **options),
        [document for document, _ in store.similarity_search_with_relevance_scores(QUESTION, **options)],
        await store.as_retriever(search_kwargs=options).ainvoke(QUESTION),
        store.as_retriever().invoke(QUESTION, **options),
    ]
    assert [set(ids(each)) for each in found] == [{"hose", "lamp", "door"}] * len(found)


async def test_access_rights_hold_in_everything_that_reads(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path, require={"page": {"$lte": 1}})
    assert store.add_documents(documents()) == list(TEXTS)
    permitted = {"flush", "seal", "hose", "lamp"}
    vector = Hashed().embed_query(TEXTS["door"])
    for found in (
        store.similarity_search(TEXTS["door"], k=9),
        await store.asimilarity_search(TEXTS["door"], k=9, require=None),
        store.similarity_search_by_vector(vector, k=9),
        store.max_marginal_relevance_search(TEXTS["door"], k=9),
        [document for document, _ in store.similarity_search_with_relevance_scores(TEXTS["door"], k=9)],
        store.get_by_ids(list(TEXTS)),
        await store.aget_by_ids(list(TEXTS)),
        store.as_retriever(search_kwargs={"k": 9}).invoke(TEXTS["door"]),
    ):
        assert set(ids(found)) == permitted
    narrower = {"page": {"$gte": 1}}
    assert set(ids(store.similarity_search("pump", k=9, require=narrower))) == {"hose", "lamp"}
    assert store.similarity_search("pump", require={}) == []
    assert HybridStore(Hashed(), require={}).get_by_ids(["a"]) == []
    with pytest.raises(ConfigError, match="nope"):
        HybridStore(Hashed(), require={"page": {"$nope": 1}})
    rights: dict[str, Any] = {"page": 0}
    copied = HybridStore.from_documents(documents(), Hashed(), require=rights)
    rights.update(page=2)
    assert set(ids(copied.similarity_search("pump", k=9))) == {"flush", "seal"}
    if store.base is not None:
        store.base.close()


def test_what_a_search_does_not_know_is_refused(store: HybridStore) -> None:
    for options, message in (
        ({"where": {}}, "here it is `filter`"),
        ({"score_threshold": 0.5}, "similarity_score_threshold"),
        ({"fitler": {}}, "filter"),
        ({"weights": {"bm52": 1}}, "bm25"),
        ({"filter": {"page": {"$nope": 1}}}, "nope"),
    ):
        with pytest.raises(ConfigError, match=message):
            store.similarity_search(QUESTION, **options)
    with pytest.raises(ConfigError, match="weights"):
        store.similarity_search_with_relevance_scores(QUESTION, weights={"bm25": 0})
    with pytest.raises(ConfigError, match="vectors"):
        HybridStore(Hashed(), fusion=Fusion(weights={"vectors": 1}))


async def test_a_failure_is_raised_unless_it_is_to_be_skipped() -> None:
    class Failing(Hashed):
        def embed_query(self, text: str) -> list[float]:
            if text == QUESTION:
                raise TimeoutError("the model is away")
            return super().embed_query(text)

    store = HybridStore.from_documents(documents(), Failing())
    for search in (store.similarity_search, store.max_marginal_relevance_search):
        with pytest.raises(TimeoutError, match="away"):
            search(QUESTION)
    with pytest.raises(TimeoutError, match="away"):
        await store.asimilarity_search_with_relevance_scores(QUESTION)
    skipping = HybridStore.from_documents(documents(), Failing(), fusion=Fusion(on_error="skip"))
    found = skipping.similarity_search(QUESTION)
    assert set(ids(found)) == {"flush", "seal", "hose"}
    assert "TimeoutError" in found[0].metadata["voicevault"]["degraded"][0]


# Changes


async def test_a_change_is_searched_at_once(store: HybridStore) -> None:
    assert store.add_texts(["A spare fuse"], [{"page": 9}], ids=["spare"]) == ["spare"]
    assert ids(store.similarity_search("fuse", k=1)) == ["spare"]
    assert await store.aadd_texts(["A spare drawer"], ids=["spare"]) == ["spare"]
    (again,) = await store.aget_by_ids(["spare"])
    assert again == Document("A spare drawer", id="spare")
    assert ids(await store.asimilarity_search("drawer", k=1)) == ["spare"]
    assert store.delete(["spare", "unknown"]) is True
    assert store.get_by_ids(["spare", "lamp", "unknown", "door"]) == documents()[3:]
    assert await store.adelete(["lamp"]) is True
    assert "lamp" not in ids(store.similarity_search("lamp", k=9))
    assert store.add_documents(store.similarity_search("seal", k=1)) == ["seal"]
    assert store.get_by_ids(["seal"]) == documents()[1:2]


async def test_ids_are_given_or_those_of_the_content(store: HybridStore) -> None:
    given = [Document("one"), Document("two", id="second"), Document("one")]
    first, second, third = store.add_documents(given)
    assert (first, second) == (third, "second")
    assert await store.aadd_documents(given) == [first, second, third]
    assert store.add_documents(given[:2], ids=["a", "b"]) == ["a", "b"]
    assert ids(given) == [None, "second", None]
    assert store.add_documents([Document("old", id="a"), Document("new", id="a")]) == ["a", "a"]
    assert store.get_by_ids(["a"]) == [Document("new", id="a")]
    assert ids(store.similarity_search("old", weights={"dense": 0})) == []
    assert store.add_documents([]) == await store.aadd_texts([]) == []


async def test_a_wrong_change_is_refused_and_nothing_is_changed(store: HybridStore) -> None:
    with pytest.raises(ConfigError, match="differ in number"):
        store.add_texts(["a"], [{}, {}])
    with pytest.raises(ConfigError, match="differ in number"):
        await store.aadd_texts(["a", "b"], ids=["only"])
    with pytest.raises(ConfigError, match="2 documents and 1 ids"):
        await store.aadd_documents(documents()[:2], ids=["only"])
    for change in (store.add_documents, store.delete):
        with pytest.raises(ConfigError, match="'namespace'"):
            change([], namespace="a")
    for call in (store.delete, store.get_by_ids):
        with pytest.raises(ConfigError, match="single id"):
            call("lamp")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="by their ids"):
        store.delete()
    with pytest.raises(ConfigError, match="by their ids"):
        await store.adelete(None)
    assert len(store.similarity_search("pump", k=50)) == len(TEXTS)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_langchains_index_keeps_it_like_its_sources(store: HybridStore, asynchronous: bool) -> None:
    records = InMemoryRecordManager(namespace="store")
    records.create_schema()
    store.delete(list(TEXTS))

    async def synchronized(given: list[Document]) -> tuple[int, int]:
        options: dict[str, Any] = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
        run = aindex(given, records, store, **options) if asynchronous else None
        told = await run if run is not None else index(given, records, store, **options)
        return told["num_added"], told["num_deleted"]

    assert await synchronized(documents()) == (5, 0)
    assert await synchronized(documents()[1:]) == (0, 1)
    assert len(store.similarity_search("pump", k=9)) == 4


# In a chain, and as a channel


async def test_it_stands_in_a_chain(store: HybridStore) -> None:
    prompt = ChatPromptTemplate.from_template("{context}\n{question}")
    model = FakeListChatModel(responses=["hot water"])
    context = store.as_retriever(search_kwargs={"k": 1}) | (lambda found: found[0].page_content)
    chain = {"context": context, "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
    assert chain.invoke(QUESTION) == await chain.ainvoke(QUESTION) == "hot water"
    staged = store.as_retriever(search_kwargs={"k": 5}) >> PageDiversityFilter(max_chunks_per_page=1)
    assert len(staged.invoke(QUESTION)) == 3
    assert store.as_retriever().tags[0] == "HybridStore"  # type: ignore[index]  # it has tags


async def test_it_is_a_channel_that_gets_the_filter(store: HybridStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    own = HybridStore._query
    monkeypatch.setattr(HybridStore, "_query", lambda self, *given: asked.append(given[1]) or own(self, *given))
    outer = HybridRetriever(channels={"store": store})
    assert ids(outer.invoke(QUESTION, k=1)) == ["seal"]
    found = outer.invoke(QUESTION, where={"page": 1})
    assert ids(found) == ids(await outer.ainvoke(QUESTION, where={"page": 1}))
    assert ids(found) == ids(store.similarity_search(QUESTION, filter={"page": 1})) != []
    assert asked == [{}, *[{"filter": {"page": 1}}] * 3]


async def test_it_does_not_block_the_loop(watched: Any, kind: str, tmp_path: Path) -> None:
    store = await asyncio.to_thread(opened, kind, tmp_path)

    async def change(at: int) -> None:
        await store.aadd_texts([f"pump number{at}"], ids=[str(at)])
        assert ids(await store.asimilarity_search(f"number{at}", k=1, weights={"dense": 0})) == [str(at)]
        await store.amax_marginal_relevance_search("pump", k=2)
        if at % 2:
            await store.adelete([str(at)])

    await asyncio.gather(*(change(at) for at in range(8)))
    assert sorted(ids(await store.asimilarity_search("pump", k=50))) == ["0", "2", "4", "6"]
    if store.base is not None:
        await asyncio.to_thread(store.base.close)


# Opening


async def test_it_is_made_from_texts_or_documents_in_one_step(kind: str, tmp_path: Path) -> None:
    places = {"memory": None, "disk": tmp_path / "kb", "qdrant": f"qdrant+file://{tmp_path}/q/kb"}
    if kind == "qdrant":
        pytest.importorskip("qdrant_client")
    for at, made in enumerate((HybridStore.from_documents, HybridStore.afrom_documents)):
        base = places[kind] if places[kind] is None else type(places[kind])(f"{places[kind]}{at}")
        store: Any = made(documents(), Hashed(), base=base, fusion=RRF())
        store = await store if at else store
        assert ids(store.similarity_search(QUESTION, k=1)) == ["seal"]
        assert store.get_by_ids(list(TEXTS)) == documents()
        assert isinstance(store.embeddings, Hashed)
        if store.base is not None:
            again = HybridStore.from_texts(["more"], Hashed(), ids=["more"], base=store.base)
            assert ids(again.get_by_ids(["more", "lamp"])) == ["more", "lamp"]
            store.base.close()


def test_an_option_that_open_does_not_have_is_told_of_open(tmp_path: Path) -> None:
    for base in ("notes", tmp_path / "notes"):
        with pytest.raises(ConfigError, match=r"HybridStore\.open has no option 'embeddings'; here it is `embedding`"):
            HybridStore.open(base, root=tmp_path, embeddings=None)
    assert not list(tmp_path.iterdir())


def test_what_an_error_on_sizes_says_is_possible(tmp_path: Path) -> None:
    large, limits = Document("pump", id="a", metadata={"table": "x" * 70_000}), Limits(metadata=10**6)
    with pytest.raises(ConfigError, match=r"with limits=Limits\(metadata=\.\.\.\)"):
        HybridStore.open("store", Hashed(), root=tmp_path).add_documents([large])
    store = HybridStore.open(tmp_path / "other", Hashed(), limits=limits)
    assert store.add_documents([large]) == ["a"]
    index = HybridIndex.open("index", root=tmp_path, embeddings=Hashed(), limits=limits)
    assert index.upsert([large])["succeeded"] == ["a"]


def test_a_base_on_disk_is_opened_again_by_name_or_path(tmp_path: Path) -> None:
    embedder = Counting()
    store = HybridStore.open("manual", embedder, root=tmp_path, language="de")
    store.add_texts(["Die Pumpen"], ids=["a"])
    store.add_texts(["Die Pumpen"], ids=["a"])
    assert embedder.texts == ["Die Pumpen"]
    other = HybridStore.open(tmp_path / "manual", HashEmbedder())
    assert ids(other.similarity_search("Pumpe", weights={"dense": 0})) == ["a"]
    with pytest.raises(LockedError):
        other.delete(["a"])
    assert isinstance(store.base, KnowledgeBase)
    store.base.close()
    other.delete(["a"])
    assert store.base.reload()
    assert store.similarity_search("Pumpe") == []
    assert HybridIndex(kb=store.base).invoke("Pumpe") == []
    assert repr(store) == f"HybridStore({store.base!r})"
    assert (store.embeddings, repr(HybridStore(Hashed()))) == (None, "HybridStore(in memory)")
    embeddings = Hashed()
    assert HybridStore(LangChainEmbedder(embeddings)).embeddings is embeddings


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"a folder is given as a Path: Path\('{tmp_path}/kb'\)"):
        HybridStore.open(f"{tmp_path}/kb", Hashed())
    base: Any = KnowledgeBase.create(tmp_path / "kb", embedder=LangChainEmbedder(Hashed()))
    with pytest.raises(IncompatibleIndexError, match="were made by"):
        HybridStore(DeterministicFakeEmbedding(size=16), base)
    with pytest.raises(ConfigError, match="an open base has its own"):
        HybridStore(base=base, language="de")
    with pytest.raises(ConfigError, match="opened by name"):
        HybridStore(Hashed(), tmp_path / "kb")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="LangChain Embeddings or an Embedder, not str"):
        HybridStore("all-MiniLM-L6-v2")
    with pytest.raises(ConfigError, match="HybridIndex"):
        HybridStore(base=KnowledgeBase.create(tmp_path / "words"))
    assert HybridStore(Hashed(), base).similarity_search("pump") == []


async def test_an_engine_without_vectors_or_with_others_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    with closing(connect(f"qdrant+file://{tmp_path}/words/kb")) as engine:
        store = HybridStore(base=engine)
        with pytest.raises(ConfigError, match="keeps no vectors"):
            store.add_documents(documents())
        with pytest.raises(ConfigError, match="keeps no vectors"):
            await store.aadd_documents(documents())
        assert store.similarity_search("pump") == []
        assert len(engine) == 0
    with closing(connect(f"qdrant+file://{tmp_path}/kb/kb", embedder=HashEmbedder())) as engine:
        store = HybridStore(Hashed(), engine)
        with pytest.raises(IncompatibleIndexError, match="were made by 'hash/16'"):
            store.add_documents(documents())
        with pytest.raises(IncompatibleIndexError, match="were made by 'hash/16'"):
            await store.aadd_documents(documents())
        assert HybridStore(base=engine).add_documents(documents()) == list(TEXTS)


# Copies


def test_a_pickled_copy_opens_the_base_again(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path, fusion=RRF(), require={"page": {"$lte": 1}})
    store.add_documents(documents())
    found = store.similarity_search(QUESTION)
    copies = (lambda given: pickle.loads(pickle.dumps(given)), copy.deepcopy)
    if kind == "qdrant":
        for copied in copies:
            with pytest.raises(ConfigError, match=r"HybridStore\.open\(ADDRESS\)"):
                copied(store)
    else:
        for copied in copies:
            twin: HybridStore = copied(store)
            assert twin.similarity_search(QUESTION) == found
            assert twin.base is not store.base or kind == "memory"
    if store.base is not None:
        store.base.close()
