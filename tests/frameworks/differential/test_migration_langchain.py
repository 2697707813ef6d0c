"""Each expression of the page on migrating from langchain-classic beside ours, on documents as loaders give them.

Without ids, with the metadata of four loaders: the same documents with the same metadata in the same number, or better
by the rule that the test names. `EnsembleRetriever` stands in test_identity_langchain.py.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("langchain_classic")

from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    MultiQueryRetriever,
    ParentDocumentRetriever,
    TimeWeightedVectorStoreRetriever,
)
from langchain_classic.retrievers.document_compressors import (
    CrossEncoderReranker,
    DocumentCompressorPipeline,
    LLMChainFilter,
)
from langchain_community.document_transformers import EmbeddingsRedundantFilter, LongContextReorder
from langchain_community.retrievers import BM25Retriever as CommunityBM25
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from tests.frameworks.differential.test_identity_langchain import LOADED, QUESTION, TEXTS, loaded, told
from voicevault_retrievers import langchain as ours
from voicevault_retrievers.lexical import Okapi


class Words(Embeddings):
    """Texts with common words are near."""

    def embed_query(self, text: str) -> list[float]:
        row = [0.0] * 256
        for word in text.lower().strip(".?").split():
            row[zlib.crc32(word.encode()) % 256] += 1.0
        length = sum(value * value for value in row) ** 0.5
        return [value / length for value in row]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class Overlap(BaseCrossEncoder):
    """How many words of the question a text has, and a part for its length, so that no two are equal."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [sum(word in text.lower() for word in query.split()) + len(text) / 1000 for query, text in text_pairs]


def store(documents: list[Document]) -> InMemoryVectorStore:
    return InMemoryVectorStore.from_documents(documents, Words())


async def both(retriever: Any, question: str = QUESTION) -> list[tuple[str, str]]:
    """What a retriever finds, asked in both ways."""
    found = [told(document) for document in retriever.invoke(question)]
    assert [told(document) for document in await retriever.ainvoke(question)] == found
    return found


@pytest.mark.parametrize("kind", LOADED)
class TestLoaded:
    async def test_bm25_gives_those_that_match(self, kind: str) -> None:
        native = CommunityBM25.from_documents(loaded(kind), k=5)
        own = ours.BM25Retriever.from_documents(
            loaded(kind), k=5, preprocess_func=str.split, formula=Okapi(k1=1.5, b=0.75)
        )
        given = await both(native, "Reset pump")
        assert len(given) == 5
        assert await both(own, "Reset pump") == given[:3]
        assert all(not {"Reset", "pump"} & set(text.split()) for text, _ in given[3:])

    @pytest.mark.parametrize("top_n", [1, 2, 5])
    async def test_a_cross_encoder(self, kind: str, top_n: int) -> None:
        base = store(loaded(kind))
        native = ContextualCompressionRetriever(
            base_compressor=CrossEncoderReranker(model=Overlap(), top_n=top_n),
            base_retriever=base.as_retriever(search_kwargs={"k": 20}),
        )
        reranker = ours.CrossEncoderReranker(scorer=Overlap(), top_n=top_n, blend=1)
        expected = await both(native)
        assert len(expected) == top_n
        assert await both(ours.VectorRetriever(vectorstore=base) >> reranker) == expected
        assert await both(base.as_retriever(search_kwargs={"k": 20}) >> reranker) == expected

    async def test_a_pipeline_of_compressors(self, kind: str) -> None:
        base = store(loaded(kind))
        relevant = LLMChainFilter(llm_chain=RunnableLambda(lambda asked: "pump" in asked["context"]))
        native = ContextualCompressionRetriever(
            base_compressor=DocumentCompressorPipeline(
                transformers=[relevant, CrossEncoderReranker(model=Overlap(), top_n=2)]
            ),
            base_retriever=base.as_retriever(search_kwargs={"k": 4}),
        )
        reranker = ours.CrossEncoderReranker(scorer=Overlap(), top_n=2, blend=1)
        own = ours.VectorRetriever(vectorstore=base, k=4) >> relevant >> reranker
        assert await both(own) == await both(native)

    async def test_wordings_of_a_model(self, kind: str) -> None:
        base = store(loaded(kind))
        said = "which seal leaks\nwhere do visitors meet"
        native = MultiQueryRetriever.from_llm(
            base.as_retriever(search_kwargs={"k": 2}), FakeListChatModel(responses=[said]), include_original=True
        )
        own = ours.HybridRetriever(
            channels={"dense": base.as_retriever(search_kwargs={"k": 2})},
            expansion=FakeListChatModel(responses=[said]),
            k=10,
        )
        expected, found = await both(native), await both(own)
        assert sorted(found) == sorted(expected)
        assert len(set(expected)) == len(expected) > 2

    async def test_parents(self, kind: str) -> None:
        splitter = RecursiveCharacterTextSplitter(chunk_size=24, chunk_overlap=0)
        vectors, docstore = InMemoryVectorStore(Words()), InMemoryStore()
        native = ParentDocumentRetriever(
            vectorstore=vectors, docstore=docstore, child_splitter=splitter, search_kwargs={"k": 3}
        )
        native.add_documents(loaded(kind))
        expected = await both(native)
        own = ours.VectorRetriever(vectorstore=vectors, k=len(expected)) >> ours.ParentExpander(store=docstore)
        found = own.invoke(QUESTION)
        assert [told(document) for document in await own.ainvoke(QUESTION)] == [told(document) for document in found]
        for document in found:  # a parent's metadata is over that of its child, which has the key of the parent too
            assert document.metadata.pop("doc_id") in set(docstore.yield_keys())
        assert [told(document) for document in found] == expected

    @pytest.mark.filterwarnings("ignore:Relevance scores must be between")
    async def test_recency(self, kind: str) -> None:
        faiss = pytest.importorskip("faiss")
        from langchain_community.docstore import InMemoryDocstore
        from langchain_community.vectorstores import FAISS

        native = TimeWeightedVectorStoreRetriever(
            vectorstore=FAISS(Words(), faiss.IndexFlatL2(256), InMemoryDocstore(), {}), search_kwargs={"k": 5}, k=5
        )
        now = datetime.now()
        documents = loaded(kind)
        for days, document in enumerate(documents):
            document.metadata["last_accessed_at"] = now - timedelta(days=400 * days)
        native.add_documents([document.model_copy(deep=True) for document in documents])
        recent = ours.RecencyReranker(weight=1.0, half_life_days=29.0, date_key="last_accessed_at")
        found = (ours.VectorRetriever.from_documents(documents, Words(), k=5) >> recent).invoke(QUESTION)
        assert [len(native.invoke(QUESTION)), len(found)] == [5, 5]
        # There a search numbers the documents and makes them young again; here it writes nothing.
        written = ("last_accessed_at", "created_at", "buffer_idx", "voicevault", "relevance_score")

        def plain(document: Document) -> tuple[str, str]:
            kept = {key: value for key, value in document.metadata.items() if key not in written}
            return told(Document(document.page_content, metadata=kept))

        assert sorted(map(plain, native.invoke(QUESTION))) == sorted(map(plain, found)) == sorted(map(plain, documents))
        dates = {document.page_content: document.metadata["last_accessed_at"] for document in documents}
        assert all(document.metadata["last_accessed_at"] == dates[document.page_content] for document in found)
        assert found[0].page_content == TEXTS[0]

    async def test_documents_that_are_alike(self, kind: str) -> None:
        twice = [*loaded(kind), *loaded(kind)]
        redundant = EmbeddingsRedundantFilter(embeddings=Words(), similarity_threshold=0.99)
        base = store(twice)
        native = ContextualCompressionRetriever(
            base_compressor=DocumentCompressorPipeline(transformers=[redundant]),
            base_retriever=base.as_retriever(search_kwargs={"k": 10}),
        )
        expected = await both(native)
        assert await both(ours.VectorRetriever(vectorstore=base, k=10) >> redundant) == expected
        alone = ours.VectorRetriever(vectorstore=base, k=5) >> ours.NearDuplicateFilter(by=Words(), threshold=0.99)
        found = await both(alone)
        assert sorted(found) == sorted(expected)
        best = [told(document) for document in base.similarity_search(QUESTION, k=10)]
        assert found == list(dict.fromkeys(best))  # the first of those that are alike stays, there the last

    async def test_an_order_for_long_contexts(self, kind: str) -> None:
        base = store(loaded(kind))
        ranked = base.as_retriever(search_kwargs={"k": 5}).invoke(QUESTION)
        native = [told(document) for document in LongContextReorder().transform_documents(list(ranked))]
        behind = ours.VectorRetriever(vectorstore=base, k=5) >> LongContextReorder()
        assert await both(behind) == native
        found = await both(ours.VectorRetriever(vectorstore=base, k=5) >> ours.ContextReorder())
        order = [told(document) for document in ranked]
        assert sorted(found) == sorted(native)
        assert (found[0], found[-1]) == (order[0], order[1])  # the best is first, and not by an odd number last
