"""LlamaIndex's BM25Retriever: changed in place, kept in a folder, made of a vector store."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import (
    BaseNode,
    Document,
    IndexNode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryResult

from tests.frameworks.llama_index_parts import KEPT, TEXTS, HashEmbedding, ids, nodes, where
from tests.helpers import ListChannel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.lexical import BM25, BM25Plus
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, provenance
from voicevault_retrievers.llama_index.convert import node_of
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

QUERIES = ["drain the pump before winter", "filter", "water level alarm", "zeppelin"]
NEW = TextNode(
    id_="spare",
    text="A spare filter for the pump",
    metadata={"key": 9, "owner": "ann"},
    relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="catalogue")},
)


def english(given: list[BaseNode] | None = None, **options: Any) -> BM25Retriever:
    return BM25Retriever.from_nodes(nodes() if given is None else given, language="en", **options)


def told(retriever: BM25Retriever) -> list[list[NodeWithScore]]:
    return [retriever.with_options(k=20).retrieve(query) for query in QUERIES]


def test_mistyped_words_and_prefixes_are_found_in_nodes_and_in_the_copy_of_an_index() -> None:
    given: list[BaseNode] = [TextNode(text="You receive a pump", id_="pump"), TextNode(text="Valves", id_="valve")]
    index = VectorStoreIndex(given, embed_model=HashEmbedding())
    for retriever in (
        BM25Retriever.from_nodes(given, operators=True, fuzzy=True),
        BM25Retriever.from_vector_store(index, operators=True, fuzzy=True),
    ):
        result = retriever.search("recieve")
        assert [hit.chunk.text for hit in result.hits] == ["You receive a pump"]
        assert [failure.message for failure in result.errors] == ["no chunk has 'recieve': 'receive' was searched"]
        assert not result.degraded
        assert [found.node.text for found in retriever.retrieve("valv*")] == ["Valves"]


# Adding and deleting


async def test_what_is_added_is_found_at_once_as_if_it_had_been_there_from_the_start() -> None:
    retriever, other = english(), english()
    assert retriever.add([NEW]) == await other.aadd(iter([NEW])) == ["spare"]
    assert told(retriever) == told(other) == told(english([*nodes(), NEW]))
    assert retriever.retrieve("spare") == await retriever.aretrieve("spare")
    assert retriever.retrieve("spare")[0].node == NEW


async def test_what_is_deleted_never_comes_back() -> None:
    retriever = english([*nodes(), NEW])
    assert retriever.delete(["spare", "missing"]) == 1
    assert await retriever.adelete(["spare"]) == 0
    assert told(retriever) == told(english())
    retriever.add([TextNode(id_="pump", text="Now about oil")])
    assert ids(retriever.retrieve("oil")) == ["pump"]
    assert ids(retriever.retrieve("first start of the season")) == []


async def test_the_nodes_of_a_document_go_together() -> None:
    child = TextNode(
        id_="child",
        text="A part of the pump",
        relationships={
            NodeRelationship.SOURCE: RelatedNodeInfo(node_id="catalogue"),
            NodeRelationship.PARENT: RelatedNodeInfo(node_id="section"),
        },
    )
    retriever = english([*nodes(), NEW, child])
    assert retriever.delete_ref_doc("section") == 0
    assert await retriever.adelete_ref_doc("catalogue") == 2
    assert told(retriever) == told(english())
    assert retriever.delete_ref_doc("manual") == len(TEXTS)
    assert retriever.delete_ref_doc("manual") == 0
    plain = BM25Retriever(BM25.from_chunks([Chunk("a", "pump", parent_id="manual"), Chunk("b", "pump")]))
    assert plain.delete_ref_doc("manual") == 1


async def test_a_change_runs_in_a_worker_thread() -> None:
    threads = []

    def splitting(text: str) -> list[str]:
        threads.append(threading.current_thread().name)
        return text.split()

    retriever = BM25Retriever.from_nodes([], analyzer=splitting)
    await retriever.aadd([NEW])
    await retriever.adelete_ref_doc("catalogue")
    assert set(threads) == {"voicevault-worker"}


def test_a_retriever_over_another_channel_says_what_it_cannot_do(tmp_path: Path) -> None:
    retriever = BM25Retriever(ListChannel([("a", 1.0)]))
    for change in (lambda: retriever.add([NEW]), lambda: retriever.delete(["a"]), lambda: retriever.persist(tmp_path)):
        with pytest.raises(ConfigError, match="only a BM25"):
            change()


def test_copies_share_the_index_and_pickles_do_not() -> None:
    retriever = english()
    twin, deep = retriever.with_options(k=1), copy.deepcopy(retriever)
    pickled = BM25Retriever(pickle.loads(pickle.dumps(retriever.pipeline.channel)))
    retriever.add([NEW])
    assert ids(twin.retrieve("spare")) == ["spare"]
    assert deep.retrieve("spare") == pickled.retrieve("spare") == []
    assert f"chunks={len(TEXTS) + 1}" in repr(retriever)


# Filters


async def test_what_is_added_is_filtered_like_the_rest() -> None:
    retriever = english(where=where("key", 2, ">="))
    retriever.add([NEW, TextNode(id_="shop", text="A filter of the shop", metadata={"key": 0})])
    assert set(ids(retriever.retrieve("filter"))) == {"filter", "spare"}
    assert ids(retriever.with_options(where=where("owner", "ann")).retrieve("filter")) == ["spare"]
    assert ids(await retriever.with_options(where={"owner": "ann"}).aretrieve("filter")) == ["spare"]
    assert retriever.search("filter", where=where("owner", "bob")).hits == ()
    retriever.delete(["spare"])
    assert retriever.with_options(where=where("owner", "ann")).retrieve("filter") == []


def test_access_counts_only_over_what_is_permitted_after_changes() -> None:
    rights = where("page_label", "1")
    retriever = english(require=rights)
    permitted: list[BaseNode] = [node for node in nodes() if node.metadata["page_label"] == "1"]
    retriever.add([TextNode(id_="secret", text="pump pump pump secret", metadata={"page_label": "3"})])
    assert told(retriever) == told(english(permitted, require=rights))
    retriever.delete(["valve", "secret", "alarm"])
    assert told(retriever) == told(english(permitted[:1], require=rights))


# On disk


@pytest.mark.parametrize("formula", ["lucene", BM25Plus(1.2, 0.5, 0.7)])
@pytest.mark.parametrize("language", ["en", "auto"])
async def test_a_reopened_retriever_gives_the_same_nodes(tmp_path: Path, language: str, formula: Any) -> None:
    retriever = BM25Retriever.from_nodes(nodes(), language=language, formula=formula)
    retriever.add([NEW])
    await retriever.apersist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(str(tmp_path / "kept"))
    assert told(again) == told(retriever)
    assert [provenance(node) for node in again.retrieve("pump")] == [provenance(n) for n in retriever.retrieve("pump")]
    first = again.retrieve("alarm")[0].node
    assert (first, first.hash) == (nodes()[3], nodes()[3].hash)
    assert ids(again.with_options(where=where("owner", "ann")).retrieve("pump")) == ["spare"]
    assert again.delete_ref_doc("manual") == len(TEXTS)


@pytest.mark.parametrize("node", KEPT.values(), ids=KEPT)
def test_nodes_of_every_class_are_kept_whole(tmp_path: Path, node: BaseNode) -> None:
    english([node]).persist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(tmp_path / "kept")
    assert again.retrieve("filter") == english([node]).retrieve("filter")
    base = HybridRetriever(channels={"base": KnowledgeBase.open(tmp_path / "kept").bm25()})
    for retriever in (again, base):
        found = node_of(retriever.search("filter").hits[0].chunk)
        assert type(found) is type(node)
        assert found.to_dict() == node.to_dict()


def test_nodes_that_cannot_be_kept_are_named(tmp_path: Path) -> None:
    class Own(TextNode):
        pass

    with pytest.raises(ConfigError, match="node 'n' is a Own"):
        english([Own(id_="n", text="filter")]).persist(tmp_path / "kept")
    with pytest.raises(ConfigError, match="node 'n' is a IndexNode for a BM25Retriever"):
        english([IndexNode(id_="n", text="filter", index_id="i", obj=english())]).persist(tmp_path / "kept")


def test_persisting_again_brings_the_folder_up_to_date(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    retriever = english()
    retriever.persist(folder)
    log = {path: path.read_bytes() for path in folder.iterdir()}
    BM25Retriever.from_persist_dir(folder).persist(folder)
    assert {path: path.read_bytes() for path in log} == log
    again = BM25Retriever.from_persist_dir(folder)
    again.add([NEW])
    again.delete(["pump"])
    assert told(BM25Retriever.from_persist_dir(folder)) == told(retriever)
    again.persist(folder)
    assert told(BM25Retriever.from_persist_dir(folder, k=3)) == told(again)
    assert told(again) == told(english([*nodes()[1:], NEW]))


def test_a_folder_of_llama_indexs_own_retriever_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "retriever.json").write_text('{"similarity_top_k": 2, "verbose": false}')
    for use in (english().persist, BM25Retriever.from_persist_dir):
        with pytest.raises(IncompatibleIndexError, match="similarity_top_k"):
            use(tmp_path)


def test_a_custom_analyzer_is_given_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CustomAnalyzer"):
        BM25Retriever.from_nodes(nodes(), analyzer=str.split).persist(tmp_path / "kept")
    spaces = CustomAnalyzer(str.split, name="spaces")
    retriever = BM25Retriever.from_nodes(nodes(), analyzer=spaces)
    retriever.persist(tmp_path / "kept")
    assert told(BM25Retriever.from_persist_dir(tmp_path / "kept", analyzer=spaces)) == told(retriever)


# Of a vector store


def chroma() -> BasePydanticVectorStore:
    client = pytest.importorskip("chromadb").EphemeralClient()
    held = client.create_collection(f"nodes-{len(client.list_collections())}")
    store: BasePydanticVectorStore = pytest.importorskip("llama_index.vector_stores.chroma").ChromaVectorStore(held)
    return store


def flat() -> list[BaseNode]:
    """Nodes whose metadata Chroma takes."""
    return [node.model_copy(update={"metadata": {"key": node.metadata["key"]}}) for node in nodes()]


def ingested(store: Any) -> tuple[SimpleDocumentStore, list[BaseNode]]:
    """A pipeline's docstore, and the chunks whose vectors it put into the store."""
    docstore = SimpleDocumentStore()
    splitter = SentenceSplitter(chunk_size=20, chunk_overlap=0, tokenizer=str.split)
    pipeline = IngestionPipeline(transformations=[splitter, HashEmbedding()], docstore=docstore, vector_store=store)
    return docstore, list(pipeline.run(documents=[Document(id_="manual", text=" ".join(TEXTS.values()))]))


@pytest.mark.parametrize("as_index", [True, False])
def test_chroma_lists_its_nodes(as_index: bool) -> None:
    store = chroma()
    _, chunks = ingested(store)
    index = VectorStoreIndex.from_vector_store(store, HashEmbedding())
    retriever = BM25Retriever.from_vector_store(index if as_index else store, language="en", k=9)
    assert len(chunks) > 1
    assert {hit.id for hit in retriever.search("pump water").hits} <= {node.node_id for node in chunks}
    both = HybridRetriever(channels={"words": retriever, "vectors": index}).retrieve("an alarm sounds")
    assert set((provenance(both[0]) or {})["channels"]) == {"words", "vectors"}


def test_a_simple_store_has_the_nodes_of_its_indexs_docstore(caplog: pytest.LogCaptureFixture) -> None:
    index = VectorStoreIndex(nodes(), embed_model=HashEmbedding())
    index.docstore.add_documents([Document(id_="manual", text="the whole pump")])
    retriever = BM25Retriever.from_vector_store(index, language="en")
    assert (told(retriever), caplog.text) == (told(english()), "")
    with_docstore = BM25Retriever.from_vector_store(index.vector_store, docstore=index.docstore, language="en")
    assert told(with_docstore) == told(english())
    with pytest.raises(ConfigError, match=r"SimpleVectorStore does not hold its texts: pass the docstore="):
        BM25Retriever.from_vector_store(index.vector_store)
    index.delete_nodes(["pump"])
    assert told(BM25Retriever.from_vector_store(index, language="en")) == told(english(list(nodes()[1:])))
    index.docstore.delete_document("valve")
    assert told(BM25Retriever.from_vector_store(index, language="en")) == told(english(list(nodes()[2:])))
    assert "2 of 3 ids overlap" in caplog.text


@pytest.mark.parametrize("made", [chroma, SimpleVectorStore])
def test_a_pipelines_docstore_holds_whole_documents(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = made()
    docstore, chunks = ingested(store)
    overlap = f"0 of {len(chunks)} ids overlap; your docstore holds whole documents, not the chunks"
    with pytest.raises(ConfigError, match=overlap):
        BM25Retriever.from_vector_store(store, docstore=docstore)
    context = StorageContext.from_defaults(vector_store=store, docstore=docstore)
    index = VectorStoreIndex([], storage_context=context, embed_model=HashEmbedding())
    if made is SimpleVectorStore:
        with pytest.raises(ConfigError, match=overlap):
            BM25Retriever.from_vector_store(index)
    docstore.add_documents(chunks[1:])
    retriever = BM25Retriever.from_vector_store(store, docstore=docstore, language="en")
    assert f"{len(chunks) - 1} of {len(chunks)} ids overlap" in caplog.text
    assert len(retriever.pipeline.channel.index) == len(chunks) - 1  # type: ignore[attr-defined]  # a BM25


def test_what_lists_nothing_is_named() -> None:
    class Opaque(BasePydanticVectorStore):
        """Holds texts, and gives them to no listing."""

        stores_text: bool = True

        @property
        def client(self) -> None:
            return None

        def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
            return [node.node_id for node in nodes]

        def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
            raise NotImplementedError

        def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
            raise NotImplementedError

    store = Opaque()
    given: list[dict[str, Any]] = [{}, {"docstore": SimpleDocumentStore()}]
    for options in given:
        with pytest.raises(ConfigError, match="Opaque does not list its nodes: give them to from_nodes"):
            BM25Retriever.from_vector_store(store, **options)
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes(), storage_context=context, embed_model=HashEmbedding(), store_nodes_override=True)
    assert told(BM25Retriever.from_vector_store(index, language="en")) == told(english())
    with pytest.raises(ConfigError, match="not a list"):
        BM25Retriever.from_vector_store([])  # type: ignore[arg-type]
    empty = VectorStoreIndex([], embed_model=HashEmbedding())
    assert BM25Retriever.from_vector_store(empty).retrieve("pump") == []


# What makes the terms


def test_the_language_is_found_out_unless_it_is_given() -> None:
    text = "Die Häuser und die Gärten wurden von uns mit der Farbe gestrichen"
    german: list[BaseNode] = [TextNode(id_="de", text=text)]
    assert ids(BM25Retriever.from_nodes(german).retrieve("Haus")) == ["de"]
    assert BM25Retriever.from_nodes(german, language=None).retrieve("Haus") == []
    in_atire = BM25Retriever.from_nodes(german, language="de", formula="atire")
    assert (ids(in_atire.retrieve("Haus")), "ATIRE" in repr(in_atire)) == (["de"], True)
    for option, expected in (({}, "auto"), ({"language": "de"}, "de"), ({"analyzer": Analyzer("fr")}, "fr")):
        made = (
            BM25Retriever.from_defaults(german, **option),
            BM25Retriever.from_vector_store(VectorStoreIndex(german, embed_model=HashEmbedding()), **option),
            HybridRetriever.from_nodes(german, HashEmbedding(), **option),
            HybridRetriever.from_index(VectorStoreIndex(german, embed_model=HashEmbedding()), **option),
        )
        assert all(f"Analyzer(language='{expected}'" in repr(retriever) for retriever in made)
    with pytest.raises(ConfigError, match="give one of them"):
        BM25Retriever.from_nodes(german, language="de", analyzer=Analyzer("fr"))


def test_a_hybrid_retriever_finds_what_its_bm25_retriever_was_given_since() -> None:
    retriever = english()
    hybrid = HybridRetriever(channels={"words": retriever})
    retriever.add([NEW])
    assert ids(hybrid.retrieve("spare")) == ["spare"]


def test_rights_are_the_retrievers_own() -> None:
    rights = {"page": -1}
    retriever = BM25Retriever.from_nodes(nodes(), require=rights)
    assert retriever.retrieve("pump") == []
    rights.clear()
    assert retriever.retrieve("pump") == []


@pytest.mark.parametrize("refusal", [ValueError, AssertionError, NotImplementedError])
def test_a_store_that_lists_by_ids_or_filters_alone_says_what_to_do(refusal: type[Exception]) -> None:
    class Refusing(SimpleVectorStore):
        stores_text: bool = True

        def get_nodes(self, node_ids: Any = None, filters: Any = None) -> Any:
            raise refusal("ids or filters")

    with pytest.raises(ConfigError, match="pass the docstore"):
        BM25Retriever.from_vector_store(Refusing())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_follows_its_own_index(copied: Any) -> None:
    """Both channels search the copy of the index: what is added to one is not half in the other."""
    texts = {"pump": "a green pump", "valve": "a red valve"}
    index = VectorStoreIndex([TextNode(id_=one, text=text) for one, text in texts.items()], embed_model=HashEmbedding())
    original = HybridRetriever.from_index(index, fusion="rrf")
    other = copied(original)
    other.add([TextNode(id_="lamp", text="a zebra lamp")])
    index.delete_nodes(["pump"])

    def found(retriever: HybridRetriever, text: str) -> dict[str, set[str]]:
        return {one.node_id: set((provenance(one) or {})["channels"]) for one in retriever.retrieve(text)}

    assert found(other, "zebra lamp")["lamp"] == found(other, "green pump")["pump"] == {"bm25", "dense"}
    assert found(original, "zebra lamp").keys() == found(original, "green pump").keys() == {"valve"}
