"""The language models of a preset: those that it names, the one that it is given, and what asks none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from tests.model_server import ModelServer, model_server, says
from voicevault_retrievers import Chunk, KnowledgeBase, Query
from voicevault_retrievers.core.types import Route
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.presets import Preset, load_preset, preset_data

TEXTS = ("The pump is flushed by hand.", "Whoever cheats is punished.", "A seal of rubber leaks.", "The gate is green.")
QUESTION = "Analyse how the pump is flushed"


class Told:
    """A language model that keeps the prompts it was asked and gives the same answer."""

    def __init__(self, answer: str = "[2, 1]") -> None:
        self.answer = answer
        self.prompts: list[str] = []

    def complete(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answer


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    base = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())
    base.add(Chunk(f"c{at}", text) for at, text in enumerate(TEXTS))
    return base


def preset(**data: Any) -> Preset:
    return Preset.of({"version": 1, "k": 3, **data})


@pytest.mark.parametrize(
    ("data", "answer", "asked"),
    [
        ({"expansion": {"method": "model", "size": 3}}, "by hand\nwash a pump", "Write 2 other wordings"),
        ({"expansion": {"method": "hyde"}}, "It is flushed by hand.", "Please write a passage"),
        ({"expansion": [{"method": "rules"}, {"method": "hyde", "weight": 0.5}]}, "By hand.", "Please write a passage"),
        ({"route": {"method": "model"}}, "analytical", "Which kind of question"),
        ({"stages": ["llm_rerank"]}, "[2, 1]", QUESTION),
    ],
)
async def test_what_names_no_model_asks_the_one_that_is_given(
    kb: KnowledgeBase, data: dict[str, Any], answer: str, asked: str
) -> None:
    model = Told(answer)
    result = preset(**data).given(llm=model).over(kb).search(QUESTION)
    assert len(model.prompts) == 1
    assert asked in model.prompts[0]
    assert not result.degraded
    with pytest.raises(
        ConfigError, match=r"needs a language model: name one in the preset, as `llm: \{ollama: NAME\}`"
    ):
        preset(**data).over(kb)
    again = await preset(**data).given(llm=model).over(kb).asearch(QUESTION)
    assert again.ranking == result.ranking


def test_a_follow_up_question_is_completed_by_rules_and_by_a_model(kb: KnowledgeBase) -> None:
    asked = Query("and by hand?", history=(("How is the pump flushed?", "With water."),))
    by_rules = preset(expansion={"method": "follow_up", "turns": 2}).over(kb).search(asked)
    assert {vote.query for vote in by_rules.hits[0].votes} & {"and by hand? pump flushed"}
    model = Told("Is the pump flushed by hand?")
    preset(expansion={"method": "model_follow_up"}).given(llm=model).over(kb).search(asked)
    assert "With water." in model.prompts[0]


@pytest.fixture
def served() -> Any:
    with model_server(says("[3]")) as server:
        yield server


@pytest.mark.server
def test_a_model_that_is_given_goes_before_that_of_the_preset_and_behind_that_of_a_part(
    kb: KnowledgeBase, served: ModelServer
) -> None:
    named = {"ollama": "qwen3:8b", "base_url": served.url}
    model = Told()
    preset(llm=named, stages=["llm_rerank"]).over(kb).search(QUESTION)
    assert len(served.requests) == 1
    preset(llm=named, stages=["llm_rerank"]).given(llm=model).over(kb).search(QUESTION)
    assert (len(served.requests), len(model.prompts)) == (1, 1)
    own = preset(stages=[{"llm_rerank": named}], expansion={"method": "hyde"})
    own.given(llm=model).over(kb).search(QUESTION)
    assert (len(served.requests), len(model.prompts)) == (2, 2)
    assert {body["model"] for _, _, body in served.requests} == {"qwen3:8b"}


def test_a_model_that_nothing_would_ask_is_refused(kb: KnowledgeBase) -> None:
    for data in ({}, {"stages": [{"llm_rerank": {"ollama": "a"}}]}, {"flare": {"enabled": False}}):
        with pytest.raises(ConfigError, match="llm= would not be used"):
            preset(**data).given(llm=Told()).over(kb)
    with pytest.raises(ConfigError, match="named once"):
        preset(llm={"ollama": "a", "openai": "b"})


def test_flare_by_auto_is_where_a_model_is(kb: KnowledgeBase) -> None:
    auto = preset(flare={"enabled": "auto"})
    unanswered = auto.over(kb).search(Query(QUESTION, route=Route.ANALYTICAL))
    assert (unanswered.answer, unanswered.degraded) == (None, False)
    assert [(one.stage, one.kind) for one in unanswered.errors] == [("flare", "no model")]
    answered = (
        auto.given(llm=Told("The pump is flushed by hand.")).over(kb).search(Query(QUESTION, route=Route.ANALYTICAL))
    )
    assert answered.answer == "The pump is flushed by hand."
    assert preset(flare={"enabled": "auto"}, llm={"ollama": "a"}).over(kb).flare is not None
    with pytest.raises(ConfigError, match="flare needs a language model"):
        preset(flare={"enabled": True}).over(kb)
    with pytest.raises(ConfigError, match="enabled is true or false"):
        preset(flare={"enabled": "maybe"})


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_retrievers_hand_a_preset_its_model(kb: KnowledgeBase, framework: str) -> None:
    made, asked = retriever(framework)
    by_hand = preset(stages=["llm_rerank"]).given(llm=Told()).over(kb).search(QUESTION)
    model = Told()
    found = asked(made(kb_names=[kb], preset=preset(stages=["llm_rerank"]).given(llm=model)), QUESTION)
    assert found == list(by_hand.ranking.ids)
    assert len(model.prompts) == 1
    with pytest.raises(ConfigError, match=r"llm.*load_preset\(name, llm=...\)"):
        made(kb_names=[kb], llm=model)
    with pytest.raises(ConfigError, match="llm= would not be used"):
        preset().given(llm=model)


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
@pytest.mark.parametrize("given", [{"ollama": "nobody", "base_url": "http://127.0.0.1:9"}, {}])
def test_a_call_s_reranker_takes_the_place_of_the_model_and_false_asks_none(
    kb: KnowledgeBase, framework: str, given: dict[str, str]
) -> None:
    made, _ = retriever(framework)
    model = Told()
    own = preset(stages=[{"llm_rerank": given}, "page_cap"]).given(llm=None if given else model)
    plain = made(kb_names=[kb], preset=own)

    class Lengths:
        name = "lengths"

        def score(self, query: str, passages: Any) -> list[float]:
            return [float(len(passage)) for passage in passages]

    for one in (plain, made(kb_names=[kb], preset=own, rerank=Lengths())):
        said = {} if one is not plain else {"rerank": Lengths()}
        result = one.search(QUESTION, **said)
        assert (result.degraded, model.prompts) == (False, [])
        stages = [vote.stage for vote in result.hits[0].votes]
        assert "rerank" in stages
        assert "llm_rerank" not in stages
    result = plain.search(QUESTION, rerank=False)
    assert (result.degraded, model.prompts) == (False, [])
    assert [vote.stage for vote in result.hits[0].votes] == ["bm25", "dense"]


def retriever(framework: str) -> tuple[Any, Any]:
    """The HybridRetriever of a framework, and what gives the ids that it finds."""
    if framework == "langchain":
        langchain = pytest.importorskip("voicevault_retrievers.langchain")
        return langchain.HybridRetriever, lambda one, query: [found.id for found in one.invoke(query)]
    llama_index = pytest.importorskip("voicevault_retrievers.llama_index")
    return llama_index.HybridRetriever, lambda one, query: [found.node_id for found in one.retrieve(query)]


def test_a_chat_model_that_gives_probabilities_has_them_read_by_flare(kb: KnowledgeBase) -> None:
    langchain = pytest.importorskip("voicevault_retrievers.langchain")
    models = pytest.importorskip("langchain_core.language_models")
    chat = models.FakeListChatModel(responses=["The pump is flushed by hand."])
    found = langchain.HybridRetriever(kb_names=[kb], preset=preset(flare={"enabled": "auto"}).given(llm=chat))
    assert found.search(Query(QUESTION, route=Route.ANALYTICAL)).answer == "The pump is flushed by hand."
    assert callable(getattr(found.pipeline.flare.writer, "write", None))


def test_shipped_presets_ask_the_given_model(kb: KnowledgeBase) -> None:
    model = Told("[2, 1]")
    load_preset("casefile", llm=model).over(kb).search(Query(QUESTION, require={"id": {"$exists": False}}))
    assert len(model.prompts) == 1
    assert preset_data("casefile")["llm"] == {"ollama": "qwen3:8b"}
    json.dumps(preset_data("legal"))
