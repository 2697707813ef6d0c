"""The faults of LlamaIndex's BM25Retriever beside this package; see test_llama_index_peers.py.

gives k nodes where nothing matches            test_no_match_gives_no_nodes
... which RRF then credits                     test_no_match_is_not_credited_by_fusion
gives nodes that its filter keeps out          test_a_filter_keeps_nodes_out
raises where its filter passes none            test_a_filter_that_none_passes_gives_no_nodes
raises on filters in filters                   test_filters_nest
reloading loses the stemmer                    test_a_persisted_index_gives_the_same
English stopwords in every language            test_a_word_is_no_stopword_of_another_language
finds no word in Chinese                       test_chinese_is_searched_by_word
no adding, no deleting                         test_nodes_are_added_and_deleted
raises on no nodes                             test_an_empty_corpus_gives_no_nodes
filters see its own keys, not the user's       test_a_filter_sees_the_users_metadata
a pipeline's docstore holds whole documents    test_ids_agree_with_the_vector_store
its async search is the sync one on the loop   test_an_async_search_leaves_the_event_loop_free
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import MetadataFilters

from tests.frameworks.llama_index_parts import TEXTS, HashEmbedding
from tests.oracles.llama_index_peers import child, fusions, ids, pairs, peer, where
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index import BM25Retriever

PUMPS = [TextNode(id_=name, text=f"pump {name}", metadata={"tenant": "xyy"[at]}) for at, name in enumerate("abc")]

bm25s = pytest.importorskip("bm25s", reason="llama-index-retrievers-bm25 is not installed")


def theirs_over(given: list[TextNode], k: int = 2, **options: Any) -> Any:
    return peer("llama_index.retrievers.bm25.BM25Retriever")(nodes=given, similarity_top_k=k, **options)


def keyword(texts: Mapping[str, str], language: str = "en", **options: Any) -> tuple[Any, BM25Retriever]:
    """Theirs and ours over the same nodes."""
    given = [TextNode(id_=name, text=text) for name, text in texts.items()]
    return theirs_over(given, language=language, **options), BM25Retriever.from_nodes(given, language=language, k=2)


def german(texts: Mapping[str, str]) -> tuple[Any, BM25Retriever]:
    return keyword(texts, "de", stemmer=pytest.importorskip("Stemmer").Stemmer("german"))


def matching(retriever: Any, query: str) -> list[str]:
    """Those found with a score."""
    return ids(node for node in retriever.retrieve(query) if node.score)


def test_no_match_gives_no_nodes() -> None:
    theirs, ours = keyword(TEXTS)
    assert pairs(theirs.retrieve("zeppelin")) == [("alarm", 0.0), ("filter", 0.0)]
    assert ours.retrieve("zeppelin") == []


def test_no_match_is_not_credited_by_fusion() -> None:
    theirs, ours = keyword(TEXTS)
    semantic = child(("valve", 0.9), ("filter", 0.8))
    assert ids(fusions(theirs, semantic)[0].retrieve("zeppelin")) == ["filter", "alarm", "valve"]
    assert pairs(fusions(ours, semantic)[1].retrieve("zeppelin")) == [("valve", 1 / 61), ("filter", 1 / 62)]


def test_a_filter_keeps_nodes_out() -> None:
    assert sorted(ids(theirs_over(PUMPS, 3, filters=where("tenant", "x")).retrieve("pump"))) == ["a", "b", "c"]
    assert ids(BM25Retriever.from_nodes(PUMPS, require=where("tenant", "x")).retrieve("pump")) == ["a"]


def test_a_filter_that_none_passes_gives_no_nodes() -> None:
    with pytest.raises(ValueError, match="filtered out"):
        theirs_over(PUMPS, filters=where("tenant", "z"))
    assert BM25Retriever.from_nodes(PUMPS, where=where("tenant", "z")).retrieve("pump") == []


def test_filters_nest() -> None:
    nested = MetadataFilters(filters=[where("tenant", "x")])
    with pytest.raises(ValueError, match="Nested MetadataFilters are not supported"):
        theirs_over(PUMPS, filters=nested)
    assert ids(BM25Retriever.from_nodes(PUMPS, where=nested).retrieve("pump")) == ["a"]


def test_a_persisted_index_gives_the_same(tmp_path: Path) -> None:
    theirs, ours = german({"a": "Die Häuser brennen.", "b": "Eine rote Lampe"})
    for retriever, after in ((theirs, []), (ours, ["a"])):
        assert matching(retriever, "Häuser") == ["a"]
        retriever.persist(str(tmp_path / type(retriever).__module__))
        again = type(retriever).from_persist_dir(str(tmp_path / type(retriever).__module__))
        assert matching(again, "Häuser") == after


def test_a_word_is_no_stopword_of_another_language() -> None:
    theirs, ours = german({"a": "Die Not war groß.", "b": "Eine rote Lampe"})
    assert matching(theirs, "Lampe") == ["b"]
    assert matching(theirs, "Not") == []
    assert matching(ours, "Not") == ["a"]


def test_chinese_is_searched_by_word() -> None:
    texts = {"a": "水泵在冬季前必须排空。", "b": "红色的灯"}
    assert matching(keyword(texts)[0], "水泵") == []
    assert matching(BM25Retriever.from_nodes([TextNode(id_=i, text=text) for i, text in texts.items()]), "水泵") == [
        "a"
    ]


def test_nodes_are_added_and_deleted() -> None:
    theirs, ours = keyword({"a": "The pump", "b": "A lamp"})
    assert not any(hasattr(theirs, change) for change in ("add", "add_nodes", "insert_nodes", "delete", "delete_nodes"))
    ours.add([TextNode(id_="c", text="A door")])
    assert matching(ours, "door") == ["c"]
    ours.delete(["c"])
    assert matching(ours, "door") == []


def test_an_empty_corpus_gives_no_nodes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean length of no documents
        with pytest.raises(ValueError, match="empty"):
            theirs_over([])
    assert BM25Retriever.from_nodes([]).retrieve("pump") == []


@pytest.mark.parametrize("key", ["doc_id", "document_id", "ref_doc_id", "_node_type", "_node_content", "node_id"])
def test_a_filter_sees_the_users_metadata(key: str) -> None:
    given = [TextNode(id_=name, text="pump", metadata={key: f"mine {name}"}) for name in "ab"]
    with pytest.raises(ValueError, match="filtered out"):
        theirs_over(given, filters=where(key, "mine a"))
    assert ids(BM25Retriever.from_nodes(given, where=where(key, "mine a")).retrieve("pump")) == ["a"]


def test_ids_agree_with_the_vector_store() -> None:
    docstore, splitter = SimpleDocumentStore(), SentenceSplitter(chunk_size=60, chunk_overlap=0)
    pipeline = IngestionPipeline(
        transformations=[splitter], docstore=docstore, docstore_strategy=DocstoreStrategy.DUPLICATES_ONLY
    )
    manual = Document(id_="manual", text="\n\n".join(text * 5 for text in TEXTS.values()))
    index = VectorStoreIndex(nodes=pipeline.run(documents=[manual]), embed_model=HashEmbedding())
    semantic = index.as_retriever(similarity_top_k=9)
    their_class = peer("llama_index.retrievers.bm25.BM25Retriever")
    assert ids(their_class.from_defaults(docstore=docstore).retrieve("pump")) == ["manual"]
    assert "manual" not in ids(semantic.retrieve("pump"))
    with pytest.raises(ConfigError, match="your docstore holds whole documents"):
        BM25Retriever.from_vector_store(index.vector_store, docstore=docstore)
    found = ids(BM25Retriever.from_vector_store(index).retrieve("pump"))
    assert found
    assert set(found) <= set(ids(semantic.retrieve("pump")))


async def test_an_async_search_leaves_the_event_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = keyword(TEXTS)
    threads: list[int] = []

    def noting(work: Any) -> Any:
        def noted(*given: Any, **options: Any) -> Any:
            threads.append(threading.get_ident())
            return work(*given, **options)

        return noted

    monkeypatch.setattr(theirs.bm25, "retrieve", noting(theirs.bm25.retrieve))
    monkeypatch.setattr(ours.pipeline.channel, "find", noting(ours.pipeline.channel.find))  # type: ignore[attr-defined]
    await theirs.aretrieve("pump")
    assert threads == [threading.get_ident()]
    await ours.aretrieve("pump")
    assert len(threads) == 2
    assert threads[1] != threads[0]
