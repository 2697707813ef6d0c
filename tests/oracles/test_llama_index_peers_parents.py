"""The faults of LlamaIndex's parents, neighbours and windows beside this package; see test_llama_index_peers.py.

AutoMergingRetriever
    k counts children                              test_k_counts_parents
    a parent has the mean of its children's scores test_a_parent_has_its_best_childs_score_and_id
    a missing score becomes 0                      test_a_missing_score_stays_missing
    raises where a parent is missing               test_a_child_whose_parent_is_gone_is_not_lost
    its async search is the sync one on the loop   test_parents_are_fetched_beside_the_event_loop
PrevNextNodePostprocessor
    raises where a neighbour is missing            test_a_missing_neighbour_fails_no_query
    what it adds counts beside k, without a score  test_what_is_around_a_node_adds_no_node
MetadataReplacementPostProcessor
    writes into what it was given                  test_given_nodes_keep_their_text
    a window that two nodes share comes twice      test_a_shared_window_comes_once
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from llama_index.core import StorageContext
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import MetadataReplacementPostProcessor, PrevNextNodePostprocessor
from llama_index.core.retrievers import AutoMergingRetriever
from llama_index.core.schema import BaseNode, Document, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from tests.frameworks.llama_index_parts import ListRetriever
from tests.oracles.llama_index_peers import degraded, pairs
from voicevault_retrievers.llama_index import HybridRetriever, provenance
from voicevault_retrievers.llama_index.parents import ParentExpansionPostprocessor, SentenceWindowPostprocessor

# AutoMergingRetriever

PARENTS = {"first": "ab", "second": "c"}


def related(kind: NodeRelationship, node_id: str) -> dict[Any, Any]:
    return {kind: RelatedNodeInfo(node_id=node_id)}


def child(name: str, score: float | None, parent: str = "gone") -> NodeWithScore:
    node = TextNode(id_=name, text=f"text {name}", relationships=related(NodeRelationship.PARENT, parent))
    return NodeWithScore(node=node, score=score)


class Docstore(SimpleDocumentStore):
    """Holds the parents, and notes the threads in which it is not awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        for parent, names in PARENTS.items():
            children = {NodeRelationship.CHILD: [RelatedNodeInfo(node_id=name) for name in names]}
            self.add_documents([TextNode(id_=parent, text=f"all of the {parent}", relationships=children)])

    def get_document(self, doc_id: str, raise_error: bool = True) -> BaseNode | None:
        self.threads.append(threading.get_ident())
        return super().get_document(doc_id, raise_error)


def merging(*found: NodeWithScore, k: int = 9) -> tuple[AutoMergingRetriever, HybridRetriever, Docstore]:
    """Theirs and ours over the same children and parents; theirs has no k, it is that of the children."""
    docstore = Docstore()
    children: Any = ListRetriever(list(found[:k]))
    theirs = AutoMergingRetriever(children, StorageContext.from_defaults(docstore=docstore))
    ours = HybridRetriever(
        channels={"child": ListRetriever(list(found))},
        k=k,
        fusion="rrf",
        node_postprocessors=[ParentExpansionPostprocessor(docstore)],
    )
    return theirs, ours, docstore


def texts(found: list[NodeWithScore]) -> list[str]:
    return [node.text for node in found]


CHILDREN = (child("a", 0.9, "first"), child("b", 0.3, "first"), child("c", 0.2, "second"))


async def test_k_counts_parents() -> None:
    theirs, ours, _ = merging(*CHILDREN, k=2)
    assert texts(theirs.retrieve("pump")) == ["all of the first"]
    assert texts(ours.retrieve("pump")) == ["all of the first", "all of the second"]
    assert texts(await ours.aretrieve("pump")) == ["all of the first", "all of the second"]


def test_a_parent_has_its_best_childs_score_and_id() -> None:
    theirs, ours, _ = merging(*CHILDREN)
    assert pairs(theirs.retrieve("pump")) == [("first", pytest.approx((0.9 + 0.3) / 2)), ("second", 0.2)]
    found = ours.retrieve("pump")
    assert pairs(found) == [("a", 1 / 61), ("c", 1 / 63)]
    assert (provenance(found[0]) or {})["channels"]["child"]["score"] == 0.9


def test_a_missing_score_stays_missing() -> None:
    theirs, _, docstore = merging(child("c", None, "second"))
    assert pairs(theirs.retrieve("pump")) == [("second", 0.0)]
    found = ParentExpansionPostprocessor(docstore).postprocess_nodes([child("c", None, "second")], query_str="pump")
    assert pairs(found) == [("c", None)]
    assert texts(found) == ["all of the second"]


async def test_a_child_whose_parent_is_gone_is_not_lost() -> None:
    theirs, ours, _ = merging(*CHILDREN, child("d", 0.1, "gone"))
    with pytest.raises(ValueError, match="gone not found"):
        theirs.retrieve("pump")
    for found in (ours.retrieve("pump"), await ours.aretrieve("pump")):
        assert texts(found) == ["all of the first", "all of the second", "text d"]
        assert "1 of 3 parents are not in the store" in degraded(found)


async def test_parents_are_fetched_beside_the_event_loop() -> None:
    theirs, ours, docstore = merging(*CHILDREN)
    await theirs.aretrieve("pump")
    assert set(docstore.threads) == {threading.get_ident()}
    docstore.threads.clear()
    assert texts(await ours.aretrieve("pump")) == ["all of the first", "all of the second"]
    assert threading.get_ident() not in docstore.threads


# PrevNextNodePostprocessor


def test_a_missing_neighbour_fails_no_query() -> None:
    lost = child("a", 0.9)
    lost.node.relationships |= related(NodeRelationship.NEXT, "gone")
    with pytest.raises(ValueError, match="gone not found"):
        PrevNextNodePostprocessor(docstore=Docstore()).postprocess_nodes([lost])
    found = ParentExpansionPostprocessor(Docstore()).postprocess_nodes([lost])
    assert (pairs(found), texts(found)) == ([("a", 0.9)], ["text a"])
    assert "1 of 1 parents are not in the store" in degraded(found)


def sentences() -> list[NodeWithScore]:
    """Three in a row, each with its neighbours as its window; the second is the best."""
    parser = SentenceWindowNodeParser.from_defaults(
        sentence_splitter=lambda text: [f"{one}. " for one in text.split(". ")], window_size=1
    )
    first, second, third = parser.get_nodes_from_documents([Document(text="One. Two. Three")])
    return [NodeWithScore(node=node, score=score) for node, score in ((second, 0.9), (first, 0.5), (third, 0.4))]


def test_what_is_around_a_node_adds_no_node() -> None:
    docstore, found = SimpleDocumentStore(), sentences()
    docstore.add_documents([node.node for node in found])
    theirs = PrevNextNodePostprocessor(docstore=docstore, mode="both").postprocess_nodes(found[:1])
    assert [(node.text.strip(), node.score) for node in theirs] == [("One.", None), ("Two.", 0.9), ("Three.", None)]
    (ours,) = SentenceWindowPostprocessor().postprocess_nodes(found[:1])
    assert (ours.text.split(), ours.score) == (["One.", "Two.", "Three."], 0.9)


# MetadataReplacementPostProcessor


def windows() -> tuple[MetadataReplacementPostProcessor, SentenceWindowPostprocessor]:
    return MetadataReplacementPostProcessor("window"), SentenceWindowPostprocessor()


def test_given_nodes_keep_their_text() -> None:
    for postprocessor, changed in zip(windows(), (True, False), strict=True):
        given = sentences()
        postprocessor.postprocess_nodes(given)
        assert (texts(given) != texts(sentences())) == changed


def test_a_shared_window_comes_once() -> None:
    theirs, ours = (postprocessor.postprocess_nodes(sentences()) for postprocessor in windows())
    assert [text.count("Two.") for text in texts(theirs)] == [1, 1, 1]
    assert [text.split() for text in texts(ours)] == [["One.", "Two.", "Three."]]
