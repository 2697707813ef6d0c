"""A hit made again from a LangChain document, or a LlamaIndex node, is shown as the hit itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.display import explain, hit_data
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import WeightedRerank
from voicevault_retrievers.structure import ParentExpansion

CHUNKS = [
    Chunk("a", "The contract ends; see ERR_2043.", "p", {"source_file": "x.pdf", "page_number": 3}),
    Chunk("b", "Two contracts, no notice.", metadata={"n": 1.5, "tags": ["x"]}),
]


def _langchain() -> Callable[[Hit], Hit]:
    convert = pytest.importorskip("voicevault_retrievers.langchain.convert", exc_type=ImportError)
    return lambda hit: convert.hit_of(convert.document_of(hit))


def _llama_index() -> Callable[[Hit], Hit]:
    node = pytest.importorskip("voicevault_retrievers.llama_index.convert", exc_type=ImportError)
    return lambda hit: node.hit_of(node.node_of_hit(hit))


@pytest.mark.parametrize("framework", [_langchain, _llama_index], ids=["langchain", "llama_index"])
def test_a_hit_made_again_is_shown_as_the_hit(framework: Callable[[], Callable[[Hit], Hit]]) -> None:
    again = framework()
    inner = fuse(bm25=BM25.from_chunks(CHUNKS), dense=ListChannel([("a", 0.9)], name="dense"), method=RRF(60))
    parents = ParentExpansion({"p": Chunk("p", "The whole of the contract.")})
    pipelines = [
        compose({"bm25": BM25.from_chunks(CHUNKS), "dense": ListChannel([("a", 0.9)])}, fusion=RRF(60)) >> parents,
        Pipeline(fuse({"inner": inner, "list": ListChannel([("b", 0.5)], kind="graph")}, method=RRF(60))),
        Pipeline(BM25.from_chunks(CHUNKS)),
        Pipeline(BM25.from_chunks(CHUNKS)) >> WeightedRerank(),
    ]
    for pipeline in pipelines:
        for rank, hit in enumerate(pipeline.search("contract ERR_2043").hits, 1):
            assert hit_data(again(hit), rank) == hit_data(hit, rank)
            assert "<mark" in (explain(again(hit))._repr_html_() or "")
