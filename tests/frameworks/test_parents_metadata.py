"""A parent that is read in place of its child brings its metadata, so that citations name the parent's source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from tests.helpers import HashEmbedder
from voicevault_retrievers import Chunk, ContextBuilder, langchain, llama_index
from voicevault_retrievers.langchain.convert import hit_of
from voicevault_retrievers.llama_index.convert import chunk_of, stored
from voicevault_retrievers.store import KnowledgeBase, export, restore

PARENT = {"title": "Manual", "source": "manual.pdf", "page": 7, "parent_id": "book", "note": "internal"}
CHILD = {"source": "part.txt", "page": 1, "start_index": 40, "doc_id": "p"}
READ = {"title": "Manual", "source": "manual.pdf", "page": 7, "start_index": 40, "doc_id": "p", "note": "internal"}
TEXT, WHOLE = "the pump hums", "before the pump hums, and after"


def own(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in ("voicevault", "relevance_score")}


@pytest.mark.parametrize(
    "store",
    [
        {"p": Document(WHOLE, metadata=PARENT)},
        {"p": {"text": WHOLE, "metadata": PARENT}},
        {"p": json.dumps({"text": WHOLE, "metadata": PARENT}).encode()},
        InMemoryStore(),
    ],
    ids=["documents", "mappings", "JSON", "BaseStore"],
)
async def test_langchains_parent_brings_its_metadata_with_the_childs_under_it(store: Any) -> None:
    if isinstance(store, InMemoryStore):
        store.mset([("p", Document(WHOLE, metadata=PARENT))])
    child = Document(TEXT, id="c", metadata=dict(CHILD))
    retriever = langchain.BM25Retriever.from_documents([child])
    expander = langchain.ParentExpander(store=store)
    (alone,) = expander.compress_documents([child], "pump")
    (piped,) = (retriever >> expander).invoke("pump")
    (awaited,) = await (retriever >> expander).ainvoke("pump")
    for found in (alone, piped, awaited):
        assert (found.id, found.page_content, own(found.metadata)) == ("c", WHOLE, READ)
        assert found.metadata["voicevault"]["text"] == TEXT
    (cited,) = ContextBuilder().build([hit_of(piped)]).citations
    assert (cited.source_file, cited.page_number, cited.chunk_id) == ("manual.pdf", 8, "c")
    assert child.metadata == CHILD
    (again,) = expander.compress_documents([alone], "pump")
    assert (again.page_content, own(again.metadata)) == (WHOLE, READ)


def nodes() -> tuple[TextNode, TextNode]:
    parent = TextNode(id_="p", text=WHOLE, metadata=dict(PARENT), excluded_llm_metadata_keys=["note", "parent_id"])
    child = TextNode(
        id_="c", text=TEXT, metadata=dict(CHILD), excluded_llm_metadata_keys=["doc_id", "page"], start_char_idx=40
    )
    child.relationships[NodeRelationship.PARENT] = RelatedNodeInfo(node_id="p")
    return parent, child


async def test_llama_indexs_parent_brings_its_metadata_and_what_a_model_does_not_see_of_it() -> None:
    parent, child = nodes()
    docstore = SimpleDocumentStore()
    docstore.add_documents([parent])
    expansion = llama_index.ParentExpansionPostprocessor(docstore)
    retriever = llama_index.BM25Retriever.from_nodes([child])
    (alone,) = expansion.postprocess_nodes([NodeWithScore(node=child, score=0.5)], query_str="pump")
    (piped,) = (retriever >> expansion).retrieve("pump")
    (awaited,) = await (retriever >> expansion).aretrieve("pump")
    for found in (alone, piped, awaited):
        assert (found.node_id, found.text, own(found.metadata)) == ("c", WHOLE, READ)
        assert found.node.parent_node is not None
        assert found.node.parent_node.node_id == "p"
        shown = found.node.get_content(MetadataMode.LLM)
        assert "title: Manual" in shown
        assert "page: 7" in shown
        assert "internal" not in shown
        assert "doc_id" not in shown
    assert child.metadata == CHILD
    assert child.excluded_llm_metadata_keys == ["doc_id", "page"]


def test_a_kept_node_has_its_parents_metadata_too(tmp_path: Any) -> None:
    parent, child = nodes()
    with KnowledgeBase.create("kept", root=tmp_path) as kb:
        kb.add([stored(chunk_of(child))], parents=[stored(chunk_of(parent))])
    preset = tmp_path / "parents.yaml"
    preset.write_text("version: 1\nchannels: {bm25: {}}\nstages: [parents]\n")
    for retriever in (
        llama_index.HybridRetriever(tmp_path / "kept", preset=str(preset)),
        llama_index.HybridRetriever(tmp_path / "kept", preset=_plain(tmp_path))
        >> llama_index.ParentExpansionPostprocessor({"p": parent}),
    ):
        (found,) = retriever.retrieve("pump")
        assert (found.node_id, found.text, own(found.metadata)) == ("c", WHOLE, READ)


def _plain(folder: Any) -> str:
    preset = folder / "plain.yaml"
    preset.write_text("version: 1\nchannels: {bm25: {}}\n")
    return str(preset)


@pytest.mark.parametrize("team", ["red", "blue"])
def test_rights_are_those_of_the_child_and_of_the_parent(team: str) -> None:
    """What is read is permitted by both; a later stage checks the hit by what permitted it."""
    store = {"p": Document(WHOLE, metadata={"team": "red", "level": 1})}
    child = Document(TEXT, id="c", metadata={"team": "red", "draft": False, "doc_id": "p"})
    require = {"team": team, "$or": [{"draft": False}, {"draft": {"$exists": False}}]}
    retriever = langchain.BM25Retriever.from_documents([child]) >> langchain.ParentExpander(store=store)
    found = (retriever >> langchain.PageDiversityFilter()).invoke("pump", require=require)
    assert [document.page_content for document in found] == ([WHOLE] if team == "red" else [])


KINDS = {"p": "parent", "c": "child", "s": "standalone"}
"""The chunk_type of three texts that are alike."""


def documents() -> list[Document]:
    return [Document(f"the pump hums {name}", id=name, metadata={"chunk_type": kind}) for name, kind in KINDS.items()]


def pieces() -> list[TextNode]:
    row = HashEmbedder().embed_documents(["the pump hums"])[0].tolist()
    kinds = KINDS.items()
    return [
        TextNode(id_=name, text=f"the pump hums {name}", metadata={"chunk_type": kind}, embedding=row)
        for name, kind in kinds
    ]


def bases(folder: Path) -> Iterator[KnowledgeBase]:
    """Knowledge bases that the texts came into in each way that there is."""
    options: dict[str, Any] = {"embedder": HashEmbedder()}
    chunks = [Chunk(one.id or "", one.page_content, metadata=one.metadata) for one in documents()]
    added = KnowledgeBase.create(folder / "added", **options)
    assert added.add(chunks[1:]).added == 2
    assert added.add(chunks[:1]).added == 0
    yield added
    replaced = KnowledgeBase.create(folder / "replaced", **options)
    replaced.add([replace(chunk, metadata={}) for chunk in chunks])
    assert replaced.add(chunks).removed == 1  # what was searched is a parent now
    yield replaced
    export(added, folder / "export")
    lines = (folder / "export").read_text(encoding="utf-8")
    assert '"parent": {' in lines
    yield restore(folder / "export", folder / "restored", **options)
    index = langchain.HybridIndex.open(folder / "langchain", embeddings=HashEmbedder())
    assert index.upsert(documents())["succeeded"] == list(KINDS)
    yield index.kb
    store = llama_index.HybridVectorStore.open(folder / "llama", embed_model=HashEmbedder())
    assert store.add(pieces()) == list(KINDS)
    yield store.client


def test_a_chunk_of_the_type_parent_is_never_found_in_a_knowledge_base(tmp_path: Path) -> None:
    for base in bases(tmp_path):
        assert sorted(base.bm25().search("pump", 9).ids) == ["c", "s"] == base.ids(), base
        assert sorted(base.dense().search("the pump hums", 9).ids) == ["c", "s"], base
        assert base.dense().index.vectors(["p"]) == {}, base
        assert base.parents(["p"])["p"].text == "the pump hums p", base


def test_a_document_of_the_type_parent_is_never_found_by_a_retriever(tmp_path: Path) -> None:
    embedder = HashEmbedder()
    stored_there = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    stored_there.add_documents(documents())
    over_store = langchain.BM25Retriever.from_vector_store(stored_there)
    made: list[Any] = [
        langchain.BM25Retriever.from_documents(documents()),
        langchain.VectorRetriever.from_documents(documents(), embedder),
        langchain.VectorRetriever.from_documents(documents(), embedder, persist_dir=tmp_path / "lc"),
        langchain.HybridRetriever.from_documents(documents(), embedder),
        over_store,
        langchain.VectorRetriever(vectorstore=stored_there),
    ]
    for retriever in made:
        assert {document.id for document in retriever.invoke("the pump hums", k=9)} == {"c", "s"}, retriever
    for retriever in (made[0], made[3]):
        retriever.add(documents())
        assert {document.id for document in retriever.invoke("the pump hums", k=9)} == {"c", "s"}, retriever
        retriever.add([Document("the pump hums", id="s", metadata={"chunk_type": "parent"})])
        assert {document.id for document in retriever.invoke("the pump hums", k=9)} == {"c"}, retriever
    assert not over_store.refresh()


def test_a_node_of_the_type_parent_is_never_found_by_a_retriever(tmp_path: Path) -> None:
    embedder = HashEmbedder()
    index = VectorStoreIndex(pieces(), embed_model=MockEmbedding(embed_dim=16))
    made: list[Any] = [
        llama_index.BM25Retriever.from_nodes(pieces()),
        llama_index.VectorRetriever.from_nodes(pieces(), embedder),
        llama_index.HybridRetriever.from_nodes(pieces(), embedder),
        llama_index.HybridRetriever.from_index(index),
    ]
    for retriever in made:
        found = {node.node_id for node in retriever.with_options(k=9).retrieve("the pump hums")}
        assert found == {"c", "s"}, retriever
    for retriever in (made[0], made[2]):
        retriever.add(pieces())
        assert {node.node_id for node in retriever.retrieve("the pump hums")} == {"c", "s"}, retriever
