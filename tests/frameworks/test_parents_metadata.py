"""A parent that is read in place of its child brings its metadata, so that citations name the parent's source."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.stores import InMemoryStore
from llama_index.core.schema import MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from voicevault_retrievers import ContextBuilder, langchain, llama_index
from voicevault_retrievers.langchain.convert import hit_of
from voicevault_retrievers.llama_index.convert import chunk_of, stored
from voicevault_retrievers.store import KnowledgeBase

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
        llama_index.HybridRetriever("kept", root=tmp_path, preset=str(preset)),
        llama_index.HybridRetriever("kept", root=tmp_path, preset=_plain(tmp_path))
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
