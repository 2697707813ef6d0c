"""QueryExpander: by rules, by a model, with a made-up answer; as a query transform and in a retriever."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate, RichPromptTemplate
from llama_index.core.prompts.default_prompts import DEFAULT_HYDE_PROMPT
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from tests.frameworks.llama_index_parts import Answering, HashEmbedding, ListRetriever, nodes, scored, told
from tests.helpers import Asked, no_model
from voicevault_retrievers.errors import ConfigError, RetrievalError, SearchTimeoutError
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, provenance
from voicevault_retrievers.llama_index.query import QueryExpander
from voicevault_retrievers.query import RuleExpansion

QUESTION = "How do I reset the pump?"


class Awaited(Answering):
    """One that has an async call of its own, and no other."""

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise AssertionError("an async search awaits")

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.answer)


# What it gives


async def test_by_rules() -> None:
    expander = QueryExpander()
    expected = [QUESTION, f"{QUESTION} restart reboot", "reset the pump"]
    assert expander.wordings(QUESTION) == await expander.awordings(QUESTION) == expected
    assert QueryExpander(size=2).wordings(QUESTION) == expected[:2]
    assert expander.wordings("") == [""]


@pytest.mark.parametrize(
    "answer",
    [
        "restart the pump\npump reset\none too many",
        'Sure!\n1. "restart the pump"\n2. pump reset\nLet me know if you need more.',
        'Here you are:\n```json\n["restart the pump", "pump reset"]\n```',
        '{"queries": ["restart the pump", "pump reset"]}',
        f"- {QUESTION.upper()}\n- restart the pump\n- Restart  the pump\n- pump reset",
    ],
)
async def test_by_a_model_however_it_writes(answer: str) -> None:
    expected = [QUESTION, "restart the pump", "pump reset"]
    for llm in (Answering(answer=answer), Asked(answer)):
        expander = QueryExpander(llm)
        assert expander.wordings(QUESTION) == await expander.awordings(QUESTION) == expected
    assert await QueryExpander(Awaited(answer=answer)).awordings(QUESTION) == expected


def test_a_made_up_answer_comes_last() -> None:
    def llm(prompt: str) -> str:
        return "Press the\nred button." if "passage" in prompt else "restart\nreset"

    assert QueryExpander(llm, hyde=True).wordings(QUESTION) == [QUESTION, "restart", "reset", "Press the red button."]
    asked = Asked("Press it.")
    assert QueryExpander(asked, hyde=True, size=1).wordings(QUESTION) == [QUESTION, "Press it."]
    assert len(asked.prompts) == 1


async def test_a_model_without_an_async_call_does_not_hold_the_event_loop() -> None:
    asked = Asked("restart")
    await QueryExpander(asked).arun(QUESTION)
    assert asked.threads != [threading.current_thread().name]


# As a query transform


async def test_a_bundle_is_made_anew_with_all_it_had() -> None:
    expander = QueryExpander(Asked("restart\nagain"))
    assert isinstance(expander, BaseQueryTransform)
    assert isinstance(expander, PromptMixin)
    given = QueryBundle(QUESTION, image_path="pump.png", custom_embedding_strs=["my own"], embedding=[0.5])
    before = copy.deepcopy(given)
    made = expander.run(given)
    assert made == await expander.arun(given) == expander(given)
    assert made == QueryBundle(QUESTION, "pump.png", [QUESTION, "my own", "restart"], [0.5])
    assert given == before
    assert made.custom_embedding_strs is not given.custom_embedding_strs
    plain = QueryBundle(QUESTION, custom_embedding_strs=[QUESTION, "restart", "again"])
    assert expander.run(QUESTION) == await expander.arun(QUESTION) == plain


def test_in_a_query_engine() -> None:
    retriever = ListRetriever(scored(("pump", 0.9)))
    engine = TransformQueryEngine(
        RetrieverQueryEngine.from_args(retriever, llm=MockLLM()), QueryExpander(Asked("restart")), {"unread": 1}
    )
    assert "Query: How do I reset the pump?" in str(engine.query(QUESTION))
    assert retriever.asked == [QueryBundle(QUESTION, custom_embedding_strs=[QUESTION, "restart"])]
    assert "query_transform:expansion" in engine.get_prompts()


@pytest.mark.parametrize("theirs", [False, True])
def test_a_vector_retriever_searches_what_was_added(theirs: bool) -> None:
    embed_model = HashEmbedding()
    retriever: BaseRetriever = HybridRetriever.from_nodes(nodes(), embed_model)
    if theirs:
        retriever = VectorStoreIndex(nodes(), embed_model=embed_model).as_retriever(similarity_top_k=4)
    wording = "alarm sounds when the water level is too high"
    expanded = QueryExpander(Asked(wording)).run("siren")
    assert _score(retriever.retrieve(expanded), "alarm") > _score(retriever.retrieve("siren"), "alarm")


def _score(found: list[NodeWithScore], node_id: str) -> float:
    return next((node.score or 0.0 for node in found if node.node_id == node_id), 0.0)


async def test_its_rewriter_expands_in_a_retriever() -> None:
    asked = Asked("alarm\nwater level")
    retriever = HybridRetriever.from_nodes(nodes(), HashEmbedding(), expansion=QueryExpander(asked).rewriter)
    found = retriever.retrieve("siren")
    assert found == await retriever.aretrieve("siren")
    assert len(asked.prompts) == 1  # the answer is kept
    alarm = next(node for node in found if node.node_id == "alarm")
    assert told(alarm)["channels"]["bm25"]["query"] in ("alarm", "water level")
    degraded = HybridRetriever.from_nodes(nodes(), HashEmbedding(), expansion=QueryExpander(no_model).rewriter)
    assert told(degraded.retrieve("pump")[0])["degraded"] == ["expansion: RuntimeError"]
    assert repr(QueryExpander()) == f"QueryExpander(Together([{RuleExpansion(3)!r}]), on_error='skip')"


# Prompts


@pytest.mark.parametrize(
    "prompt",
    [
        '{count}: {query} {"a": 1}',
        '{num_queries}: {query_str} {"a": 1}',
        PromptTemplate('{num_queries}: {query_str} {"a": 1}'),
        PromptTemplate('{count}: {mine} {"a": 1}', template_var_mappings={"query_str": "mine"}),
        PromptTemplate("{count}: {query} {tail}", tail='{"a": 1}'),
        PromptTemplate("{count}: {query} {tail}", function_mappings={"tail": lambda **values: '{"a": 1}'}),
        RichPromptTemplate('{{ num_queries }}: {{ query_str }} {"a": 1}'),
    ],
)
def test_prompts(prompt: Any) -> None:
    asked = Asked("restart")
    QueryExpander(asked, prompt=prompt).wordings("{query} {x}?")
    QueryExpander(asked, size=1, hyde=prompt).wordings("{query} {x}?")
    assert asked.prompts == ['2: {query} {x}? {"a": 1}', '{count}: {query} {x}? {"a": 1}']


def test_prompts_are_shown_and_updated_also_for_a_retriever_that_expands() -> None:
    asked = Asked("restart")
    expander = QueryExpander(asked, hyde=True)
    rewriter = expander.rewriter
    shown = expander.get_prompts()
    assert list(shown) == ["expansion", "hyde"]
    expander.update_prompts({"expansion": PromptTemplate("Reword {query_str}"), "hyde": DEFAULT_HYDE_PROMPT})
    expander.wordings(QUESTION)
    hyde = DEFAULT_HYDE_PROMPT.format(context_str=QUESTION)
    assert sorted(asked.prompts) == sorted([f"Reword {QUESTION}", hyde])
    assert expander.rewriter is rewriter
    with pytest.raises(ConfigError):
        expander.update_prompts({"expansion": PromptTemplate("Say {query}"), "hyde": PromptTemplate("no place")})
    assert expander.get_prompts()["expansion"].get_template() == "Reword {query}"
    expander.update_prompts(shown)
    assert expander.get_prompts() == shown
    assert QueryExpander().get_prompts() == {}
    assert list(QueryExpander(asked).get_prompts()) == ["expansion"]


# Errors


async def test_a_failing_model_leaves_the_question_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    for llm in (no_model, lambda prompt: "", Answering(answer=" ")):
        caplog.clear()
        expander = QueryExpander(llm, hyde=True)
        bundle = QueryBundle(QUESTION, custom_embedding_strs=[QUESTION])
        assert expander.run(QUESTION) == await expander.arun(QUESTION) == bundle
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 4
    raising = QueryExpander(no_model, on_error="raise")
    with pytest.raises(RuntimeError, match="no model"):
        raising.run(QUESTION)
    with pytest.raises(RuntimeError, match="no model"):
        await raising.arun(QUESTION)
    with pytest.raises(RetrievalError):
        QueryExpander(lambda prompt: "", on_error="raise").wordings(QUESTION)


def test_what_one_call_of_a_model_gave_stays_where_the_other_fails(caplog: pytest.LogCaptureFixture) -> None:
    def llm(prompt: str) -> str:
        return no_model(prompt) if "passage" in prompt else "restart"

    assert QueryExpander(llm, hyde=True).wordings(QUESTION) == [QUESTION, "restart"]
    assert "QueryExpander goes on without hyde: RuntimeError" in caplog.text


async def test_a_model_is_not_waited_for_longer_than_the_timeout() -> None:
    done = threading.Event()

    def hanging(prompt: str) -> str:
        done.wait()
        return "restart"

    expander = QueryExpander(hanging, timeout=0.01, on_error="raise")
    try:
        with pytest.raises(SearchTimeoutError):
            expander.run(QUESTION)
        with pytest.raises(SearchTimeoutError):
            await expander.arun(QUESTION)
    finally:
        done.set()


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"llm": 3},
        {"hyde": True},
        {"prompt": "{query}"},
        {"llm": no_model, "prompt": "no place for the question"},
        {"llm": no_model, "prompt": 3},
        {"llm": no_model, "hyde": ""},
        {"llm": no_model, "hyde": 3},
        {"llm": no_model, "timeout": 0},
        {"llm": no_model, "on_error": "ignore"},
        {"llm": no_model, "prompt": PromptTemplate("{query_str} {history}")},
        {"llm": no_model, "prompt": RichPromptTemplate("{{ query_str }} {{ history }}")},
        {"llm": no_model, "prompt": ChatPromptTemplate.from_messages([("user", "{query_str}")])},
        {"llm": no_model, "prompt": RichPromptTemplate("{% chat role='user' %}{{ query_str }}{% endchat %}")},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QueryExpander(**options)


async def test_nodes_say_which_wordings_were_asked_and_which_found_them() -> None:
    texts = {"a": "Restart the motor", "b": "Reset the pump"}
    channel = BM25Retriever.from_nodes([TextNode(id_=name, text=text) for name, text in texts.items()])
    retriever = HybridRetriever(channels={"bm25": channel}, expansion=True)
    related = f"{QUESTION} restart reboot"
    for found in (retriever.retrieve(QUESTION), await retriever.aretrieve(QUESTION)):
        told = {node.node_id: provenance(node) or {} for node in found}
        assert {name: one["channels"]["bm25"]["query"] for name, one in told.items()} == {"a": related, "b": QUESTION}
        assert all(one["wordings"] == [QUESTION, related] for one in told.values())
    assert "wordings" not in (provenance(retriever.retrieve("tides of the motor")[0]) or {})
