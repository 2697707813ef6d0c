"""What a framework knows of a document beside its text is searched as the framework does, or as it is told to."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

from tests.frameworks.langchain_parts import Hashed
from tests.frameworks.llama_index_parts import HashEmbedding, embedded
from tests.unit.core.test_chunk_headers import Reader
from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.testing.corpora import WordEmbedder

TEXTS = {"z": ("Zephyr", "The default value is 3."), "n": ("Notus", "The default value is 5.")}


def documents() -> list[Document]:
    return [Document(text, id=name, metadata={"title": title, "page": 1}) for name, (title, text) in TEXTS.items()]


def nodes() -> list[TextNode]:
    hidden: dict[str, Any] = {"excluded_embed_metadata_keys": ["page"]}
    return [
        TextNode(id_=name, text=text, metadata={"title": title, "page": 1}, **hidden)
        for name, (title, text) in TEXTS.items()
    ]


def ids(found: list[Document]) -> list[str | None]:
    return [document.id for document in found]


def names(found: list[NodeWithScore]) -> list[str]:
    return [node.node.node_id for node in found]


@pytest.mark.parametrize(
    "text_of",
    [
        ["title", "absent"],
        "title",
        lambda one: one.metadata["title"],
        lambda one: f"{one.metadata['title']}\n{one.page_content}",
    ],
)
def test_langchain_indexes_what_text_of_gives_and_nothing_by_default(text_of: Any) -> None:
    bare = langchain.BM25Retriever.from_documents(documents())
    assert bare.invoke("Notus") == []
    headed = langchain.BM25Retriever.from_documents(documents(), text_of=text_of)
    (found,) = headed.invoke("Notus")
    assert (found.id, found.page_content) == ("n", "The default value is 5.")
    assert found.metadata["voicevault"]["header"] == "Notus"
    assert found.metadata["voicevault"]["channels"]["bm25"]["header_terms"] == ["notus"]
    headed.add([Document("It is 7.", id="b", metadata={"title": "Boreas"})])
    assert ids(headed.invoke("Boreas")) == ["b"]


def test_langchain_takes_text_of_wherever_documents_come_in(tmp_path: Path) -> None:
    options: dict[str, Any] = {"text_of": ["title"]}
    hybrid = langchain.HybridRetriever.from_documents(documents(), WordEmbedder(), **options)
    assert ids(hybrid.invoke("Notus"))[0] == "n"
    hybrid.add([Document("It is 7.", id="b", metadata={"title": "Boreas"})])
    assert ids(hybrid.invoke("Boreas"))[0] == "b"
    vectors = langchain.VectorRetriever.from_documents(documents(), WordEmbedder(), **options)
    assert ids(vectors.invoke("Notus"))[0] == "n"
    store = InMemoryVectorStore.from_documents(documents(), Hashed())
    copy = langchain.BM25Retriever.from_vector_store(store, **options)
    assert ids(copy.invoke("Notus")) == ["n"]
    with langchain.HybridIndex.open(tmp_path / "kb", embeddings=False, **options) as index:
        index.upsert(documents())
        assert ids(index.invoke("Notus")) == ["n"]
        assert index.get(["n"]) == documents()[1:]
    index = langchain.BM25Index(**options)
    index.upsert(documents())
    assert ids(index.invoke("Notus")) == ["n"]


def test_langchain_rerankers_read_the_header_of_what_was_found_or_what_text_of_gives() -> None:
    reader = Reader()
    retriever = langchain.BM25Retriever.from_documents(documents(), text_of=["title"])
    found = retriever.invoke("default")
    langchain.CrossEncoderReranker(scorer=reader).compress_documents(found, "default")
    (retriever >> langchain.CrossEncoderReranker(scorer=reader)).invoke("default")
    langchain.CrossEncoderReranker(scorer=reader, text_of=["title"]).compress_documents(documents(), "default")
    assert sorted(set(reader.read)) == [
        "Notus\n\nThe default value is 5.",
        "Zephyr\n\nThe default value is 3.",
    ]
    bare = Reader()
    langchain.CrossEncoderReranker(scorer=bare).compress_documents(documents(), "default")
    assert sorted(bare.read) == ["The default value is 3.", "The default value is 5."]


def test_a_retriever_made_anew_for_a_configured_field_keeps_its_text_of() -> None:
    hybrid = langchain.HybridRetriever.from_documents(documents(), WordEmbedder(), text_of=["title"])
    anew, _ = hybrid.configurable_fields(k=ConfigurableField(id="k")).prepare({"configurable": {"k": 1}})
    assert isinstance(anew, langchain.HybridRetriever)
    anew.add([Document("It is 7.", id="b", metadata={"title": "Boreas"})])
    (found,) = anew.invoke("Boreas")
    assert (found.id, found.metadata["voicevault"].get("header")) == ("b", "Boreas")


def test_langchain_refuses_a_text_of_that_gives_no_text() -> None:
    with pytest.raises(ConfigError, match="text_of is a function of a document, or metadata keys, not 5"):
        langchain.BM25Retriever.from_documents(documents(), text_of=5)
    with pytest.raises(ConfigError, match="text_of gives the text"):
        langchain.BM25Retriever.from_documents(documents(), text_of=lambda one: one.metadata["page"])


def test_llama_index_indexes_what_its_nodes_embed_unless_told_otherwise() -> None:
    embedded = llama_index.BM25Retriever.from_nodes(nodes())
    (found,) = embedded.retrieve("Notus")
    assert found.node.get_content(metadata_mode=MetadataMode.NONE) == "The default value is 5."
    told = llama_index.provenance(found) or {}
    assert told["header"] == "title: Notus"
    assert embedded.retrieve("page") == []
    assert names(llama_index.BM25Retriever.from_nodes(nodes(), metadata_mode=MetadataMode.ALL).retrieve("page")) == [
        "n",
        "z",
    ]
    assert llama_index.BM25Retriever.from_nodes(nodes(), metadata_mode=MetadataMode.NONE).retrieve("Notus") == []
    embedded.add([TextNode(id_="b", text="It is 7.", metadata={"title": "Boreas"})])
    assert names(embedded.retrieve("Boreas")) == ["b"]


def test_llama_index_searches_headers_wherever_nodes_come_in(tmp_path: Path) -> None:
    hybrid = llama_index.HybridRetriever.from_nodes(nodes(), WordEmbedder())
    assert names(hybrid.retrieve("Notus"))[0] == "n"
    assert names(llama_index.VectorRetriever.from_nodes(nodes(), WordEmbedder()).retrieve("Notus"))[0] == "n"
    index = VectorStoreIndex(nodes(), embed_model=MockEmbedding(embed_dim=8))
    assert names(llama_index.BM25Retriever.from_vector_store(index).retrieve("Notus")) == ["n"]
    bare = llama_index.BM25Retriever.from_vector_store(index, metadata_mode=MetadataMode.NONE)
    assert bare.retrieve("Notus") == []
    llama_index.BM25Retriever.from_nodes(nodes()).persist(tmp_path / "bm25")
    assert names(llama_index.BM25Retriever.from_persist_dir(tmp_path / "bm25").retrieve("Notus")) == ["n"]


def test_an_unknown_metadata_mode_is_refused_wherever_it_is_given(tmp_path: Path) -> None:
    index = VectorStoreIndex(nodes(), embed_model=MockEmbedding(embed_dim=8))
    unknown: dict[str, Any] = {"metadata_mode": "embedded"}
    for make in (
        lambda: llama_index.BM25Retriever.from_nodes(nodes(), **unknown),
        lambda: llama_index.BM25Retriever.from_vector_store(index, **unknown),
        lambda: llama_index.VectorRetriever.from_nodes(nodes(), WordEmbedder(), **unknown),
        lambda: llama_index.VectorRetriever(index, **unknown),
        lambda: llama_index.HybridRetriever.from_nodes(nodes(), WordEmbedder(), **unknown),
        lambda: llama_index.HybridRetriever.from_index(index, **unknown),
        lambda: llama_index.HybridVectorStore.open(tmp_path / "kb", embed_model=HashEmbedding(), **unknown),
    ):
        with pytest.raises(ConfigError, match=r"unknown metadata_mode 'embedded'\. Did you mean 'embed'\?"):
            make()


def test_a_preset_searches_the_bare_text_of_nodes() -> None:
    bare = llama_index.HybridRetriever.from_nodes(nodes(), WordEmbedder(), preset="pdf-chat")
    assert [hit.votes[0].header_terms for hit in bare.search("default Notus").hits] == [(), ()]
    told = llama_index.HybridRetriever.from_nodes(
        nodes(), WordEmbedder(), preset="pdf-chat", metadata_mode=MetadataMode.EMBED
    )
    assert told.search("Notus").hits[0].id == "n"


def test_llama_index_rerankers_read_what_the_framework_embeds_and_found_nodes_their_header() -> None:
    reader = Reader()
    stage = llama_index.CrossEncoderRerank(model=reader)
    stage.postprocess_nodes([NodeWithScore(node=node, score=1.0) for node in nodes()], query_str="default")
    assert sorted(reader.read) == [
        "title: Notus\n\nThe default value is 5.",
        "title: Zephyr\n\nThe default value is 3.",
    ]
    bare = Reader()
    found = llama_index.BM25Retriever.from_nodes(nodes(), metadata_mode=MetadataMode.NONE).retrieve("default")
    llama_index.CrossEncoderRerank(model=bare).postprocess_nodes(found, query_str="default")
    assert sorted(bare.read) == ["The default value is 3.", "The default value is 5."]


def test_a_hybrid_store_indexes_what_text_of_gives(tmp_path: Path) -> None:
    for store in (
        langchain.HybridStore.from_documents(documents(), WordEmbedder(), text_of=["title"]),
        langchain.HybridStore.from_documents(documents(), WordEmbedder(), base=tmp_path / "kb", text_of=["title"]),
    ):
        (found, _) = store.similarity_search("Notus")
        assert (found.id, found.metadata["voicevault"]["channels"]["bm25"]["header_terms"]) == ("n", ["notus"])


def test_a_copy_of_a_store_indexes_the_same_metadata(tmp_path: Path) -> None:
    open_store = llama_index.HybridVectorStore.open
    store = open_store(tmp_path / "kb", embed_model=HashEmbedding(), metadata_mode=MetadataMode.NONE)
    for twin in (
        pickle.loads(pickle.dumps(store)),
        copy.deepcopy(store),
        llama_index.HybridVectorStore.from_dict(store.to_dict()),
    ):
        assert twin._kept.metadata_mode is MetadataMode.NONE
        twin.add(embedded(nodes()))
        found = twin.query(VectorStoreQuery(query_str="Notus", similarity_top_k=2, mode=VectorStoreQueryMode.SPARSE))
        assert found.ids == []
        twin.close()
