"""The faults of LangChain's own parts beside this package, on the same input: theirs have them, ours do not.

A test fails too once a peer has mended its fault: then the claim goes, wherever it is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import ToolCall
from langchain_core.retrievers import BaseRetriever
from langchain_core.stores import InMemoryStore
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError

from tests.frameworks.langchain_parts import TEXTS, documents, ids
from tests.oracles.langchain_peers import A, B, C, child, degraded, peer, texts
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, ParentExpander, retrieval_tool
from voicevault_retrievers.pipeline.options import Fusion

# EnsembleRetriever


def ensembles(*children: BaseRetriever, **options: Any) -> tuple[Any, HybridRetriever]:
    """Theirs and ours over the same retrievers."""
    theirs = peer("langchain_classic.retrievers.EnsembleRetriever")(retrievers=list(children), **options)
    return theirs, HybridRetriever(channels={f"child {at}": below for at, below in enumerate(children)})


class Meeting(BaseRetriever):
    """Notes the thread it is asked in, and waits there."""

    threads: set[int]
    wait: Callable[[], object]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.threads.add(threading.get_ident())
        self.wait()
        return [A]


def test_children_are_searched_at_once_and_not_one_after_another() -> None:
    in_turn = Meeting(threads=set(), wait=lambda: None)
    theirs, _ = ensembles(in_turn, in_turn)
    theirs.invoke("pump")
    assert in_turn.threads == {threading.get_ident()}
    together = Meeting(threads=set(), wait=threading.Barrier(2, timeout=60).wait)
    _, ours = ensembles(together, together)
    assert not ours.search("pump").skipped


async def test_k_of_a_call_counts() -> None:
    theirs, ours = ensembles(child(*documents()))
    assert len(theirs.invoke("pump", k=1)) == len(await theirs.ainvoke("pump", k=1)) == len(TEXTS)
    assert len(ours.invoke("pump", k=1)) == len(await ours.ainvoke("pump", k=1)) == 1


class Down(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise ConnectionError("the server is down")


async def test_one_failing_child_does_not_fail_the_search() -> None:
    theirs, ours = ensembles(Down(), child(A))
    with pytest.raises(ConnectionError):
        theirs.invoke("pump")
    with pytest.raises(ConnectionError):
        await theirs.ainvoke("pump")
    for found in (ours.invoke("pump"), await ours.ainvoke("pump")):
        assert ids(found) == ["a"]
        assert degraded(found) == "child 0: ConnectionError"


def test_a_fused_document_has_its_score() -> None:
    theirs, ours = ensembles(child(A), child(B, A))
    assert [document.metadata for document in theirs.invoke("pump")] == [{}, {}]
    assert [document.metadata["relevance_score"] for document in ours.invoke("pump")] == [1 / 61 + 1 / 62, 1 / 61]


def test_two_documents_of_the_same_text_stay_two_where_their_metadata_says_so() -> None:
    one, other = (Document("Close the valve.", id=name, metadata={"page": page}) for page, name in enumerate("ab"))
    for children in ((child(one), child(other)), (child(one, other), child(C))):
        theirs, ours = ensembles(*children)
        assert {"a", "b"} & set(ids(theirs.invoke("valve"))) == {"a"}
        assert {"a", "b"} <= set(ids(ours.invoke("valve")))
    same = Document("Close the valve.", id="c", metadata={"page": 0, "source": "valve.pdf"})
    for retriever in ensembles(child(one), child(same)):
        assert ids(retriever.invoke("valve")) == ["a"]


def test_a_repeat_in_one_list_is_not_credited_again() -> None:
    theirs, ours = ensembles(child(A, B, B))
    assert ids(theirs.invoke("pump")) == ["b", "a"]
    assert ids(ours.invoke("pump")) == ["a", "b"]


def test_a_negative_weight_is_refused() -> None:
    theirs, _ = ensembles(child(A), child(B, A), weights=[1.0, -1.0])
    assert ids(theirs.invoke("pump")) == ["a", "b"]
    with pytest.raises(ConfigError, match="at least 0"):
        HybridRetriever(
            channels={"one": child(A), "other": child(B, A)}, fusion=Fusion(weights={"one": 1.0, "other": -1.0})
        )


def test_a_misspelt_option_is_refused() -> None:
    theirs, _ = ensembles(child(A), child(B, A), wieghts=[1.0, 0.0])
    assert theirs.weights == [0.5, 0.5]
    with pytest.raises(ConfigError, match="'weights'"):
        HybridRetriever(channels={"one": child(A), "other": child(B, A)}, fusion={"wieghts": {"other": 0.0}})
    keyword(["cat sat"], preproces_func=str.split)
    with pytest.raises(ConfigError, match="preproces_func"):
        BM25Retriever.from_texts(["cat sat"], preproces_func=str.split)


# BM25Retriever


def keyword(given: Sequence[str], k: int = 4, **options: Any) -> tuple[Any, BM25Retriever]:
    """Theirs and ours over the same texts."""
    pytest.importorskip("rank_bm25")
    theirs = peer("langchain_community.retrievers.BM25Retriever").from_texts(given, k=k, **options)
    return theirs, BM25Retriever.from_texts(given, k=k)


def test_a_word_is_found_whatever_its_case_and_the_punctuation_beside_it() -> None:
    theirs, ours = keyword(["The Pump: how it leaks.", "A red lamp", "A green door"], k=1)
    assert texts(theirs.invoke("pump leaks")) == ["A green door"]
    assert texts(ours.invoke("pump leaks")) == ["The Pump: how it leaks."]


def test_no_match_gives_no_documents() -> None:
    theirs, ours = keyword(list(TEXTS.values()), k=2)
    assert texts(theirs.invoke("zeppelin")) == [TEXTS["door"], TEXTS["lamp"]]
    assert ours.invoke("zeppelin") == []


def test_a_word_of_one_in_two_documents_finds_it() -> None:
    theirs, ours = keyword(["cat sat", "dog ran"], k=1)
    assert texts(theirs.invoke("cat")) == ["dog ran"]
    assert texts(ours.invoke("cat")) == ["cat sat"]


def test_an_empty_corpus_gives_no_documents() -> None:
    with pytest.raises(ZeroDivisionError):
        keyword([])
    assert BM25Retriever.from_texts([]).invoke("pump") == []


def test_a_found_document_is_not_the_index_own() -> None:
    for retriever, changed in zip(keyword(["cat sat"]), (True, False), strict=True):
        retriever.invoke("cat")[0].metadata["seen"] = True
        assert ("seen" in retriever.invoke("cat")[0].metadata) == changed


# ParentDocumentRetriever


class Children(InMemoryVectorStore):
    """Finds two children of one parent, then one of another and one of a parent that is gone."""

    def __init__(self) -> None:
        super().__init__(DeterministicFakeEmbedding(size=8))

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return self.found()[:k]

    def found(self) -> list[Document]:
        owners = {"a": "first", "b": "first", "c": "second", "d": "gone"}
        return [Document(f"text {key}", id=key, metadata={"doc_id": owner}) for key, owner in owners.items()]


def with_parents(k: int) -> tuple[Any, HybridRetriever]:
    """Theirs and ours over the same children and parents."""
    docstore = InMemoryStore()
    docstore.mset([(key, Document(f"all of the {key}", id=key)) for key in ("first", "second")])
    splitter = peer("langchain_text_splitters.CharacterTextSplitter")()
    make = peer("langchain_classic.retrievers.ParentDocumentRetriever")
    theirs = make(vectorstore=Children(), docstore=docstore, child_splitter=splitter, search_kwargs={"k": k})
    with pytest.raises(ValidationError, match="VectorStore"):
        make(vectorstore=child(*Children().found()), docstore=docstore, child_splitter=splitter)
    below = HybridRetriever(channels={"child": child(*Children().found())}, k=k)
    return theirs, below >> ParentExpander(store=docstore)


async def test_k_counts_parents() -> None:
    theirs, ours = with_parents(k=2)
    assert texts(theirs.invoke("pump")) == ["all of the first"]
    assert texts(ours.invoke("pump")) == ["all of the first", "all of the second"]
    assert await ours.ainvoke("pump") == ours.invoke("pump")


def test_a_parent_has_its_childs_score_and_id() -> None:
    theirs, ours = with_parents(k=2)
    assert [(found.id, found.metadata) for found in theirs.invoke("pump")] == [("first", {})]
    first, second = ours.invoke("pump")
    assert (first.id, first.metadata["relevance_score"]) == ("a", 1 / 61)
    assert (second.id, second.metadata["relevance_score"]) == ("c", 1 / 63)


def test_a_child_whose_parent_is_gone_is_not_lost() -> None:
    theirs, ours = with_parents(k=4)
    assert texts(theirs.invoke("pump")) == ["all of the first", "all of the second"]
    found = ours.invoke("pump")
    assert texts(found) == ["all of the first", "all of the second", "text d"]
    assert "1 of 3 parents are not in the store" in degraded(found)


# create_retriever_tool


def test_a_tool_names_its_sources() -> None:
    source = Document("Close the valve.", id="a", metadata={"source": "manual.pdf", "page": 2})
    call = ToolCall(name="search", args={"query": "valve"}, id="1", type="tool_call")
    theirs = create_retriever_tool(child(source), "search", "Searches.").invoke(call)
    assert (theirs.content, theirs.artifact) == ("Close the valve.", None)
    ours = retrieval_tool(child(source)).invoke(call)
    assert "[1] [Source: manual.pdf, p.3]\nClose the valve." in ours.content
    assert ids(ours.artifact["documents"]) == ["a"]
