"""Rerankers for LlamaIndex by a language model, by weighted signals and by age."""

from __future__ import annotations

import asyncio
import threading
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings, SimpleDirectoryReader
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.postprocessor import LLMRerank as TheirLLMRerank
from llama_index.core.prompts import ChatMessage, ChatPromptTemplate, PromptTemplate, RichPromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode

from tests.frameworks.llama_index_parts import Answering, hybrid, ids, nodes, recorded, scored
from tests.helpers import KnowingChannel
from voicevault_retrievers.core.channel import Then
from voicevault_retrievers.core.explanation import provenance as provenance_of
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError, RerankerError
from voicevault_retrievers.llama_index import BM25Retriever, provenance
from voicevault_retrievers.llama_index.events import announced
from voicevault_retrievers.llama_index.foreign_stages import stage_of
from voicevault_retrievers.llama_index.rerankers import LLMRerank, RecencyPostprocessor, WeightedRerank
from voicevault_retrievers.rerank import LLMRerank as LLMStage
from voicevault_retrievers.rerank import WeightedRerank as WeightedStage

QUESTION = "pump"
GIVEN = ("pump", 0.5), ("valve", 0.4), ("filter", 0.3)


class Answers(Answering):
    answer: str = "[3, 1]"


class Awaited(Answers):
    """One with an async call of its own."""

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        await asyncio.sleep(0)
        return self.complete(prompt)


# A language model


def test_a_model_gives_an_order_and_no_scores() -> None:
    llm = Answers()
    found = LLMRerank(llm, top_n=2).postprocess_nodes(scored(*GIVEN), query_str=QUESTION)
    assert [(node.node_id, node.score) for node in found] == [("filter", None), ("pump", None)]
    assert provenance(found[0]) == {"retrieved": {"score": 0.3}, "llm_rerank": {"rank": 1, "score": None}}
    assert '"pump"' in llm.prompts[0]
    assert "best 2 passages" in llm.prompts[0]


async def test_a_model_is_awaited_or_asked_in_a_worker_thread() -> None:
    for llm, on_loop in ((Awaited(), True), (Answers(), False)):
        found = await LLMRerank(llm).apostprocess_nodes(scored(*GIVEN), query_str=QUESTION)
        assert ids(found) == ["filter", "pump", "valve"]
        assert [thread is threading.main_thread() for thread in llm.threads] == [on_loop]


async def test_windows_slide_from_the_last_nodes_to_the_first() -> None:
    llm = Answers(answer="[2]")
    rerank = LLMRerank(llm, window=2, stride=1)
    found = rerank.postprocess_nodes(scored(*GIVEN), query_str=QUESTION)
    # pump (valve filter) -> (pump filter) valve -> filter pump valve
    assert ids(found) == ["filter", "pump", "valve"]
    assert (
        await LLMRerank.from_dict(rerank.to_dict(), llm=llm).apostprocess_nodes(scored(*GIVEN), query_str=QUESTION)
        == found
    )
    assert len(llm.prompts) == 2 * 2


def test_the_model_of_the_settings_is_taken_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    with pytest.raises(ConfigError, match="no language model is set"):
        LLMRerank()
    monkeypatch.setattr(Settings, "_llm", Answers())
    assert ids(LLMRerank().postprocess_nodes(scored(*GIVEN), query_str=QUESTION)) == ["filter", "pump", "valve"]


async def test_a_model_that_hangs_is_given_up() -> None:
    go = threading.Event()
    rerank = LLMRerank(lambda prompt: str(go.wait(30)), timeout=0.02, top_n=2)
    for found in (
        rerank.postprocess_nodes(scored(*GIVEN), query_str=QUESTION),
        await rerank.apostprocess_nodes(scored(*GIVEN), query_str=QUESTION),
    ):
        assert [(node.node_id, node.score) for node in found] == [("pump", 0.5), ("valve", 0.4)]
        assert "SearchTimeoutError" in (provenance(found[0]) or {})["degraded"][0]
    go.set()
    with pytest.raises(RerankerError, match="no JSON list"):
        LLMRerank(MockLLM(), on_error="raise").postprocess_nodes(scored(*GIVEN), query_str=QUESTION)


TEMPLATES = [
    "Q {query} P {passages} {other}",
    PromptTemplate("Q {query_str} P {context_str} {other}"),
    PromptTemplate("Q {mine} P {passages} {other}", template_var_mappings={"query": "mine"}),
    PromptTemplate("{word} {query} P {passages} {other}", word="Q"),
    RichPromptTemplate("Q {{ query }} P {{ passages }} {other}"),
]


@pytest.mark.parametrize("prompt", TEMPLATES, ids=lambda prompt: type(prompt).__name__)
def test_a_prompt_is_a_text_or_a_template(prompt: Any) -> None:
    llm = Answers()
    rerank = LLMRerank(llm, prompt=prompt)
    rerank.postprocess_nodes(scored(("a{query}", None)), query_str="b {passages}")
    assert llm.prompts == ['Q "b {passages}" P {"number": 1, "text": "a{query}"} {other}']
    assert LLMRerank.from_dict(rerank.to_dict(), llm=llm).to_dict() == rerank.to_dict()


def test_a_chat_prompt_is_one_text() -> None:
    llm = Answers()
    messages = [ChatMessage("You judge.", role="system"), ChatMessage("{query_str} {context_str}")]
    LLMRerank(llm, prompt=ChatPromptTemplate(messages)).postprocess_nodes(scored(*GIVEN), query_str=QUESTION)
    assert llm.prompts[0].startswith('system: You judge.\nuser: "pump" {"number": 1')


def test_prompts_are_had_and_changed_as_the_library_has_it() -> None:
    llm = Answers()
    rerank = LLMRerank(llm)
    (before,) = rerank.get_prompts().values()
    assert "{passages}" in before.get_template()
    rerank.update_prompts({"rerank_prompt": PromptTemplate("{query_str}: {context_str}"), "other": before})
    rerank.postprocess_nodes(scored(*GIVEN), query_str=QUESTION)
    assert llm.prompts[0].startswith('"pump": {"number": 1')
    with pytest.raises(ConfigError, match="places"):
        rerank.update_prompts({"rerank_prompt": PromptTemplate("{query_str}")})
    assert rerank.get_prompts()["rerank_prompt"].get_template() == "{query_str}: {context_str}"


# Weighted signals


def test_weighted_signals_are_read_from_the_nodes() -> None:
    retriever = hybrid(fusion="rrf")
    expected = Then(retriever.pipeline.channel, WeightedStage()).search(Query(QUESTION), 4)
    found = WeightedRerank().postprocess_nodes(retriever.retrieve(QUESTION))
    assert [(node.node_id, node.score) for node in found] == [(hit.id, hit.score) for hit in expected]
    told = [{**provenance_of(hit), "parent_id": "manual"} for hit in expected]
    assert [provenance(node) for node in found] == told


async def test_a_dense_channel_is_asked_by_the_nodes_own_ids() -> None:
    given = scored(*GIVEN, ("filter", 0.1))
    rerank = WeightedRerank(
        weights={"semantic": 1.0}, dense=KnowingChannel([], {"valve": 0.25, "filter": 0.5}), top_n=3
    )
    found = rerank.postprocess_nodes(given, query_str=QUESTION)
    assert [(node.node_id, node.score) for node in found] == [("filter", 0.5), ("filter", 0.5), ("valve", 0.25)]
    assert await rerank.apostprocess_nodes(given, query_str=QUESTION) == found
    with pytest.raises(ConfigError, match="needs the query"):
        rerank.postprocess_nodes(given)
    assert isinstance(rerank.stage, WeightedStage)
    assert rerank.stage.dense is rerank.dense
    assert WeightedRerank(dense=BM25Retriever.from_nodes(nodes())).dense.kind == "keyword"


# Age


def test_what_is_new_rises_whatever_its_date_is_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dated = [("old", "date", "2020-01-01"), ("new", "last_modified_date", datetime(2024, 7, 1, tzinfo=timezone.utc)),
             ("odd", "creation_date", "soon")]  # fmt: skip
    given = [
        NodeWithScore(node=TextNode(id_=name, text=name, metadata={key: day}), score=score)
        for (name, key, day), score in zip(dated, (0.9, 0.9, 0.1), strict=True)
    ]
    found = RecencyPostprocessor(weight=0.5, reference_date=date(2024, 7, 1)).postprocess_nodes(given)
    assert [(node.node_id, node.score) for node in found] == [
        ("new", 1.0 + 0.5), ("old", pytest.approx(1.0)), ("odd", 0.0),
    ]  # fmt: skip
    assert "degraded" not in (provenance(found[0]) or {})
    assert "RecencyPostprocessor notes: recency: UnreadableDate: 1 hits have a 'date' or 'last" in caplog.text
    (tmp_path / "a.txt").write_text("text")
    (document,) = SimpleDirectoryReader(str(tmp_path)).load_data()
    (of_today,) = RecencyPostprocessor(half_life_days=1e9).postprocess_nodes([NodeWithScore(node=document)])
    assert of_today.score == pytest.approx(1.0 + 0.1)


@pytest.mark.parametrize("reference", [date(2024, 7, 1), datetime(2024, 7, 1, 3), "2024-07-01"])
def test_a_reference_date_is_kept_as_it_is(reference: Any) -> None:
    rerank = RecencyPostprocessor(reference_date=reference)
    assert (rerank.reference_date, type(rerank.reference_date)) == (reference, type(reference))
    assert RecencyPostprocessor.from_json(rerank.to_json()).to_dict() == rerank.to_dict()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (LLMRerank, {"llm": print, "dept": 5}, "Did you mean 'depth'"),
        (LLMRerank, {"llm": print, "choice_batch_size": 5}, "one prompt"),
        (LLMRerank, {"llm": print, "choice_select_prompt": 5}, "here it is `prompt`"),
        (LLMRerank, {"llm": 3}, "llm is a LlamaIndex LLM"),
        (LLMRerank, {"llm": print, "depth": 0}, "depth is a whole number"),
        (LLMRerank, {"llm": print, "prompt": "{question}"}, "places"),
        (LLMRerank, {"llm": print, "prompt": 3}, "prompt is a text or a prompt template, not a int"),
        (LLMRerank, {"llm": print, "top_n": 0}, "top_n is 0"),
        (LLMRerank, {"llm": print, "window": 1}, "window is a whole number of at least 2"),
        (LLMRerank, {"llm": print, "window": 2, "stride": 2}, "stride is less than window"),
        (WeightedRerank, {"weights": {"fussed": 1.0}}, "Did you mean 'fused'"),
        (WeightedRerank, {"dense": "dense"}, "a channel is"),
        (RecencyPostprocessor, {"half_life_days": 0}, "half_life_days"),
        (RecencyPostprocessor, {"reference_date": "soon"}, "reference_date"),
        (RecencyPostprocessor, {"time_decay": 0.5}, "here it is `half_life_days`"),
        (RecencyPostprocessor, {"top_k": 3}, "here it is `top_n`"),
    ],
)
def test_a_wrong_option_is_refused(kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**options)


# As stages


def test_a_pipeline_takes_the_stage_and_its_top_n() -> None:
    rerank = LLMRerank(Answers(), top_n=2)
    assert isinstance(rerank.stage, LLMStage)
    assert repr(stage_of(rerank)) == f"TopN({rerank.stage!r}, 2)"
    channel = hybrid().pipeline.channel >> stage_of(rerank)
    assert channel.search(QUESTION, 4).ids == tuple(
        ids(rerank.postprocess_nodes(hybrid().retrieve(QUESTION), query_str=QUESTION))
    )


async def test_a_stage_in_a_retriever_tells_of_its_work() -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    stage = announced(stage_of(LLMRerank(Answers(), top_n=2)), CallbackManager([debug]))
    failing = announced(stage_of(LLMRerank(lambda prompt: "none")), CallbackManager([debug]))
    channel = hybrid().pipeline.channel
    given = channel.search(QUESTION, 50)
    for times, (tried, expected) in enumerate([(stage, 2), (failing, len(given)), (stage, 2)], 1):
        with recorded() as events:
            found = (channel >> tried).search(QUESTION, 4)
            assert await (channel >> tried).asearch(QUESTION, 4) == found
        start, end, *again = events
        assert [type(event) for event in again] == [type(start), type(end)]
        assert ids(start.nodes) == list(given.ids)
        assert (ids(end.nodes), len(end.nodes)) == (list(found.ids), expected)
        assert len(debug.get_event_pairs(CBEventType.RERANKING)) == 2 * times
    assert (start.top_n, start.model_name) == (2, "custom_llm")
    theirs = stage_of(TheirLLMRerank(MockLLM()))
    assert announced(theirs) is theirs


@pytest.mark.parametrize("stage", [LLMRerank(Answers()), RecencyPostprocessor()], ids=["waits", "computes"])
async def test_its_events_are_heard_on_the_event_loop(stage: Any) -> None:
    """A handler may be bound to it; what is searched meanwhile is searched elsewhere."""
    threads: list[str] = []

    class Handler(LlamaDebugHandler):
        def on_event_start(self, *given: Any, **more: Any) -> str:
            threads.append(threading.current_thread().name)
            return super().on_event_start(*given, **more)

        def on_event_end(self, *given: Any, **more: Any) -> None:
            threads.append(threading.current_thread().name)
            super().on_event_end(*given, **more)

    made = announced(stage_of(stage), CallbackManager([Handler(print_trace_on_end=False)]))
    await (hybrid().pipeline.channel >> made).asearch(QUESTION, 4)
    assert len(threads) >= 2
    assert set(threads) == {threading.current_thread().name}


def test_where_nobody_listens_no_events_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voicevault_retrievers.llama_index.events.node_of_hit", None)
    channel = hybrid().pipeline.channel >> announced(stage_of(LLMRerank(Answers())), CallbackManager())
    assert len(channel.search(QUESTION, 2)) == 2
