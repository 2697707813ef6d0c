"""Models are loaded ahead: of each channel and stage of a composition, through a pipeline and both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers import Counting
from voicevault_retrievers import BM25, Chunk, KnowledgeBase, Pipeline, TenantIndex, VectorChannel, fuse
from voicevault_retrievers.core.stages import TopN
from voicevault_retrievers.query import RuleExpansion, RuleRouter
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank
from voicevault_retrievers.store.questions import question_index

CHUNKS = [Chunk("a", "the pump"), Chunk("b", "the valve")]
ONCE = ["warm up"]


def reranker(asked: list[str]) -> CrossEncoderRerank:
    def score(query: str, passages: Sequence[str]) -> list[float]:
        asked.append(query)
        return [1.0] * len(passages)

    return CrossEncoderRerank(CallableScorer(score, name="counted"))


def test_every_model_of_a_composition_is_loaded() -> None:
    embedders, scored = [Counting() for _ in range(2)], list[str]()
    inner, outer = (VectorChannel.from_chunks(CHUNKS, embedder) for embedder in embedders)
    nested = RuleRouter() >> fuse(bm25=BM25.from_chunks(CHUNKS), dense=inner) >> TopN(reranker(scored), 5)
    pipeline = Pipeline(RuleExpansion() >> fuse(nested=Pipeline(nested).narrowed(), dense=outer) >> reranker(scored))
    assert pipeline.warm_up() is None
    assert [embedder.asked for embedder in embedders] == [ONCE, ONCE]
    assert scored == ONCE * 2


def test_questions_and_a_tenants_index_have_models_too(tmp_path: Path) -> None:
    embedder = Counting()
    with KnowledgeBase.create("kb", root=tmp_path, embedder=embedder) as kb:
        kb.add(CHUNKS)
        question_index(kb).update(lambda chunk: ["what moves water?"])
    for dense in (kb.questions(by="dense"), TenantIndex("kb", root=tmp_path, embedder=embedder).dense()):
        embedder.asked.clear()
        Pipeline(dense).warm_up()
        assert embedder.asked == ONCE
    Pipeline(TenantIndex("nobody", root=tmp_path, embedder=embedder).dense()).warm_up()


def test_what_cannot_be_loaded_is_raised() -> None:
    def fails(query: str, passages: Sequence[str]) -> list[float]:
        raise OSError("no weights")

    stage = CrossEncoderRerank(CallableScorer(fails, name="gone"))
    with pytest.raises(OSError, match="no weights"):
        Pipeline(BM25.from_chunks(CHUNKS) >> stage).warm_up()


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_retrievers_of_both_frameworks_do_it(framework: str, tmp_path: Path) -> None:
    pytest.importorskip({"langchain": "langchain_core", "llama_index": "llama_index.core"}[framework])
    embedder, scored = Counting(), list[str]()
    with KnowledgeBase.create("kb", root=tmp_path, embedder=embedder) as kb:
        kb.add(CHUNKS)
        retriever = import_module(f"voicevault_retrievers.{framework}").HybridRetriever(
            kb_names=[kb], rerank=reranker(scored)
        )
        retriever.warm_up()
        await retriever.awarm_up()
    assert (embedder.asked, scored) == (ONCE * 2, ONCE * 2)
