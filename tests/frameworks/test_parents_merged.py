"""Parents in both frameworks: texts that overlap come once, headers stand above the first (CAPABILITIES B and E)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.documents import Document
from llama_index.core import Document as LlamaDocument
from llama_index.core.node_parser import HierarchicalNodeParser, get_leaf_nodes
from llama_index.core.schema import BaseNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from voicevault_retrievers.langchain import BM25Retriever, ParentExpander
from voicevault_retrievers.llama_index import ParentExpansionPostprocessor, provenance

BOOK = " ".join(f"Sentence {at} tells of the pump number {at}." for at in range(60))
HEADER = "State v. Smith, 2001"


def recursive(size: int, overlap: int) -> Any:
    return pytest.importorskip("langchain_text_splitters").RecursiveCharacterTextSplitter(
        separators=[". "], keep_separator="end", chunk_size=size, chunk_overlap=overlap, add_start_index=True
    )


def langchain_family() -> tuple[dict[str, Document], list[Document]]:
    """Parents of 700 characters that share 100, and their children."""
    split = recursive(700, 100).split_documents([Document(BOOK, metadata={"source": "book.pdf"})])
    parents = {f"p{at}": parent for at, parent in enumerate(split)}
    children = [
        Document(child.page_content, id=f"{name}.{at}", metadata={**child.metadata, "parent_id": name})
        for name, parent in parents.items()
        for at, child in enumerate(recursive(150, 0).split_documents([parent]))
    ]
    return parents, children


async def test_langchains_parents_that_overlap_come_once() -> None:
    parents, children = langchain_family()
    found = [child for child in children if child.metadata["parent_id"] in ("p0", "p1")][::3]
    expander = ParentExpander(store=parents)
    (only,) = expander.compress_documents(found, "q")
    assert (only.id, only.metadata["start_index"]) == (found[0].id, 0)
    assert BOOK.startswith(only.page_content)
    assert only.page_content.endswith(parents["p1"].page_content)
    assert only.metadata["voicevault"]["text"] == found[0].page_content
    assert await expander.acompress_documents(found, "q") == [only]
    apart = ParentExpander(store=parents, merge=False).compress_documents(found, "q")
    assert [document.page_content for document in apart] == [parents[name].page_content for name in ("p0", "p1")]


def test_langchains_documents_without_parents_that_adjoin_come_once() -> None:
    split = recursive(200, 0).split_documents([Document(BOOK, metadata={"source": "book.pdf", "page": 0})])
    kept = BM25Retriever.from_documents(split, k=3) >> ParentExpander(store={})
    found = kept.invoke("pump number 7 8 9 10")
    assert all(document.page_content.replace("\n", " ") in BOOK for document in found)
    places = [(BOOK.index(text), len(text)) for text in (d.page_content.replace("\n", " ") for d in found)]
    assert all(
        start + size < other for (start, size), (other, _) in zip(sorted(places), sorted(places)[1:], strict=False)
    )


def test_a_header_from_langchains_store_counts_in_the_budget() -> None:
    as_json = json.dumps({"id": "h", "text": HEADER, "token_count": 6, "metadata": {}})
    documents = [Document(f"text {name}", id=name, metadata={"header_id": "h"}) for name in "ab"]
    found = ParentExpander(store={"h": as_json}, header_key="header_id").compress_documents(documents, "q")
    assert [document.page_content for document in found] == [f"{HEADER}\n\ntext a", "text b"]
    tight = ParentExpander(store={"h": as_json}, header_key="header_id", max_chars=len(HEADER) + 7)
    assert [document.page_content for document in tight.compress_documents(documents, "q")] == ["text a", "text b"]


def hierarchy() -> tuple[SimpleDocumentStore, list[BaseNode]]:
    document = LlamaDocument(id_="doc", text=BOOK)
    parsed = HierarchicalNodeParser.from_defaults(chunk_sizes=[256, 64]).get_nodes_from_documents([document])
    store = SimpleDocumentStore()
    store.add_documents(parsed)
    return store, get_leaf_nodes(parsed)


async def test_llama_indexs_parents_that_overlap_come_once() -> None:
    store, leaves = hierarchy()
    parents = {leaf.parent_node.node_id: leaf for leaf in leaves if leaf.parent_node is not None}
    given = [NodeWithScore(node=leaf, score=1.0 - at / 10) for at, leaf in enumerate(parents.values())]
    assert len(given) > 1
    expand = ParentExpansionPostprocessor(store)
    (only,) = expand.postprocess_nodes(given)
    assert (only.node_id, only.score, only.text) == (given[0].node_id, 1.0, BOOK)
    assert (provenance(only) or {})["text"] == given[0].text
    assert await expand.apostprocess_nodes(given) == [only]
    apart = ParentExpansionPostprocessor(store, merge=False).postprocess_nodes(given)
    assert [node.text for node in apart] == [store.get_node(name).get_content() for name in parents]


def test_llama_indexs_nodes_that_follow_one_another_and_have_lost_their_parent_come_once() -> None:
    _, leaves = hierarchy()
    given = [NodeWithScore(node=leaves[at]) for at in (3, 0, 2)]
    found = ParentExpansionPostprocessor(SimpleDocumentStore()).postprocess_nodes(given)
    assert [node.node_id for node in found] == [leaves[3].node_id, leaves[0].node_id]
    assert found[0].text.replace("\n", " ") in BOOK
    assert all(leaves[at].get_content() in found[0].text for at in (2, 3))


@pytest.mark.parametrize("kept", ["JSON", "mapping", "node"])
def test_llama_index_reads_parents_and_headers_as_json(kept: str) -> None:
    told: dict[str, Any] = {"id": "p", "text": "The whole.", "token_count": 3, "metadata": {"team": "red"}}
    header = {**told, "text": HEADER}
    store: dict[str, Any] = {
        "JSON": {"p": json.dumps(told), "h": json.dumps(header).encode()},
        "mapping": {"p": told, "h": header},
        "node": {"p": TextNode(id_="p", text="The whole."), "h": TextNode(id_="h", text=HEADER)},
    }[kept]
    above = {NodeRelationship.PARENT: RelatedNodeInfo(node_id="p")}
    node = TextNode(id_="c", text="whole", metadata={"header_id": "h"}, relationships=above)
    (found,) = ParentExpansionPostprocessor(store, header_key="header_id").postprocess_nodes([NodeWithScore(node=node)])
    assert found.text == f"{HEADER}\n\nThe whole."
