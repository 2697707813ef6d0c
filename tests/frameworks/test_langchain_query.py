"""QueryExpander: by rules, by a model, with a made-up answer; alone, in chains, in traces and in a retriever."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda

from tests.frameworks.langchain_parts import Starts, hybrid, ids
from tests.helpers import Asked, no_model
from voicevault_retrievers.errors import ConfigError, RetrievalError, SearchTimeoutError
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever
from voicevault_retrievers.langchain.query import QueryExpander
from voicevault_retrievers.query import RuleExpansion

QUESTION = "How do I reset the pump?"


def written(*answers: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(answers))


# What it gives


async def test_by_rules() -> None:
    expander = QueryExpander()
    expected = [QUESTION, f"{QUESTION} restart reboot", "reset the pump"]
    assert expander.invoke(QUESTION) == await expander.ainvoke(QUESTION) == expected
    assert expander.batch([QUESTION, "tides"]) == await expander.abatch([QUESTION, "tides"]) == [expected, ["tides"]]
    assert QueryExpander(size=2).invoke(QUESTION) == expected[:2]
    assert expander.invoke("") == [""]


@pytest.mark.parametrize("kind", ["chat model", "messages", "function"])
async def test_by_a_model(kind: str) -> None:
    answer = "Sure!\n1. restart the pump\n2. pump reset\n3. one too many"
    llm: Any = {
        "chat model": written(answer),
        "messages": GenericFakeChatModel(messages=iter([AIMessage(answer)] * 4)),
        "function": Asked(answer),
    }[kind]
    expander = QueryExpander(llm=llm)
    expected = [QUESTION, "restart the pump", "pump reset"]
    assert expander.invoke(QUESTION) == await expander.ainvoke(QUESTION) == expected
    assert expander.batch([QUESTION]) == await expander.abatch([QUESTION]) == [expected]


def test_a_made_up_answer_comes_last() -> None:
    def llm(prompt: str) -> str:
        return "Press the\nred button." if "passage" in prompt else "restart\nreset"

    assert QueryExpander(llm=llm, hyde=True).invoke(QUESTION) == [
        QUESTION, "restart", "reset", "Press the red button.",
    ]  # fmt: skip
    asked = Asked("Press it.")
    assert QueryExpander(llm=asked, hyde=True, size=1).invoke(QUESTION) == [QUESTION, "Press it."]
    assert len(asked.prompts) == 1


async def test_a_model_without_an_async_call_does_not_hold_the_event_loop() -> None:
    asked = Asked("restart")
    await QueryExpander(llm=asked).ainvoke(QUESTION)
    assert asked.threads != [threading.current_thread().name]


@pytest.mark.parametrize(
    "prompt",
    [
        "{count}: {query} {{}}",
        PromptTemplate.from_template("{count}: {question} {{{{}}}}"),
        PromptTemplate.from_template("{count}: {query} {tail}", partial_variables={"tail": "{{}}"}),
        PromptTemplate.from_template(
            "{{count}}: {{{query}}} {{{tail}}}", template_format="mustache", partial_variables={"tail": "{{}}"}
        ),
    ],
)
def test_prompts(prompt: Any) -> None:
    asked = Asked("restart")
    QueryExpander(llm=asked, prompt=prompt).invoke("{query} {x}?")
    QueryExpander(llm=asked, size=1, hyde=prompt).invoke("{query} {x}?")
    assert asked.prompts == ["2: {query} {x}? {{}}", "{count}: {query} {x}? {{}}"]


# Errors


async def test_a_failing_model_leaves_the_question_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    for llm in (no_model, lambda prompt: ""):
        caplog.clear()
        expander = QueryExpander(llm=llm, hyde=True)
        assert expander.invoke(QUESTION) == await expander.ainvoke(QUESTION) == [QUESTION]
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 4
    raising = QueryExpander(llm=no_model, on_error="raise")
    with pytest.raises(RuntimeError, match="no model"):
        raising.invoke(QUESTION)
    with pytest.raises(RuntimeError, match="no model"):
        await raising.ainvoke(QUESTION)
    with pytest.raises(RetrievalError):
        QueryExpander(llm=lambda prompt: "", on_error="raise").invoke(QUESTION)


def test_what_one_call_of_a_model_gave_stays_where_the_other_fails(caplog: pytest.LogCaptureFixture) -> None:
    def llm(prompt: str) -> str:
        return no_model(prompt) if "passage" in prompt else "restart"

    assert QueryExpander(llm=llm, hyde=True).invoke(QUESTION) == [QUESTION, "restart"]
    assert "hyde: RuntimeError" in caplog.text
    assert "no model" not in caplog.text


async def test_a_model_is_not_waited_for_longer_than_the_timeout() -> None:
    done = threading.Event()

    def hanging(prompt: str) -> str:
        done.wait()
        return "restart"

    expander = QueryExpander(llm=hanging, timeout=0.01, on_error="raise")
    try:
        with pytest.raises(SearchTimeoutError):
            expander.invoke(QUESTION)
        with pytest.raises(SearchTimeoutError):
            await expander.ainvoke(QUESTION)
    finally:
        done.set()


@pytest.mark.parametrize(
    "options",
    [
        {"sise": 2},
        {"size": 0},
        {"llm": 3},
        {"hyde": True},
        {"prompt": "{query}"},
        {"llm": no_model, "prompt": "no place for the question"},
        {"llm": no_model, "hyde": ""},
        {"llm": no_model, "hyde": 3},
        {"llm": no_model, "timeout": 0},
        {"llm": no_model, "on_error": "ignore"},
        {"llm": no_model, "prompt": PromptTemplate.from_template("{query} {history}")},
        {"llm": no_model, "prompt": ChatPromptTemplate.from_template("{query}")},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QueryExpander(**options)


def test_a_models_name_is_looked_up_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    chat_models = pytest.importorskip("langchain.chat_models")
    expander = QueryExpander(llm="house:model")
    monkeypatch.setattr(chat_models, "init_chat_model", lambda name: written(f"asked of {name}"))
    assert expander.invoke(QUESTION) == [QUESTION, "asked of house:model"]


# Among other runnables


@pytest.mark.parametrize("hyde", [False, True])
async def test_the_model_runs_below_the_expander_in_traces(hyde: bool) -> None:
    expander = QueryExpander(llm=written("restart"), hyde=hyde)
    chain = RunnableLambda(str.strip).with_config(run_name="strip") | expander | RunnableLambda(len)
    models = [("QueryExpander", "model")] * (1 + hyde)
    for asked, runs in (("a", Starts()), ("b", Starts())):  # an equal question is not asked of the model again
        assert expander.invoke(asked, {"callbacks": [runs]}) == [asked, "restart"]
        assert runs.below == [("", "QueryExpander"), *models]
        runs.below.clear()
        assert await expander.ainvoke(f"{asked}?", {"callbacks": [runs]}) == [f"{asked}?", "restart"]
        assert runs.below == [("", "QueryExpander"), *models]
    for asked, runs in (("c", alone := Starts()), ("d", Starts())):
        config: Any = {"callbacks": [runs]}
        assert (chain.invoke(asked, config) if runs is alone else await chain.ainvoke(asked, config)) == 2
        assert [pair for pair in runs.below if "QueryExpander" in pair] == [
            ("RunnableSequence", "QueryExpander"),
            *models,
        ]


def test_its_options_can_be_configured_for_a_call() -> None:
    expander = QueryExpander().configurable_fields(size=ConfigurableField(id="size"))
    assert expander.invoke(QUESTION, {"configurable": {"size": 1}}) == [QUESTION]
    assert len(expander.invoke(QUESTION)) == 3
    assert QueryExpander().get_output_jsonschema()["type"] == "array"


async def test_its_rewriter_expands_in_a_retriever() -> None:
    asked = Asked("seal of a pump\nwarm water")
    retriever = hybrid(expansion=QueryExpander(llm=asked).rewriter)
    found = retriever.invoke("lamp")
    assert found == await retriever.ainvoke("lamp")
    assert found[0].metadata["voicevault"]["found_by"] == "hybrid"
    assert "seal" in ids(found)
    assert len(asked.prompts) == 1  # the answer is kept
    degraded = hybrid(expansion=QueryExpander(llm=no_model).rewriter).invoke("lamp")
    assert degraded[0].metadata["voicevault"]["degraded"] == ["expansion: RuntimeError"]
    assert repr(QueryExpander().rewriter) == f"Together([{RuleExpansion(3)!r}])"


def test_what_a_model_says_for_a_search_is_not_streamed_as_an_answer() -> None:
    seen: list[list[str]] = []

    class Tags(BaseCallbackHandler):
        def on_llm_start(self, serialized: Any, prompts: Any, *, tags: Any = None, **kwargs: Any) -> None:
            seen.append(tags)

        def on_chat_model_start(self, serialized: Any, messages: Any, *, tags: Any = None, **kwargs: Any) -> None:
            seen.append(tags)

    model = FakeListChatModel(responses=["another wording"])
    QueryExpander(llm=model).invoke("pump", {"callbacks": [Tags()], "tags": ["mine"]})
    assert sorted(seen[0]) == ["mine", "nostream"]


async def test_documents_say_which_wordings_were_asked_and_which_found_them() -> None:
    texts = {"a": "Restart the motor", "b": "Reset the pump"}
    channel = BM25Retriever.from_documents([Document(text, id=name) for name, text in texts.items()])
    retriever = HybridRetriever(channels={"bm25": channel}, expansion=True)
    related = f"{QUESTION} restart reboot"
    for found in (retriever.invoke(QUESTION), await retriever.ainvoke(QUESTION)):
        told = {document.id: document.metadata["voicevault"] for document in found}
        assert {name: one["channels"]["bm25"]["query"] for name, one in told.items()} == {"a": related, "b": QUESTION}
        assert all(one["wordings"] == [QUESTION, related] for one in told.values())
    assert "wordings" not in retriever.invoke("tides of the motor")[0].metadata["voicevault"]
