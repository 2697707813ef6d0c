"""LangChain: what an owner sets on a retriever holds for the retrievers around it at their next search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import by_length
from voicevault_retrievers.langchain import (
    BM25Retriever,
    CrossEncoderReranker,
    HybridRetriever,
    HybridStore,
    PageDiversityFilter,
    VectorRetriever,
    as_channel,
)
from voicevault_retrievers.rerank import CallableScorer

MODEL = DeterministicFakeEmbedding(size=8)
USERS = ("ann", "bob")
DOCUMENTS = [Document(f"pump of {user}", id=user, metadata={"user": user}) for user in USERS]


def in_memory(user: str) -> dict[str, Any]:
    return {"filter": lambda document: document.metadata["user"] == user}


def in_own_store(user: str) -> dict[str, Any]:
    return {"require": {"user": user}}


def memory() -> Any:
    store = InMemoryVectorStore(MODEL)
    store.add_documents(DOCUMENTS)
    return store


def own() -> Any:
    store = HybridStore(MODEL)
    store.add_documents(DOCUMENTS)
    return store


@pytest.mark.parametrize(("made", "only"), [(memory, in_memory), (own, in_own_store)])
@pytest.mark.parametrize("search_type", ["similarity", "mmr"])
@pytest.mark.parametrize("replaced", [True, False])
async def test_search_options_of_a_store_hold_at_the_next_search(
    made: Callable[[], Any], only: Callable[[str], dict[str, Any]], search_type: str, replaced: bool
) -> None:
    base = made().as_retriever(search_type=search_type, search_kwargs={"k": 5, **only("ann")})
    around = [HybridRetriever(channels={"dense": base}), base >> PageDiversityFilter()]
    around.append(HybridRetriever(channels={"dense": as_channel(base)}))
    for user in ("ann", "bob", "ann"):
        if replaced:
            base.search_kwargs = {"k": 5, **only(user)}
        else:
            base.search_kwargs.update(only(user))
        for retriever in around:
            assert [found.id for found in retriever.invoke("pump")] == [user]
            assert [found.id for found in await retriever.ainvoke("pump")] == [user]


@pytest.mark.parametrize("name", ["where", "require"])
def test_filters_of_a_retriever_inside_another_hold_at_the_next_search(name: str) -> None:
    inner = BM25Retriever.from_documents(DOCUMENTS, **{name: {"user": "ann"}})
    outer = HybridRetriever(channels={"own": inner})
    for user in ("ann", "bob"):
        setattr(inner, name, {"user": user})
        assert [found.id for found in outer.invoke("pump")] == [found.id for found in inner.invoke("pump")] == [user]


def down(*given: Any) -> Any:
    raise ConnectionError("down")


def test_a_compressor_that_raises_alone_raises_behind_a_retriever_too() -> None:
    given = BM25Retriever.from_documents(DOCUMENTS)
    strict = CrossEncoderReranker(scorer=CallableScorer(down, name="d"), on_error="raise")
    for retriever in (given >> strict, HybridRetriever(channels={"own": given}, stages=[strict])):
        with pytest.raises(ConnectionError):
            retriever.invoke("pump")
    strict.on_error = "skip"
    assert [found.id for found in (given >> strict).invoke("pump")] == list(USERS)


def test_a_compressor_reads_what_its_text_of_says_behind_a_retriever_too() -> None:
    read: list[str] = []

    def score(query: str, passages: Any) -> list[float]:
        read.extend(passages)
        return by_length(query, passages)

    titled = [Document("It is reset.", id="a", metadata={"title": "Pump"})]
    compressor = CrossEncoderReranker(scorer=CallableScorer(score, name="r"), text_of=["title"])
    (found,) = (BM25Retriever.from_documents(titled) >> compressor).invoke("reset")
    assert read == ["Pump\n\nIt is reset."]
    assert "header" not in found.metadata["voicevault"]


@pytest.mark.parametrize("secret", ["alpha", "omega"])
@pytest.mark.parametrize("wrap", ["store", "k", "mmr", "vectors", "retry", "config", "bind", "fields"])
async def test_forbidden_documents_change_neither_order_nor_scores_whatever_is_between(secret: str, wrap: str) -> None:
    mine = [Document(f"{word} {word} valve", id=word, metadata={"team": "blue"}) for word in ("alpha", "omega")]
    others = [Document(f"{secret} {at}", id=f"s{at}", metadata={"team": "red"}) for at in range(30)]
    rights = {"team": "blue"}

    def retriever(documents: list[Document]) -> Any:
        store = HybridStore(MODEL)
        store.add_documents(documents)
        words = BM25Retriever.from_documents(documents)
        if wrap == "vectors":
            return VectorRetriever(vectorstore=store, require=rights)
        part = {
            "store": lambda: store,
            "k": lambda: store.as_retriever(search_kwargs={"k": 7}),
            "mmr": lambda: store.as_retriever(search_type="mmr"),
            "retry": words.with_retry,
            "config": lambda: words.with_config(tags=["t"]),
            "bind": lambda: words.bind(where={"team": {"$ne": "green"}}, require={"team": {"$exists": True}}),
            "fields": lambda: words.configurable_fields(),
        }[wrap]()
        return HybridRetriever(channels={"s": part}, require=rights)

    def told(found: list[Document]) -> list[tuple[Any, Any]]:
        return [(document.id, document.metadata.get("relevance_score")) for document in found]

    alone, beside = retriever(mine), retriever(mine + others)
    expected = told(alone.invoke("alpha omega"))
    assert {one for one, _ in expected} == {"alpha", "omega"}
    assert told(beside.invoke("alpha omega")) == told(await beside.ainvoke("alpha omega")) == expected


def test_bound_rights_stay_beside_those_of_a_search() -> None:
    words = BM25Retriever.from_documents(DOCUMENTS)
    bound = words.bind(require={"user": "ann"}).with_retry()
    assert [found.id for found in HybridRetriever(channels={"w": bound}).invoke("pump")] == ["ann"]
    for user, expected in (("ann", ["ann"]), ("bob", [])):
        found = HybridRetriever(channels={"w": bound}, require={"user": user}).invoke("pump")
        assert [document.id for document in found] == expected
