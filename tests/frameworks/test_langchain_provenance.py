"""Documents that were found, without their provenance or with a flat one: for stores whose metadata are flat."""

from __future__ import annotations

import copy
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from tests.frameworks.langchain_parts import TEXTS, Hashed, documents, hybrid, ids
from voicevault_retrievers.langchain import (
    BM25Retriever,
    ContextBuilder,
    ContextReorder,
    HybridRetriever,
    HybridStore,
    MMRFilter,
    NearDuplicateFilter,
    PageDiversityFilter,
    ParentExpander,
    RecencyReranker,
    WeightedReranker,
    chunk_of,
    flatten_provenance,
    remove_provenance,
    resolve_citations,
    retrieval_tool,
)
from voicevault_retrievers.pipeline.options import Fusion

WAYS = (flatten_provenance, remove_provenance)


def plain() -> list[Document]:
    """Documents as Chroma takes them."""
    return [
        Document(text, id=key, metadata={"source": "manual.pdf", "page": at // 2})
        for at, (key, text) in enumerate(TEXTS.items())
    ]


def found() -> list[Document]:
    return HybridRetriever.from_documents(plain(), Hashed(), k=3).invoke("pump seal")


def chroma() -> Any:
    stores = pytest.importorskip("langchain_chroma")
    return stores.Chroma(collection_name=f"found-{uuid4().hex}", embedding_function=Hashed())


def test_found_documents_can_be_put_into_chroma() -> None:
    store = chroma()
    with pytest.raises(ValueError, match="metadata"):
        store.add_documents(found())
    for way in WAYS:
        store = chroma()
        store.add_documents(way(found()))
        kept = store.get_by_ids([one.id for one in found()])
        told = {one.id: one.metadata for one in kept}
        assert told == {one.id: pytest.approx(one.metadata) for one in way(found())}  # Chroma rounds


def test_a_flat_provenance_says_the_same() -> None:
    given = found()
    before = copy.deepcopy(given)
    for document, flat in zip(given, flatten_provenance(given), strict=True):
        told = document.metadata["voicevault"]
        assert flat.metadata["voicevault_found_by"] == told["found_by"]
        for name, channel in told["channels"].items():
            for key in ("rank", "score", "weight", "contribution"):
                assert flat.metadata[f"voicevault_{name}_{key}"] == channel[key]
        assert flat.metadata["voicevault_fused"] == told["fused"] == flat.metadata["relevance_score"]
        assert "voicevault" not in flat.metadata
        assert all(isinstance(value, str | int | float | bool) for value in flat.metadata.values())
        assert (flat.id, flat.page_content) == (document.id, document.page_content)
    assert given == before
    assert flatten_provenance(flatten_provenance(given)) == flatten_provenance(given)
    texts = flatten_provenance([Document("a", metadata={"voicevault": {"degraded": ["a", "b"], "kb": None, "no": []}})])
    assert texts[0].metadata == {"voicevault_degraded": "a, b"}


def test_without_provenance_documents_are_as_they_were_added() -> None:
    given = found()
    by_id = {one.id: one for one in plain()}
    assert remove_provenance(given) == [by_id[one.id] for one in given]
    assert remove_provenance(flatten_provenance(given)) == remove_provenance(given)
    store = HybridStore.from_documents(plain(), Hashed(), provenance=False)
    assert remove_provenance(store.similarity_search("pump")) == store.similarity_search("pump")


@pytest.mark.parametrize("value", ["our own product", 5, {"owner": "us"}, ["a"]])
def test_a_documents_own_keys_of_the_same_names_come_back_and_filter(value: Any) -> None:
    own = Document("The pump hums.", id="c", metadata={"relevance_score": 7, "voicevault": value, "source": "a"})
    store = HybridStore.from_documents([own], Hashed(), provenance=False)
    assert store.get_by_ids(["c"]) == store.similarity_search("pump") == [own]
    assert store.similarity_search("pump", filter={"relevance_score": 7}) == [own]
    assert remove_provenance([own]) == [own]
    right = {"voicevault": value} if isinstance(value, str | int) else {"relevance_score": 7}
    (found,) = BM25Retriever.from_documents([own], require=right).invoke("pump")
    assert found.metadata["voicevault"]["found_by"] == "keyword"
    assert BM25Retriever.from_documents([own], require={"relevance_score": {"$ne": 7}}).invoke("pump") == []


@pytest.mark.parametrize("way", WAYS)
def test_what_is_indexed_again_has_no_provenance_of_the_search_before(way: Any) -> None:
    assert [chunk_of(one) for one in way(found())] == [chunk_of(one) for one in found()]
    retriever = HybridRetriever(
        channels={"bm25": BM25Retriever.from_documents(plain()), "dense": chroma()}, fusion=Fusion(on_error="raise")
    )
    retriever.channels["dense"].add_documents(way(found()))  # type: ignore[union-attr]  # it is a Chroma
    for document in retriever.invoke("pump seal"):
        assert document.metadata.keys() == {"source", "page", "voicevault", "relevance_score"}
    both = [one for one in retriever.invoke("pump seal") if len(one.metadata["voicevault"]["channels"]) > 1]
    assert both  # it is one document, though one channel's has had a provenance


@pytest.mark.parametrize("way", WAYS)
async def test_compressors_citations_and_tools_do_without(way: Any) -> None:
    given = way(found())
    parents = {"p": Document("all of it")}
    for stage in (
        MMRFilter(),
        NearDuplicateFilter(),
        PageDiversityFilter(),
        ParentExpander(store=parents),
        RecencyReranker(),
        WeightedReranker(),
        ContextReorder(),
    ):
        kept = stage.compress_documents(given, "pump")
        assert set(ids(kept)) <= set(ids(given))
        assert kept == await stage.acompress_documents(given, "pump")
    context = ContextBuilder(markers="numbered").invoke(given)
    assert [one.chunk_id for one in context.citations] == ids(given)
    assert resolve_citations("as said in [1]", given, numbered=True).citations[0].chunk_id == given[0].id
    tool = retrieval_tool(hybrid(k=3) | RunnableLambda(way), name="manual")
    message = tool.invoke({"type": "tool_call", "id": "1", "name": "manual", "args": {"query": "pump"}})
    assert [one["chunk_id"] for one in message.artifact["citations"]] == ids(message.artifact["documents"])


def test_other_metadata_stay_as_they_are() -> None:
    for way in WAYS:
        assert {one.id: one.metadata["tags"] for one in way(hybrid().invoke("pump"))} == {
            one.id: one.metadata["tags"] for one in documents() if one.id in set(ids(hybrid().invoke("pump")))
        }
