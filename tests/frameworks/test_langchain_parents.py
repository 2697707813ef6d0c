"""ParentExpander: parents from wherever LangChain keeps them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.stores import BaseStore, InMemoryByteStore, InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore

from tests.frameworks.langchain_parts import ids
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, ContextExpansionError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, VectorRetriever
from voicevault_retrievers.langchain.parents import ParentExpander
from voicevault_retrievers.langchain.stores import documents_of
from voicevault_retrievers.store import KnowledgeBase

PUMP = "The pump seal is rated for hot water. Flush the pump housing before the seal is changed."
LAMP = "The warning lamp blinks red. Close the door of the cabinet."
PARENTS = {"pump": Document(PUMP, metadata={"team": "red"}), "lamp": Document(LAMP, metadata={"team": "blue"})}
CHILDREN = [
    Document("Flush the pump housing", id="c1", metadata={"parent_id": "pump", "team": "red", "tags": ["a"]}),
    Document("The pump seal is rated", id="c2", metadata={"parent_id": "pump", "team": "red"}),
    Document("The warning lamp of the pump", id="c3", metadata={"parent_id": "lamp", "team": "red"}),
    Document("A pump stands alone", id="c4", metadata={"team": "red"}),
    Document("The parent of this pump is lost", id="c5", metadata={"parent_id": "lost", "team": "red"}),
]


def as_json(document: Document) -> str:
    return json.dumps({"id": "x", "text": document.page_content, "token_count": 9, "metadata": document.metadata})


def texts(found: Sequence[Document]) -> dict[str | None, str]:
    return {document.id: document.page_content for document in found}


def in_memory() -> InMemoryStore:
    store = InMemoryStore()
    store.mset(list(PARENTS.items()))
    return store


def in_bytes() -> InMemoryByteStore:
    store = InMemoryByteStore()
    store.mset([(f"parent:{key}", as_json(parent).encode()) for key, parent in PARENTS.items()])
    store.mset([("parent:lost", b'{"text": 3}')])
    return store


class SyncOnly(InMemoryStore):
    """A store without an async call of its own."""

    amget = BaseStore.amget


def in_a_base(folder: Path) -> KnowledgeBase:
    kb = KnowledgeBase.create("kb", root=folder)
    parents = [Chunk(key, parent.page_content, metadata=parent.metadata) for key, parent in PARENTS.items()]
    kb.add([Chunk(child.id or "", child.page_content, child.metadata.get("parent_id")) for child in CHILDREN],
           parents=parents)  # fmt: skip
    return kb


@pytest.fixture(params=["mapping", "JSON", "store", "sync store", "bytes", "knowledge base"])
def expander(request: pytest.FixtureRequest, tmp_path: Path) -> ParentExpander:
    made: dict[str, Any] = {
        "mapping": lambda: ParentExpander(store=PARENTS),
        "JSON": lambda: ParentExpander(store={**{k: as_json(p) for k, p in PARENTS.items()}, "lost": "[" * 9**5}),
        "store": lambda: ParentExpander(store=in_memory()),
        "sync store": lambda: ParentExpander(store=SyncOnly()),
        "bytes": lambda: ParentExpander(store=in_bytes(), key_prefix="parent:"),
        "knowledge base": lambda: ParentExpander(store=in_a_base(tmp_path)),
    }
    built: ParentExpander = made[request.param]()
    if request.param == "sync store":
        built.store.mset(list(PARENTS.items()))
    return built


async def test_every_store_gives_the_same(expander: ParentExpander) -> None:
    given = BM25Retriever.from_documents(CHILDREN).invoke("pump")
    before = copy.deepcopy(given)
    found = expander.compress_documents(given, "pump")
    assert given == before
    best = min(ids(given).index("c1"), ids(given).index("c2"))
    assert ids(found) == [key for at, key in enumerate(ids(given)) if key not in ("c1", "c2") or at == best]
    shown = texts(found)
    assert [shown[key] for key in ("c3", "c4", "c5")] == [LAMP, CHILDREN[3].page_content, CHILDREN[4].page_content]
    assert [document.page_content for document in found][ids(found).index(ids(given)[best])] == PUMP
    for document in found:
        (old,) = [d for d in before if d.id == document.id]
        assert document.metadata["relevance_score"] == old.metadata["relevance_score"]
        told = document.metadata["voicevault"]
        assert told["channels"] == old.metadata["voicevault"]["channels"]
        assert told.get("text") == (None if document.page_content == old.page_content else old.page_content)
        assert told["degraded"] == ["parents: ContextExpansionError: 1 of 3 parents are not in the store"]
    assert await expander.acompress_documents(given, "pump") == found


async def test_a_store_that_fails_keeps_the_documents() -> None:
    class Down(InMemoryStore):
        def mget(self, keys: Sequence[str]) -> list[Any]:
            raise ConnectionError("no route to host")

        async def amget(self, keys: Sequence[str]) -> list[Any]:
            raise ConnectionError("no route to host")

    expander = ParentExpander(store=Down())
    found = expander.compress_documents(CHILDREN, "pump")
    assert texts(found) == texts(CHILDREN)
    (told,) = found[0].metadata["voicevault"]["degraded"]
    assert told == "parents: ContextExpansionError: parents could not be fetched: ConnectionError"
    assert await expander.acompress_documents(CHILDREN, "pump") == found
    strict = ParentExpander(store=Down(), on_error="raise")
    with pytest.raises(ContextExpansionError):
        strict.compress_documents(CHILDREN, "pump")
    with pytest.raises(ContextExpansionError):
        await strict.acompress_documents(CHILDREN, "pump")
    with pytest.raises(ContextExpansionError, match="1 of 3"):
        ParentExpander(store=PARENTS, on_error="raise").compress_documents(CHILDREN, "pump")


async def test_over_the_docstore_of_langchains_parent_document_retriever() -> None:
    retrievers = pytest.importorskip("langchain_classic.retrievers")
    splitters = pytest.importorskip("langchain_text_splitters")
    vectors = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    peer = retrievers.ParentDocumentRetriever(
        vectorstore=vectors,
        docstore=InMemoryStore(),
        child_splitter=splitters.CharacterTextSplitter(separator=". ", chunk_size=40, chunk_overlap=0),
        search_kwargs={"k": 4},
    )
    peer.add_documents([Document(PUMP), Document(LAMP)], ids=["pump", "lamp"])
    children = documents_of(vectors)
    assert len(children) == 4
    base = VectorRetriever.from_documents(children, HashEmbedder(), k=4)
    ours = retrievers.ContextualCompressionRetriever(
        base_retriever=base, base_compressor=ParentExpander(store=peer.docstore)
    )
    found = ours.invoke("the warning lamp blinks")
    assert [document.page_content for document in found] == [LAMP, PUMP]
    scores = {document.id: document.metadata["relevance_score"] for document in base.invoke("the warning lamp blinks")}
    assert [document.metadata["relevance_score"] for document in found] == [scores[document.id] for document in found]
    assert await ours.ainvoke("the warning lamp blinks") == found
    assert all("relevance_score" not in document.metadata for document in peer.invoke("lamp"))

    peer.docstore.mdelete(["lamp"])
    assert [document.page_content for document in peer.invoke("lamp")] == [PUMP]  # two of its children were found
    found = ours.invoke("the warning lamp blinks")
    of_lamp = {document.id: document.page_content for document in children if document.metadata["doc_id"] == "lamp"}
    assert len(of_lamp) == 2
    assert of_lamp.items() <= texts(found).items()
    assert "1 of 2 parents" in found[0].metadata["voicevault"]["degraded"][0]


def test_the_key_of_the_parents_id_can_be_named() -> None:
    given = [Document("a", metadata={"doc_id": "lamp"}), Document("b", metadata={"of": "pump", "doc_id": "lamp"})]
    assert [d.page_content for d in ParentExpander(store=PARENTS).compress_documents(given, "q")] == [LAMP]
    named = ParentExpander(store=PARENTS, id_key="of").compress_documents(given, "q")
    assert [d.page_content for d in named] == ["a", PUMP]
    assert named[1].metadata["doc_id"] == "lamp"
    assert [d.page_content for d in ParentExpander(store=PARENTS, id_key=None).compress_documents(given, "q")] == [
        "a", "b",
    ]  # fmt: skip


def test_rights_hold_for_parents_too() -> None:
    expander = ParentExpander(store=PARENTS, require={"team": "red"})
    found = texts(expander.compress_documents(CHILDREN[:4], "pump"))
    assert found == {"c1": PUMP, "c3": CHILDREN[2].page_content, "c4": CHILDREN[3].page_content}
    expander.require = {"team": "blue"}
    assert texts(expander.compress_documents(CHILDREN[:1], "pump")) == {"c1": CHILDREN[0].page_content}
    searched = HybridRetriever.from_documents(
        CHILDREN[:4], HashEmbedder(), require={"team": "red"}, stages=[ParentExpander(store=PARENTS)], k=4
    )
    inside = texts(searched.invoke("warning lamp pump"))
    assert inside["c3"] == CHILDREN[2].page_content
    assert PUMP in inside.values()
    assert LAMP not in inside.values()


def test_the_budget_and_the_models_tokenizer() -> None:
    found = ParentExpander(store=PARENTS, max_chars=len(PUMP)).compress_documents([CHILDREN[0], CHILDREN[2]], "pump")
    assert [document.page_content for document in found] == [PUMP, ""]
    assert [document.metadata["voicevault"].get("over_budget") for document in found] == [None, True]
    assert found[1].metadata["voicevault"]["text"] == CHILDREN[2].page_content
    counted = ParentExpander(store=PARENTS, max_tokens=9, count_tokens=lambda text: len(text.split()))
    assert texts(counted.compress_documents([CHILDREN[0]], "pump")) == {"c1": CHILDREN[0].page_content}


@pytest.mark.parametrize(
    "options",
    [{"store": "kb"}, {"store": PARENTS, "max_chars": 0}, {"store": PARENTS, "count_tokens": 3}, {"stor": PARENTS}, {},
     {"store": PARENTS, "require": {"$x": 1}}],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ParentExpander(**options)


def test_a_prefix_is_for_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key_prefix"):
        ParentExpander(store=in_a_base(tmp_path), key_prefix="parent:")
