"""The faults of LlamaIndex's postprocessors beside this package; see test_llama_index_peers.py.

SentenceTransformerRerank
    writes scores into what it was given           test_given_nodes_stay_as_they_are
    keeps the old score in the metadata            test_a_kept_score_changes_no_hash
    what scored NaN comes first                    test_a_score_that_is_no_number_is_told_and_does_not_sort
    a short score list fails the query             test_too_few_scores_fail_no_query
    a model that fails fails the query             test_a_failing_model_fails_no_query
    loads the model in the constructor             test_a_model_loads_on_first_use
    its default model is no reranker               test_the_default_model_is_a_reranker
    emits no reranking events                      test_a_reranker_emits_events
LLMRerank
    a number that is repeated repeats its node     test_a_models_numbers_neither_lose_nor_repeat_nodes
    ... 0 is the last node                         test_a_models_numbers_neither_lose_nor_repeat_nodes
    ... one below that fails the query             test_a_models_numbers_neither_lose_nor_repeat_nodes
    ... an answer without any leaves nothing       test_a_models_numbers_neither_lose_nor_repeat_nodes
    a relevance of 0.9 is 0                        test_a_model_gives_an_order_and_no_scores
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.postprocessor import LLMRerank as TheirLLMRerank
from llama_index.core.postprocessor import SentenceTransformerRerank
from llama_index.core.schema import NodeWithScore
from llama_index_instrumentation import get_dispatcher

from tests.frameworks.llama_index_parts import scored
from tests.oracles.llama_index_peers import Answering, degraded, ids, pairs
from voicevault_retrievers.llama_index import CrossEncoderRerank, provenance
from voicevault_retrievers.llama_index.rerankers import LLMRerank
from voicevault_retrievers.rerank import CallableScorer
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL

LOADED: list[str] = []


@pytest.fixture
def rerankers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Theirs and ours by a model that gives these scores, or raises; theirs loads it from sentence_transformers."""
    LOADED.clear()

    def made(*scores: float, error: Exception | None = None, **options: Any) -> tuple[Any, CrossEncoderRerank]:
        def predict(given: Sequence[object]) -> list[float]:
            if error is not None:
                raise error
            return list(scores)

        def loaded(model: str, **options: Any) -> Any:
            LOADED.append(model)
            return SimpleNamespace(predict=predict)

        monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(CrossEncoder=loaded))
        theirs = SentenceTransformerRerank(model="no/model", top_n=9, device="cpu", **options)
        scorer = CallableScorer(lambda query, passages: predict(passages), name="model")
        return theirs, CrossEncoderRerank(scorer, blend=1)

    return made


def given() -> list[NodeWithScore]:
    return scored(("a", 0.4), ("b", 0.3), ("c", 0.2), ("d", 0.1))


def test_given_nodes_stay_as_they_are(rerankers: Any) -> None:
    theirs, ours = rerankers(1.0, 2.0, 3.0, 4.0)
    for reranker, changed in ((ours, False), (theirs, True)):
        nodes = given()
        assert pairs(reranker.postprocess_nodes(nodes, query_str="pump")) == [
            ("d", 4.0),
            ("c", 3.0),
            ("b", 2.0),
            ("a", 1.0),
        ]
        assert (pairs(nodes) != pairs(given())) == changed


def test_a_kept_score_changes_no_hash(rerankers: Any) -> None:
    theirs, ours = rerankers(1.0, 2.0, 3.0, 4.0, keep_retrieval_score=True)
    first = theirs.postprocess_nodes(given(), query_str="pump")[0]
    assert first.metadata == {"retrieval_score": 0.1}
    assert first.node.hash != given()[3].node.hash
    first = ours.postprocess_nodes(given(), query_str="pump")[0]
    assert (provenance(first) or {})["retrieved"] == {"score": 0.1}
    assert (first.metadata, first.node.hash) == ({}, given()[3].node.hash)


def test_a_score_that_is_no_number_is_told_and_does_not_sort(rerankers: Any) -> None:
    theirs, ours = rerankers(math.nan, 0.1, 0.2, 0.9)
    sorted_by_it = ids(theirs.postprocess_nodes(given(), query_str="pump"))
    assert sorted_by_it.index("a") < sorted_by_it.index("b")  # the one without before one that has a score
    found = ours.postprocess_nodes(given(), query_str="pump")
    assert ids(found) == ["a", "b", "c", "d"]
    assert "gave nan for passage 0" in degraded(found)


async def test_too_few_scores_fail_no_query(rerankers: Any) -> None:
    theirs, ours = rerankers(0.1, 0.9)
    with pytest.raises(AssertionError):
        theirs.postprocess_nodes(given(), query_str="pump")
    for found in (
        ours.postprocess_nodes(given(), query_str="pump"),
        await ours.apostprocess_nodes(given(), query_str="pump"),
    ):
        assert pairs(found) == pairs(given())
        assert "RerankerError" in degraded(found)


async def test_a_failing_model_fails_no_query(rerankers: Any) -> None:
    theirs, ours = rerankers(error=MemoryError("out of memory"))
    with pytest.raises(MemoryError):
        theirs.postprocess_nodes(given(), query_str="pump")
    for found in (
        ours.postprocess_nodes(given(), query_str="pump"),
        await ours.apostprocess_nodes(given(), query_str="pump"),
    ):
        assert pairs(found) == pairs(given())
        assert degraded(found) == "rerank: MemoryError"


def test_a_model_loads_on_first_use(rerankers: Any) -> None:
    rerankers()
    assert LOADED == ["no/model"]
    LOADED.clear()
    CrossEncoderRerank("no/model")
    assert LOADED == []


def test_the_default_model_is_a_reranker() -> None:
    theirs = inspect.signature(SentenceTransformerRerank).parameters["model"].default
    assert "stsb" in theirs  # semantic textual similarity: how alike two sentences are
    assert "ms-marco" in DEFAULT_MODEL  # passages that answer a query
    assert CrossEncoderRerank().model == DEFAULT_MODEL


class Recorder(BaseEventHandler):
    """Keeps the names of events."""

    events: list[str] = []  # noqa: RUF012 - pydantic copies it

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self.events.append(event.class_name())


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder, root = Recorder(), get_dispatcher("root")
    root.add_event_handler(recorder)
    yield recorder
    root.event_handlers.remove(recorder)


def test_a_reranker_emits_events(rerankers: Any, recorder: Recorder) -> None:
    theirs, ours = rerankers(1.0, 2.0, 3.0, 4.0)
    theirs.postprocess_nodes(given(), query_str="pump")
    assert recorder.events == []
    ours.postprocess_nodes(given(), query_str="pump")
    assert recorder.events == ["ReRankStartEvent", "ReRankEndEvent"]


@pytest.mark.parametrize(
    ("said", "theirs", "numbers", "ours"),
    [
        ("Doc: 2, Relevance: 7\nDoc: 2, Relevance: 3", ["b", "b"], "[2, 2]", ["b", "a", "c", "d"]),
        ("Doc: 0, Relevance: 7", ["d"], "[0]", ["a", "b", "c", "d"]),
        ("Doc: -9, Relevance: 7", None, "[-9]", ["a", "b", "c", "d"]),
        ("The second is best.", [], "The second is best.", ["a", "b", "c", "d"]),
    ],
    ids=["repeated", "zero", "negative", "none"],
)
def test_a_models_numbers_neither_lose_nor_repeat_nodes(
    said: str, theirs: list[str] | None, numbers: str, ours: list[str]
) -> None:
    peer = TheirLLMRerank(llm=Answering(answer=said))
    if theirs is None:
        with pytest.raises(IndexError):
            peer.postprocess_nodes(given(), query_str="pump")
    else:
        assert ids(peer.postprocess_nodes(given(), query_str="pump")) == theirs
    found = LLMRerank(Answering(answer=numbers)).postprocess_nodes(given(), query_str="pump")
    assert ids(found) == ours
    if numbers != "[2, 2]":
        assert "no JSON list of passages 1 to 4" in degraded(found)


def test_a_model_gives_an_order_and_no_scores() -> None:
    peer = TheirLLMRerank(llm=Answering(answer="Doc: 1, Relevance: 0.2\nDoc: 2, Relevance: 0.9"))
    assert pairs(peer.postprocess_nodes(given(), query_str="pump")) == [("a", 0.0), ("b", 0.0)]
    found = LLMRerank(Answering(answer="[2, 1]")).postprocess_nodes(given(), query_str="pump")
    assert pairs(found) == [("b", None), ("a", None), ("c", None), ("d", None)]
