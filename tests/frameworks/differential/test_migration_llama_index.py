"""Each expression of the page on migrating from LlamaIndex's own parts beside ours, on nodes of loaded documents.

The ids are those that a splitter makes, the metadata those of three readers: the same nodes with the same metadata in
the same number, or better by the rule that the test names.
"""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.node_parser import (
    HierarchicalNodeParser,
    SentenceSplitter,
    SentenceWindowNodeParser,
    get_leaf_nodes,
)
from llama_index.core.postprocessor import (
    FixedRecencyPostprocessor,
    LLMRerank,
    MetadataReplacementPostProcessor,
    SentenceTransformerRerank,
)
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.retrievers import AutoMergingRetriever, QueryFusionRetriever
from llama_index.core.schema import BaseNode, Document, NodeWithScore
from llama_index.core.tools import RetrieverTool

from voicevault_retrievers import llama_index as ours

QUESTION = "how is the pump reset"
TEXTS = (
    "Reset the pump with the green key.",
    "The pump leaks where its seal is worn.",
    "ERR_2043: the gearbox oil is too warm.",
    "Reset the alarm, then the pump.",
    "Visitors meet at the gate.",
)
READ: dict[str, Callable[[int], dict[str, Any]]] = {
    "SimpleDirectoryReader": lambda at: {
        "page_label": str(at + 1), "file_name": "pump.pdf", "file_path": "manuals/pump.pdf",
        "file_type": "application/pdf", "file_size": 4096, "creation_date": f"2026-01-0{at + 1}",
        "last_modified_date": f"2026-01-0{at + 1}",
    },
    "PyMuPDF": lambda at: {"total_pages": 5, "file_path": "manuals/pump.pdf", "source": str(at + 1)},
    "Docling": lambda at: {"schema_name": "docling", "origin": {"filename": "pump.pdf"}, "headings": [f"Part {at}"]},
}  # fmt: skip


class Words(MockEmbedding):
    """Texts with common words are near."""

    def _get_text_embedding(self, text: str) -> list[float]:
        row = [0.0] * self.embed_dim
        for word in text.lower().strip(".? ").split():
            row[zlib.crc32(word.encode()) % self.embed_dim] += 1.0
        return row

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class Overlap:
    """How many words of the question a text has, and a part for its length, so that no two are equal."""

    name = "overlap"

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        return [sum(word in text.lower() for word in query.split()) + len(text) / 1000 for text in passages]


class Says(CustomLLM):
    """A language model that always gives the same answer."""

    answer: str

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
        return CompletionResponse(text=self.answer)

    def stream_complete(self, prompt: str, formatted: bool = False, **options: Any) -> Any:
        raise NotImplementedError


def read(kind: str, texts: Sequence[str] = TEXTS) -> list[Document]:
    """Documents as a reader gives them, whose metadata are not embedded."""
    return [
        Document(text=text, metadata=READ[kind](at), excluded_embed_metadata_keys=list(READ[kind](at)))
        for at, text in enumerate(texts)
    ]


def cut(kind: str) -> list[BaseNode]:
    return SentenceSplitter().get_nodes_from_documents(read(kind))


def told(found: NodeWithScore) -> tuple[str, str, dict[str, Any]]:
    """The id, the text and the metadata of a node."""
    metadata = {key: value for key, value in found.node.metadata.items() if key != "voicevault"}
    return found.node_id, found.text, metadata


async def both(retriever: Any, question: str = QUESTION) -> list[tuple[str, str, dict[str, Any]]]:
    """What a retriever finds, asked in both ways."""
    found = [told(node) for node in retriever.retrieve(question)]
    assert [told(node) for node in await retriever.aretrieve(question)] == found
    return found


@pytest.mark.parametrize("kind", READ)
class TestRead:
    @pytest.mark.parametrize(
        ("mode", "fusion"),
        [
            ("reciprocal_rerank", "rrf"),
            ("relative_score", "weighted_sum"),
            ("dist_based_score", "distribution"),
        ],
    )
    async def test_fusion(self, kind: str, mode: Any, fusion: str) -> None:
        nodes = cut(kind)
        index = VectorStoreIndex(nodes, embed_model=Words(embed_dim=256))
        parts = [
            ours.BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=5),
            index.as_retriever(similarity_top_k=5),
        ]
        said = "which seal leaks\nwhere do visitors meet"
        native = QueryFusionRetriever(
            list(parts), llm=Says(answer=said), num_queries=3, mode=mode, similarity_top_k=5, use_async=False
        )
        own = ours.HybridRetriever(
            channels={"words": parts[0], "dense": parts[1]},
            expansion=ours.QueryExpander(Says(answer=said), size=3),
            fusion=fusion,
            similarity_top_k=5,
        )
        expected = [told(node) for node in native.retrieve(QUESTION)]
        assert sorted(await both(own), key=itemgetter(0)) == sorted(expected, key=itemgetter(0))
        assert len(expected) == len(TEXTS)

    async def test_bm25_gives_those_that_match(self, kind: str) -> None:
        bm25 = pytest.importorskip("llama_index.retrievers.bm25")
        nodes = cut(kind)
        for node in nodes:  # there metadata are indexed too, unless they are left out of what a model reads
            node.excluded_llm_metadata_keys = list(node.metadata)
        native = bm25.BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=5)
        own = ours.BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=5)
        given = native.retrieve("resetting a pump")
        matching = [told(node) for node in given if node.score > 0]
        assert 0 < len(matching) < len(given) == 5
        assert await both(own, "resetting a pump") == matching

    @pytest.mark.parametrize("top_n", [1, 2, 5])
    async def test_a_cross_encoder(self, kind: str, top_n: int, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = types.ModuleType("sentence_transformers")
        loaded.CrossEncoder = lambda *_, **__: types.SimpleNamespace(  # type: ignore[attr-defined]
            predict=lambda pairs: Overlap().score(pairs[0][0], [text for _, text in pairs])
        )
        monkeypatch.setitem(sys.modules, "sentence_transformers", loaded)
        index = VectorStoreIndex(cut(kind), embed_model=Words(embed_dim=256))
        found = index.as_retriever(similarity_top_k=5)
        native = SentenceTransformerRerank(model="any", top_n=top_n, device="cpu")
        expected = [told(node) for node in native.postprocess_nodes(found.retrieve(QUESTION), query_str=QUESTION)]
        own = ours.CrossEncoderRerank(Overlap(), top_n=top_n, blend=1)
        assert [told(node) for node in own.postprocess_nodes(found.retrieve(QUESTION), query_str=QUESTION)] == expected
        assert await both(ours.VectorRetriever(index) >> own) == expected

    async def test_an_order_by_a_language_model(self, kind: str) -> None:
        index = VectorStoreIndex(cut(kind), embed_model=Words(embed_dim=256))
        found = index.as_retriever(similarity_top_k=4).retrieve(QUESTION)
        says = Says(answer="Doc: 3, Relevance: 9\nDoc: 1, Relevance: 7\nDoc: 4, Relevance: 2\nDoc: 2, Relevance: 1")
        expected = [told(node) for node in LLMRerank(llm=says, top_n=4).postprocess_nodes(found, query_str=QUESTION)]
        own = ours.VectorRetriever(index, k=4) >> ours.LLMRerank(Says(answer="[3, 1, 4, 2]"), depth=4)
        assert await both(own) == expected

    async def test_parents(self, kind: str) -> None:
        manuals = read(
            kind,
            [
                "The pump is reset with a key. It is green. " + "Its hook is beside the pump. " * 10,
                "The gate is locked at night with a key. " + "The office has a spare one. " * 10,
            ],
        )
        parser = HierarchicalNodeParser.from_defaults([1024, 256], chunk_overlap=0)
        parsed = parser.get_nodes_from_documents(manuals)
        storage = StorageContext.from_defaults()
        storage.docstore.add_documents(parsed)
        leaves = VectorStoreIndex(get_leaf_nodes(parsed), storage_context=storage, embed_model=Words(embed_dim=256))
        native = AutoMergingRetriever(leaves.as_retriever(similarity_top_k=4), storage, simple_ratio_thresh=0.0)
        own = ours.VectorRetriever(leaves, k=2) >> ours.ParentExpansionPostprocessor(storage)
        expected, found = native.retrieve(QUESTION), await both(own)
        # A parent has its child's id, and the metadata of its own.
        assert [one[1:] for one in found] == [told(node)[1:] for node in expected]
        assert len(expected) == 2

    async def test_windows(self, kind: str) -> None:
        text = "The pump hums. The pump is reset with a key. The key is green. The gate is old. It is shut. None enter."
        parser = SentenceWindowNodeParser.from_defaults(window_size=1)
        sentences = VectorStoreIndex(
            parser.get_nodes_from_documents(read(kind, [text])), embed_model=Words(embed_dim=256)
        )
        question = "with which key is the pump reset"
        native = MetadataReplacementPostProcessor(target_metadata_key="window")
        for k in (1, 3):
            windows = native.postprocess_nodes(sentences.as_retriever(similarity_top_k=k).retrieve(question))
            own = ours.VectorRetriever(sentences, k=k) >> ours.SentenceWindowPostprocessor()
            found = [" ".join(window.split()) for _, window, _ in await both(own, question)]
            # Windows that overlap come once, joined; there a sentence comes with each of its neighbours.
            assert all(any(" ".join(window.text.split()) in one for one in found) for window in windows)
            assert all(sum(one.count(sentence) for one in found) <= 1 for sentence in text.split(". "))

    async def test_citations(self, kind: str) -> None:
        index = VectorStoreIndex(cut(kind), embed_model=Words(embed_dim=256))
        says = Says(answer="With the green key [1], says [9].")
        native = CitationQueryEngine.from_args(index, llm=says, similarity_top_k=3).query(QUESTION)
        engine = ours.CitedQueryEngine(ours.VectorRetriever(index, k=3), llm=says)
        for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
            assert str(response) == str(native)
            # The nodes as they were found; there texts begin with "Source 1:", under ids of their own.
            assert [node.metadata for node in response.source_nodes] == [
                {**node.metadata, **({"voicevault": mark} if (mark := own.metadata.get("voicevault")) else {})}
                for node, own in zip(native.source_nodes, response.source_nodes, strict=True)
            ]
            assert [node.text for node in response.source_nodes] == [
                node.text.split(":\n", 1)[1].strip() for node in native.source_nodes
            ]
            assert [citation.index for citation in response.citations] == [1]
            assert [marker.text for marker in response.unresolved] == ["[9]"]

    async def test_a_tool(self, kind: str) -> None:
        index = VectorStoreIndex(cut(kind), embed_model=Words(embed_dim=256))
        native = RetrieverTool.from_defaults(index.as_retriever(similarity_top_k=3), name="manuals", description="x")
        retriever = ours.VectorRetriever(index, k=3)
        own, again = (ours.RetrievalTool.from_defaults(retriever, name="manuals", description="x") for _ in "ab")
        given = [told(node) for node in index.as_retriever(similarity_top_k=3).retrieve(QUESTION)]
        for content in (own.call(QUESTION).content, (await again.acall(QUESTION)).content):
            assert [content.index(text) for _, text, _ in given] == sorted(content.index(text) for _, text, _ in given)
            assert [f"[{number}]" in content for number in (1, 2, 3, 4)] == [True, True, True, False]
        assert all(text in native.call(QUESTION).content for _, text, _ in given)

    async def test_a_made_up_answer(self, kind: str) -> None:
        index = VectorStoreIndex(cut(kind), embed_model=Words(embed_dim=256))
        says = Says(answer="The pump leaks where its seal is worn.")
        native = index.as_retriever(similarity_top_k=3).retrieve(HyDEQueryTransform(llm=says).run("what drips?"))
        own = ours.QueryExpander(says, size=1, hyde=True)
        found = index.as_retriever(similarity_top_k=3).retrieve(own.run("what drips?"))
        assert [told(node) for node in found] == [told(node) for node in native]
        alone = await both(ours.HybridRetriever(channels={"dense": index}, expansion=own, k=3), "what drips?")
        assert alone[0] == told(native[0])

    async def test_recency(self, kind: str) -> None:
        nodes = cut(kind)
        for at, node in enumerate(nodes):
            node.metadata["date"] = f"2026-0{at + 1}-01"
            node.excluded_embed_metadata_keys.append("date")
        index = VectorStoreIndex(nodes, embed_model=Words(embed_dim=256))
        pytest.importorskip("pandas")
        native = FixedRecencyPostprocessor(top_k=5, date_key="date")
        found = index.as_retriever(similarity_top_k=5).retrieve(QUESTION)
        expected = [told(node) for node in native.postprocess_nodes(found, query_str=QUESTION)]
        # There the date alone orders; here a weight that no relevance outweighs does so.
        recent = ours.RecencyPostprocessor(weight=1000.0, half_life_days=30.0, reference_date="2026-06-01")
        assert await both(ours.VectorRetriever(index, k=5) >> recent) == expected
