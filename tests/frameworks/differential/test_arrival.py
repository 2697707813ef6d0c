"""What a framework's own part returns behind a retriever is what the retriever returns.

The framework's expression and this package's, side by side: texts, metadata, scores, order and number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_community.document_transformers import EmbeddingsRedundantFilter, LongContextReorder
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_text_splitters import CharacterTextSplitter
from llama_index.core.postprocessor import (
    FixedRecencyPostprocessor,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor import LongContextReorder as NodeReorder
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from tests.frameworks.langchain_parts import Hashed
from tests.frameworks.llama_index_parts import HashEmbedding, told
from tests.helpers import HashEmbedder
from voicevault_retrievers import langchain, llama_index

QUESTION = "how is the pump flushed"
TEXTS = (
    "Flush the pump housing before the seal is changed",
    "The pump seal is rated for hot water. Flush it twice",
    "A pump and a filter are joined by a hose",
    "Close the door of the pump cabinet",
)


def loaded() -> list[Document]:
    """As loaders give them: without ids."""
    return [
        Document(text, metadata={"source": "manual.pdf", "page": page, "tags": ["a", {"n": page}]})
        for page, text in enumerate(TEXTS)
    ]


def retriever(**options: Any) -> langchain.HybridRetriever:
    return langchain.HybridRetriever.from_documents(loaded(), HashEmbedder(), k=3, fusion="rrf", **options)


class Changes(BaseDocumentCompressor):
    change: Any

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        return self.change(list(documents))


class Transforms(BaseDocumentTransformer):
    def __init__(self, change: Callable[[list[Document]], list[Document]]) -> None:
        self.change = change

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        return self.change(list(documents))


def with_metadata(document: Document, **metadata: Any) -> Document:
    return document.model_copy(update={"metadata": {**document.metadata, **metadata}})


CHANGES: dict[str, Callable[[list[Document]], list[Document]]] = {
    "drop": lambda found: found[1:],
    "drop all": lambda found: [],
    "reverse": lambda found: found[::-1],
    "add a summary": lambda found: [Document("In short", metadata={"of": 3}), *found],
    "only new ones": lambda found: [Document(one.page_content.upper(), metadata={"n": 1}) for one in found],
    "add metadata": lambda found: [with_metadata(one, seen=True) for one in found],
    "change metadata": lambda found: [with_metadata(one, page=one.metadata["page"] + 10) for one in found],
    "remove metadata": lambda found: [one.model_copy(update={"metadata": {}}) for one in found],
    "change texts": lambda found: [one.model_copy(update={"page_content": one.page_content[:9]}) for one in found],
    "make anew": lambda found: [Document(one.page_content, metadata={"source": "again"}) for one in found],
    "scores that rise": lambda found: [with_metadata(one, relevance_score=0.1 * at) for at, one in enumerate(found)],
    "scores that fall": lambda found: [with_metadata(one, relevance_score=-0.1 * at) for at, one in enumerate(found)],
    "twice": lambda found: [*found, *found],
    "in two": lambda found: [
        Document(half, metadata=one.metadata)
        for one in found
        for half in (one.page_content[:10], one.page_content[10:])
    ],
}  # fmt: skip

LIBRARY: dict[str, Callable[[], Any]] = {
    "LongContextReorder": LongContextReorder,
    "EmbeddingsRedundantFilter": lambda: EmbeddingsRedundantFilter(embeddings=Hashed(), similarity_threshold=0.99),
    "EmbeddingsFilter": lambda: EmbeddingsFilter(embeddings=Hashed(), k=2),
    "a splitter": lambda: CharacterTextSplitter(separator=" ", chunk_size=20, chunk_overlap=0),
    "a pipeline": lambda: DocumentCompressorPipeline(
        transformers=[
            CharacterTextSplitter(separator=" ", chunk_size=30, chunk_overlap=0),
            EmbeddingsRedundantFilter(embeddings=Hashed()),
            EmbeddingsFilter(embeddings=Hashed(), k=4),
        ]
    ),
}

PARTS = {
    **{f"compressor: {name}": (lambda change=change: Changes(change=change)) for name, change in CHANGES.items()},
    **{f"transformer: {name}": (lambda change=change: Transforms(change)) for name, change in CHANGES.items()},
    **LIBRARY,
}


def bare(documents: Sequence[Document]) -> list[tuple[str, dict[str, Any]]]:
    """What documents say, without the provenance."""
    return [
        (one.page_content, {key: value for key, value in one.metadata.items() if key != "voicevault"})
        for one in documents
    ]


def expressions(part: Callable[[], Any]) -> tuple[Any, Any]:
    made = part()
    native = made if isinstance(made, BaseDocumentCompressor) else DocumentCompressorPipeline(transformers=[made])
    return ContextualCompressionRetriever(base_compressor=native, base_retriever=retriever()), retriever() >> part()


@pytest.mark.parametrize("on_the_loop", [False, True])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_langchains_documents_arrive(part: Callable[[], Any], on_the_loop: bool) -> None:
    native, own = expressions(part)
    if on_the_loop:
        wanted, found = asyncio.run(native.ainvoke(QUESTION)), asyncio.run(own.ainvoke(QUESTION))
    else:
        wanted, found = native.invoke(QUESTION), own.invoke(QUESTION)
    assert bare(found) == bare(wanted)
    assert len({one.id for one in found}) == len(found)


@pytest.mark.parametrize("name", ["add metadata", "change texts", "reverse", "scores that rise"])
def test_provenance_stays_where_the_id_is_known_and_begins_anew_where_it_is_not(name: str) -> None:
    kept = (retriever() >> Changes(change=CHANGES[name])).invoke(QUESTION)
    assert all(one.metadata["voicevault"]["channels"].keys() <= {"bm25", "dense"} for one in kept)
    assert all(one.metadata["voicevault"]["fused"] for one in kept)
    new = (retriever() >> Changes(change=CHANGES["only new ones"])).invoke(QUESTION)
    told_of_new = [one.metadata["voicevault"] for one in new]
    assert [one["Changes"]["rank"] for one in told_of_new] == [1, 2, 3]
    assert not any(one["channels"] for one in told_of_new)


def test_one_of_this_packages_behind_it_cuts_again() -> None:
    adding = Changes(change=CHANGES["in two"])
    assert len((retriever() >> adding).invoke(QUESTION)) == 6
    assert len((retriever() >> adding >> langchain.PageDiversityFilter(max_chunks_per_page=9)).invoke(QUESTION)) == 3


def test_a_part_that_removes_what_rights_are_checked_on_loses_no_document_and_adds_none() -> None:
    read = retriever(require={"source": "manual.pdf"})
    assert len((read >> Changes(change=CHANGES["remove metadata"])).invoke(QUESTION)) == 3
    assert len((read >> Changes(change=CHANGES["add metadata"])).invoke(QUESTION)) == 3
    added = (read >> Changes(change=CHANGES["add a summary"])).invoke(QUESTION)
    assert "In short" not in [one.page_content for one in added]
    assert len(added) == 3


def nodes() -> list[TextNode]:
    made = [
        TextNode(
            id_=f"n{at}",
            text=text,
            metadata={
                "file_name": "manual.pdf", "page_label": str(at), "date": datetime(2020 + at, 1, 1).isoformat(),
                "window": f"around {text}",
            },
            excluded_llm_metadata_keys=["date"],
        )
        for at, text in enumerate(TEXTS)
    ]  # fmt: skip
    for before, after in pairwise(made):
        before.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=after.node_id)
        after.relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=before.node_id)
    return made


def store() -> SimpleDocumentStore:
    held = SimpleDocumentStore()
    held.add_documents(nodes())
    return held


def node_retriever(**options: Any) -> llama_index.HybridRetriever:
    return llama_index.HybridRetriever.from_nodes(nodes(), HashEmbedding(), k=2, **options)


class NodeChanges(BaseNodePostprocessor):
    change: Any

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: Any = None) -> list[NodeWithScore]:
        return self.change(nodes)


def each(change: Callable[[TextNode, int], Any]) -> Callable[[list[NodeWithScore]], list[NodeWithScore]]:
    def changed(found: list[NodeWithScore]) -> list[NodeWithScore]:
        for at, one in enumerate(found):
            change(one.node, at)
        return found

    return changed


def hide(node: TextNode, at: int) -> None:
    node.excluded_llm_metadata_keys = ["file_name", "window"]


def split(found: list[NodeWithScore]) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=half, metadata=one.node.metadata), score=one.score)
        for one in found
        for half in (one.node.get_content()[:10], one.node.get_content()[10:])
    ]


NODE_CHANGES: dict[str, Callable[[list[NodeWithScore]], list[NodeWithScore]]] = {
    "drop": lambda found: found[1:],
    "drop all": lambda found: [],
    "reverse": lambda found: found[::-1],
    "add a summary": lambda found: [NodeWithScore(node=TextNode(text="In short", metadata={"of": 2})), *found],
    "add metadata": each(lambda node, at: node.metadata.update(seen=at)),
    "change metadata": each(lambda node, at: node.metadata.update(page_label="9")),
    "remove metadata": each(lambda node, at: node.metadata.clear()),
    "hide metadata": each(hide),
    "change texts": each(lambda node, at: node.set_content(node.get_content()[:9])),
    "scores that rise": lambda found: [NodeWithScore(node=one.node, score=0.1 * at) for at, one in enumerate(found)],
    "no scores": lambda found: [NodeWithScore(node=one.node) for one in found],
    "twice": lambda found: [*found, *found],
    "in two": split,
}

NODE_LIBRARY: dict[str, Callable[[], BaseNodePostprocessor]] = {
    "PrevNext": lambda: PrevNextNodePostprocessor(docstore=store(), num_nodes=1, mode="both"),
    "LongContextReorder": NodeReorder,
    "FixedRecency": lambda: FixedRecencyPostprocessor(top_k=2),
    "MetadataReplacement": lambda: MetadataReplacementPostProcessor(target_metadata_key="window"),
    "Similarity": lambda: SimilarityPostprocessor(similarity_cutoff=0.0),
}

NODE_PARTS = {
    **{name: (lambda change=change: NodeChanges(change=change)) for name, change in NODE_CHANGES.items()},
    **NODE_LIBRARY,
}


def seen(found: Sequence[NodeWithScore]) -> list[tuple[Any, ...]]:
    return [
        (one.node.get_content(), one.node.metadata, one.node.excluded_llm_metadata_keys, one.score, type(one.node))
        for one in found
    ]


@pytest.mark.parametrize("on_the_loop", [False, True])
@pytest.mark.parametrize("part", NODE_PARTS.values(), ids=NODE_PARTS)
def test_llama_indexs_nodes_arrive(part: Callable[[], BaseNodePostprocessor], on_the_loop: bool) -> None:
    own = node_retriever() >> part()
    wanted = part().postprocess_nodes(node_retriever().retrieve(QUESTION), query_str=QUESTION)
    found = asyncio.run(own.aretrieve(QUESTION)) if on_the_loop else own.retrieve(QUESTION)
    assert seen(found) == seen(wanted)


def test_neighbours_are_all_given_at_k_of_two() -> None:
    hits = {int(one.node_id[1:]) for one in node_retriever().retrieve(QUESTION)}
    found = (node_retriever() >> NODE_LIBRARY["PrevNext"]()).retrieve(QUESTION)
    beside = {at + step for at in hits for step in (-1, 0, 1)} & set(range(len(nodes())))
    assert len(beside) > len(hits) == 2
    assert sorted(one.node_id for one in found) == [f"n{at}" for at in sorted(beside)]


def test_a_node_keeps_its_provenance_and_one_that_is_made_has_its_own() -> None:
    summary, *kept = (node_retriever() >> NodeChanges(change=NODE_CHANGES["add a summary"])).retrieve(QUESTION)
    assert told(summary)["channels"] == {}
    assert told(summary)["NodeChanges"]["rank"] == 1
    assert all(told(one)["channels"] for one in kept)
    assert [told(one)["NodeChanges"]["rank"] for one in kept] == [2, 3]
