"""The curation of a knowledge base in both frameworks: attached by itself, and told in the provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

import voicevault_retrievers.langchain as lc
import voicevault_retrievers.llama_index as li
from tests.frameworks.llama_index_parts import HashEmbedding
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.llama_index import provenance
from voicevault_retrievers.store import KnowledgeBase

TEXTS = {
    "handbook.pdf#1": "Credentials are set anew at the desk.",
    "faq.pdf#1": "Reset the password of the pump.",
    "faq.pdf#2": "Reset the password of the valve.",
    "old.pdf#1": "Reset the password with the old form.",
    "secret.pdf#1": "The password of the director.",
}
CURATION = """
synonyms: ["passphrase => password"]
pinned: [{queries: [reset password], documents: [handbook.pdf, secret.pdf]}]
blocked: [{documents: [old.pdf]}, {queries: [the pump], chunks: ['faq.pdf#2']}]
"""
ASKED = "Resetting passwords"
FOUND = ["handbook.pdf#1", "faq.pdf#1", "faq.pdf#2"]
REQUIRE = {"public": True}


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    made = KnowledgeBase.create("plant", root=tmp_path, embedder=HashEmbedder())
    made.add(
        Chunk(one, text, metadata={"source_file": one.partition("#")[0], "public": "secret" not in one})
        for one, text in TEXTS.items()
    )
    (made.path / "curation.yaml").write_text(CURATION)
    return made


class Mask(BaseDocumentCompressor):
    """Somebody else's stage: it replaces a word, and turns the order round."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> list[Document]:
        return [
            one.model_copy(update={"page_content": one.page_content.replace("desk", "***")})
            for one in reversed(documents)
        ]


def ids(found: list[Any]) -> list[str | None]:
    return [one.node_id if isinstance(one, NodeWithScore) else one.id for one in found]


def first_and_all(found: list[Any]) -> tuple[str | None, set[str | None]]:
    named = [one if isinstance(one, str) else ids([one])[0] for one in found]
    return named[0], set(named)


def told(found: list[Any]) -> list[dict[str, Any] | None]:
    entries = [provenance(one) if isinstance(one, NodeWithScore) else one.metadata["voicevault"] for one in found]
    return [entry.get("pinned") for entry in entries]


@pytest.mark.parametrize("preset", [None, "voicevault"])
async def test_a_hybrid_retriever_over_a_base_follows_its_curation(kb: KnowledgeBase, preset: str | None) -> None:
    options: dict[str, Any] = {"preset": preset, "rerank": None if preset is None else False, "require": REQUIRE}
    chain = lc.HybridRetriever(kb_names=[kb], k=5, **options)
    index = li.HybridRetriever([kb], k=5, **options)
    found = [chain.invoke(ASKED), index.retrieve(ASKED)]
    found += [await chain.ainvoke(ASKED), await index.aretrieve(ASKED)]
    found += [chain.batch([ASKED, ASKED])[1], index.retrieve_many([ASKED, ASKED])[1]]
    found += [(await chain.abatch([ASKED]))[0], (await index.aretrieve_many([ASKED]))[0]]
    for one in found:
        assert first_and_all(one) == first_and_all(FOUND)
        assert [vote and vote["rank"] for vote in told(one)] == [1, None, None]
    for retriever in (chain, index):
        result = retriever.search("passphrase", k=9)
        assert {hit.id for hit in result.hits} >= {"faq.pdf#1", "faq.pdf#2"}
        assert not {hit.id for hit in result.hits} & {"old.pdf#1", "secret.pdf#1"}
        keyword = next(hit.vote("bm25") for hit in result.hits if hit.id == "faq.pdf#1")
        assert keyword is not None
        assert (keyword.query, keyword.terms) == ("password", ("password",))
        assert "faq.pdf#2" not in [hit.id for hit in retriever.search("The pumps?", k=9).hits]
        narrowed = retriever.search(ASKED, where={"source_file": "faq.pdf"})
        assert {hit.id for hit in narrowed.hits} == set(FOUND[1:])
    (kb.path / "curation.yaml").write_text("blocked: [{documents: [faq.pdf]}]")
    assert ids(chain.invoke(ASKED)) == ids(index.retrieve(ASKED))
    assert "faq.pdf#1" not in ids(chain.invoke(ASKED))
    (kb.path / "curation.yaml").write_text("blocked: [")
    for one in (chain.invoke(ASKED), index.retrieve(ASKED)):
        assert "faq.pdf#1" not in ids(one)
    (degraded,) = chain.search(ASKED).skipped
    assert degraded.startswith("curation: ConfigError")
    with pytest.raises(ConfigError, match="is not YAML"):
        lc.HybridRetriever(kb_names=[kb.path]).invoke(ASKED)


def test_stages_of_a_framework_see_what_is_pinned_and_it_stays_first(kb: KnowledgeBase) -> None:
    retriever = lc.HybridRetriever(kb_names=[kb], k=5, require=REQUIRE) >> Mask()
    found = retriever.invoke(ASKED)
    unmasked = lc.HybridRetriever(kb_names=[kb], k=5, require=REQUIRE).invoke(ASKED)
    assert ids(found) == [FOUND[0], *reversed(ids(unmasked[1:]))]
    assert found[0].page_content == "Credentials are set anew at the ***."


def test_indexes_and_vector_stores_over_the_base_do_not_find_what_is_blocked(kb: KnowledgeBase) -> None:
    assert first_and_all(lc.HybridIndex(kb=kb, k=5, require=REQUIRE).invoke(ASKED)) == first_and_all(FOUND)
    store = lc.HybridStore(base=kb)
    vector = HashEmbedder().embed_queries([ASKED])[0].tolist()
    others = li.HybridVectorStore(base=kb)
    modes = (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.TEXT_SEARCH)
    found = [[one.id for one in store.similarity_search(ASKED, k=5)]]
    found += [[one.id for one in store.similarity_search_by_vector(vector, k=5)]]
    for mode in (*modes, VectorStoreQueryMode.MMR):
        asked = VectorStoreQuery(vector, query_str=ASKED, similarity_top_k=5, mode=mode)
        found.append(list(others.query(asked).ids or []))
    named = VectorStoreQuery(vector, query_str=ASKED, similarity_top_k=5, node_ids=list(TEXTS))
    found.append(list(others.query(named).ids or []))
    for one in found:
        assert one
        assert "old.pdf#1" not in one


def test_a_bundle_with_an_embedding_is_curated_too(kb: KnowledgeBase) -> None:
    vector = HashEmbedder().embed_queries(["password"])[0].tolist()
    bundle = QueryBundle(ASKED, embedding=vector)
    assert ids(li.HybridRetriever([kb], require=REQUIRE).retrieve(bundle))[0] == "handbook.pdf#1"


def test_copies_of_stores_over_the_base_do_not_find_what_is_blocked_either(kb: KnowledgeBase) -> None:
    nodes, documents = li.HybridVectorStore(base=kb), lc.HybridStore(base=kb)
    index = VectorStoreIndex.from_vector_store(nodes, embed_model=HashEmbedding())
    copies: list[Any] = [li.BM25Retriever.from_vector_store(nodes), li.HybridRetriever.from_index(index)]
    copy = lc.BM25Retriever.from_vector_store(documents, ids=list(TEXTS))
    for found in (*(one.retrieve(ASKED) for one in copies), copy.invoke(ASKED)):
        assert "faq.pdf#1" in ids(found)
        assert "old.pdf#1" not in ids(found)
    (kb.path / "curation.yaml").write_text("blocked: [{documents: [faq.pdf]}]")
    for found in (*(one.retrieve(ASKED) for one in copies), copy.invoke(ASKED)):
        assert "old.pdf#1" in ids(found)
        assert "faq.pdf#1" not in ids(found)
