"""The faults of LangChain's own rerankers beside this package; see test_langchain_peers.py."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from pydantic import ValidationError

from tests.frameworks.langchain_parts import Runs, by_length, documents, ids
from tests.oracles.langchain_peers import A, B, C, D, child, compressing, degraded, peer
from voicevault_retrievers.langchain import ContextReorder, CrossEncoderReranker, HybridRetriever, LLMReranker
from voicevault_retrievers.rerank import CallableScorer


def rerankers(score: Callable[[str, Sequence[str]], Sequence[float]]) -> tuple[Any, CrossEncoderReranker]:
    """Theirs and ours by the same model alone."""

    class Model(BaseCrossEncoder):
        def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            return list(score(text_pairs[0][0], [text for _, text in text_pairs]))

    theirs = peer("langchain_classic.retrievers.document_compressors.CrossEncoderReranker")
    return theirs(model=Model(), top_n=9), CrossEncoderReranker(scorer=CallableScorer(score, name="model"), blend=1)


def test_a_rerankers_score_is_kept() -> None:
    theirs, ours = rerankers(by_length)
    best = theirs.compress_documents(documents(), "pump")[0]
    assert "relevance_score" not in best.metadata
    assert ours.compress_documents(documents(), "pump")[0].metadata["relevance_score"] == len(best.page_content)


def test_a_score_that_is_no_number_is_told_and_does_not_sort() -> None:
    theirs, ours = rerankers(lambda query, passages: [0.1, 0.2, math.nan, 0.9])
    assert ids(theirs.compress_documents([A, B, C, D], "pump"))[0] != "d"  # which has the best
    found = ours.compress_documents([A, B, C, D], "pump")
    assert ids(found) == ["a", "b", "c", "d"]
    assert "gave nan for passage 2" in degraded(found)


def test_too_few_scores_lose_no_document() -> None:
    theirs, ours = rerankers(lambda query, passages: [0.1, 0.9])
    assert ids(theirs.compress_documents([A, B, C], "pump")) == ["b", "a"]
    found = ours.compress_documents([A, B, C], "pump")
    assert ids(found) == ["a", "b", "c"]
    assert "RerankerError" in degraded(found)


def test_a_model_loads_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(CrossEncoder=loaded.append))
    peer("langchain_community.cross_encoders.HuggingFaceCrossEncoder")(model_name="no/model")
    assert loaded == ["no/model"]
    loaded.clear()
    CrossEncoderReranker(scorer="no/model")
    assert loaded == []


def test_a_reranker_shows_in_traces() -> None:
    theirs, ours = rerankers(by_length)
    without, with_ours = Runs(), Runs()
    compressing(child(A), theirs).invoke("pump", {"callbacks": [without]})
    compressing(child(A), ours).invoke("pump", {"callbacks": [with_ours]})
    assert with_ours.started.keys() - without.started.keys() == {"CrossEncoderReranker"}


async def test_a_child_has_the_callers_configurable_values() -> None:
    below, config = child(A), RunnableConfig(configurable={"tenant": "a"})
    theirs = compressing(below, rerankers(by_length)[0])
    ours = HybridRetriever(channels={"child": below}, rerank=CallableScorer(by_length, name="length"))
    for retriever in (theirs, ours):
        retriever.invoke("pump", config)
        await retriever.ainvoke("pump", config)
    assert [seen["configurable"].get("tenant") for seen in below.seen] == [None, None, "a", "a"]


class Ranks(FakeListChatModel):
    """Answers with passages by number, from 0."""

    numbers: list[int]

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return RunnableLambda(lambda _: schema(ranked_document_ids=self.numbers))


@pytest.mark.parametrize(
    ("numbers", "order", "ours"),
    [([2, 2], ["c", "c"], ["c", "a", "b"]), ([1, -1], ["b", "c"], ["b", "a", "c"]), ([1, 9], None, ["b", "a", "c"])],
    ids=["repeated and left out", "negative", "invented"],
)
def test_a_models_numbers_neither_lose_nor_repeat_documents(
    numbers: list[int], order: list[str] | None, ours: list[str]
) -> None:
    listwise = peer("langchain_classic.retrievers.document_compressors.listwise_rerank.LLMListwiseRerank")
    theirs = listwise.from_llm(Ranks(responses=[], numbers=numbers))
    if order is None:
        with pytest.raises(IndexError):
            theirs.compress_documents([A, B, C], "pump")
    else:
        assert ids(theirs.compress_documents([A, B, C], "pump")) == order
    model = LLMReranker(llm=lambda prompt: str([number + 1 for number in numbers]))
    assert ids(model.compress_documents([A, B, C], "pump")) == ours


def test_the_best_of_an_even_number_comes_first_too() -> None:
    theirs = peer("langchain_community.document_transformers.LongContextReorder")()
    assert ids(theirs.transform_documents([A, B, C])) == ["a", "c", "b"]
    assert ids(theirs.transform_documents([A, B, C, D])) == ["b", "d", "c", "a"]
    assert ids(ContextReorder().compress_documents([A, B, C], "pump")) == ["a", "c", "b"]
    assert ids(ContextReorder().compress_documents([A, B, C, D], "pump")) == ["a", "c", "d", "b"]
    with pytest.raises(ValidationError):
        compressing(child(A), theirs)
    assert ids(compressing(child(A), ContextReorder()).invoke("pump")) == ["a"]
