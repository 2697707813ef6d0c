"""Expansion by a language model, and HyDE: what is asked, how answers are read, what remains when they are no use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ListChannel, texts_of
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import HyDE, ModelExpansion, RuleExpansion, Together
from voicevault_retrievers.query.model import TIMEOUT, wordings_of
from voicevault_retrievers.rerank import PageCap

QUESTION = "How do I reset the pump?"
LONGEST = 4 * len(QUESTION) + 200


class Model:
    """Answers always the same, and notes what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def complete(self, prompt: str) -> str:
        self.asked.append(prompt)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return "Model()"


class AsyncModel(Model):
    """Can be awaited, and only so."""

    async def acomplete(self, prompt: str) -> str:
        await asyncio.sleep(0)
        return super().complete(prompt)

    def complete(self, prompt: str) -> str:
        raise AssertionError("an async search waits in a thread")


@pytest.mark.parametrize(
    ("answer", "wordings"),
    [
        ("restart the pump\npump reset steps", ["restart the pump", "pump reset steps"]),
        ("1. restart the pump\n2) pump reset\n(3) [x] pump", ["restart the pump", "pump reset", "[x] pump"]),
        ("- restart\n* pump\n• reset", ["restart", "pump", "reset"]),
        ("1.如何重置泵\n2、泵复位步骤", ["如何重置泵", "泵复位步骤"]),
        ("Q1: restart\n**Question 2:** reset\n**3. pump**", ["restart", "reset", "pump"]),
        (f"Original question: {QUESTION}\nRephrased question: restart", ["restart"]),
        ("1. Question: restart\n[2] reset", ["restart", "reset"]),
        ('"restart the pump"\n“reset it”\n«pump»\n`code`', ["restart the pump", "reset it", "pump", "code"]),
        ('"pump" or "seal"\npump "seal"', ['"pump" or "seal"', 'pump "seal"']),
        ("Sure!\nHere are three alternative questions:\n\nrestart\n\nreset\n\nLet me know!", ["restart", "reset"]),
        ("Wordings of your question\n1. restart\n2. reset\nThese keep the meaning.", ["restart", "reset"]),
        ("## Wordings\nAlternativen:\nrestart", ["restart"]),
        ("Here is another wording: restart the pump", ["restart the pump"]),
        ("Sure Petcare feeder reset", ["Sure Petcare feeder reset"]),
        (
            "3.5 mm jack\n10:30 train\n2024 report\n-40 degrees",
            ["3.5 mm jack", "10:30 train", "2024 report", "-40 degrees"],
        ),
        ("restart   the\tpump  ", ["restart the pump"]),
        ("```\nrestart\nreset\n```\nI chose these words.", ["restart", "reset"]),
        ('```json\n["restart", "reset \\u00e9"]\n```', ["restart", "reset é"]),
        ('["restart", "reset"]', ["restart", "reset"]),
        ('Here you go: ["restart", "reset"]\nLet me know if "more" helps.', ["restart", "reset"]),
        ('[\n  "restart",\n  "reset, \\"now\\"",\n  "cut o', ["restart", 'reset, "now"']),
        ('{"queries": ["restart", "reset"]}', ["restart", "reset"]),
        ('[{"query": "restart"},\n{"query": "reset"}]', ["restart", "reset"]),
        ("['restart', \"what's on\"]", ["restart", "what's on"]),
        ('["bad \\escape", "lone \\ud800"]', ["bad \\escape", "lone ?"]),
        ("<think>1. a thought\n2. another</think>\nrestart", ["restart"]),
        ("a thought without its beginning</think>restart", ["restart"]),
        ("restart\n<think>a thought without its end", ["restart"]),
        ("restart\n" + "x" * (LONGEST + 1) + "\n" + "y" * LONGEST, ["restart", "y" * LONGEST]),
        ("<script>alert(1)</script>", ["<script>alert(1)</script>"]),
    ],
)
def test_what_a_model_writes_is_read(answer: str, wordings: list[str]) -> None:
    query = ModelExpansion(Model(answer), size=9).rewrite(Query(QUESTION))
    assert texts_of(query) == [QUESTION, *wordings]


@pytest.mark.parametrize(
    "answer",
    ["", " \n\t", "```\n```", "---\n???", "[]", '{"queries": []}', "Sure!", "Here are three:\n", "<think>restart",
     "I'm sorry, but I can't help with that.", "x" * (LONGEST + 1), "\x00", None, 3, ["restart"]],
)  # fmt: skip
async def test_an_answer_of_no_use_is_an_error_and_the_question_is_searched(answer: Any) -> None:
    for model in (Model(answer), AsyncModel(answer)):
        channel = ListChannel([("a", 1.0)])
        pipeline = Pipeline(ModelExpansion(model) >> channel)
        result = await pipeline.asearch(QUESTION)
        assert result.ranking.ids == ("a",)
        assert [(failure.stage, failure.kind) for failure in result.errors] == [("expansion", "RetrievalError")]
        assert channel.asked == [(QUESTION, 5)]
    with pytest.raises(RetrievalError):
        ModelExpansion(Model(answer)).rewrite(Query(QUESTION))


PIECES = ["1. ", "- ", "\n", "```", "[", "]", "{", '"', "'", "\\", ":", ",", "Sure! ", "Here are", "<think>",
          "</think>", "pump", "PUMP", " reset ", QUESTION, "泵", "\x00", "**", "Q1:"]  # fmt: skip
hostile = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@given(hostile, st.integers(1, 5), st.lists(st.sampled_from(["pump", "reset"]), max_size=2, unique=True))
def test_whatever_a_model_writes(answer: str, size: int, own: list[str]) -> None:
    query = Query(QUESTION, tuple(map(Variant, own)))
    try:
        expanded = texts_of(ModelExpansion(Model(answer), size).rewrite(query))
    except RetrievalError:
        return
    assert expanded[: 1 + len(own)] == texts_of(query)
    assert len(expanded) <= max(size, 1 + len(own))
    assert len({" ".join(text.split()).casefold() for text in expanded}) == len(expanded)
    assert all(text.strip() and len(text) <= LONGEST for text in expanded)


@given(st.lists(st.text(), min_size=1), st.integers(0, 200))
def test_strings_of_json_are_read_whole_or_cut_off(strings: list[str], cut: int) -> None:
    wordings = [" ".join(text.split()) for text in strings if any(map(str.isalnum, text))]
    for indent in (None, 2):
        written = json.dumps(strings, indent=indent)
        assert wordings_of(written, 10**6) == wordings
        read = wordings_of('["a", ' + written[1 : 1 + cut], 10**6)
        assert read[0] == "a"


@pytest.mark.parametrize("unit", ["[", "[\n", '"', '\\"', "'", "```", "<think>", "1. ", "\n", " ", "**", "{", "(", ":"])
def test_no_output_takes_for_ever_to_read(unit: str) -> None:
    assert wordings_of(unit * 100_000, LONGEST) == []
    assert wordings_of('["a", "' + unit * 100_000, LONGEST)[:1] in (["a"], [])


def test_own_variants_stay_and_count_and_texts_are_kept_once() -> None:
    own = Query(QUESTION, (Variant("Restart it", 0.5, frozenset({"bm25"})),))
    model = Model("how do i  RESET the pump?\nrestart IT\npump reset\nPump  Reset\nreset steps")
    query = ModelExpansion(model, 3).rewrite(own)
    assert query.variants == (*own.variants, Variant("pump reset"))
    assert "Write 1 other wordings" in model.asked[0]
    assert ModelExpansion(model, 2).rewrite(own) == own
    assert len(model.asked) == 1
    assert ModelExpansion(Model(QUESTION)).rewrite(Query(QUESTION)) == Query(QUESTION)  # nothing to add is no failure
    with pytest.raises(ConfigError):
        ModelExpansion(model, 0)


def test_the_prompt_takes_any_question() -> None:
    model, question = Model("a\nb"), "what is {count} in {query} of {x} \\1 {"
    ModelExpansion(model, 4, prompt='{count}: {query} {{"a": {}}} {other}').rewrite(Query(question))
    assert model.asked == [f'3: {question} {{{{"a": {{}}}}}} {{other}}']
    for wrong in ("no place", "", "{question}", 3):
        with pytest.raises(ConfigError, match="query"):
            ModelExpansion(model, prompt=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="query"):
            HyDE(model, prompt=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [ModelExpansion, HyDE])
def test_what_is_checked_and_a_blank_question(make: Callable[..., Rewriter]) -> None:
    model = Model("a")
    assert make(model).rewrite(Query("  ")) == Query("  ")
    assert model.asked == []
    with pytest.raises(ConfigError, match="complete"):
        make("gpt")
    with pytest.raises(ConfigError, match="seconds"):
        make(model, timeout=0)


async def test_a_hypothetical_answer_is_for_semantic_channels_alone() -> None:
    query = Query(QUESTION, (Variant("own"),), where={"a": 1}, require={"b": 2})
    rewriter = HyDE(Model("<think>hm</think> Press\nthe {red} button. "), weight=0.5)
    expected = Variant("Press the {red} button.", 0.5, frozenset({"semantic"}))
    asked = rewriter.rewrite(query)
    assert asked.variants == (Variant("own"), expected)
    assert (asked.where, asked.require, asked.text) == (query.where, query.require, query.text)
    assert expected not in asked.texts_for("bm25", "keyword")
    assert expected in asked.texts_for("dense", "semantic")
    assert await HyDE(AsyncModel("<think>hm</think> Press\nthe {red} button."), weight=0.5).arewrite(query) == asked
    with pytest.raises(RetrievalError, match="blank"):
        HyDE(Model("<think>hm</think>\n")).rewrite(query)
    for weight in (0, 1.5, float("nan")):
        with pytest.raises(ConfigError):
            HyDE(Model("a"), weight=weight)


async def test_sync_and_async_agree_and_a_model_is_asked_once_in_a_run() -> None:
    answers = "restart\nreset"
    found = [(f"d{at}", -float(at)) for at in range(40)]
    metadata = {key: {"source_file": "a.pdf", "page_number": 1 if int(key[1:]) < 20 else 2} for key, _ in found}
    rankings = []
    for model in (Model(answers), AsyncModel(answers)):
        channel = ListChannel(found, metadata=metadata)
        searched = ModelExpansion(model) >> channel >> PageCap(2)
        rankings.append(await searched.asearch(QUESTION, 3))
        assert len({k for _, k in channel.asked}) > 1
        assert len(model.asked) == 1
    model = Model(answers)
    rankings.append((ModelExpansion(model) >> ListChannel(found, metadata=metadata) >> PageCap(2)).search(QUESTION, 3))
    assert len(model.asked) == 1
    assert rankings[0] == rankings[1] == rankings[2]
    assert rankings[0].ids == ("d0", "d1", "d20")


@pytest.mark.parametrize("make", [ModelExpansion, HyDE])
async def test_an_answer_is_kept_for_an_equal_prompt_and_a_failure_is_not(make: Callable[..., Any]) -> None:
    model = AsyncModel("")
    rewriter = make(model)
    for _ in range(2):
        with pytest.raises(RetrievalError):
            await rewriter.arewrite(Query(QUESTION))
    model.answer = "restart"
    first = await rewriter.arewrite(Query(QUESTION))
    assert first == await rewriter.arewrite(Query(QUESTION)) == rewriter.rewrite(Query(QUESTION))
    assert await rewriter.arewrite(Query(QUESTION, require={"a": 1})) == replace(first, require={"a": 1})
    assert len(model.asked) == 3
    await rewriter.arewrite(Query("another question"))
    assert len(model.asked) == 4


def test_answers_are_kept_up_to_a_number_and_a_model_has_a_deadline() -> None:
    model = Model("restart")
    rewriter = HyDE(model, kept=1)
    for question in ("a", "a", "b", "a"):
        rewriter.rewrite(Query(question))
    assert len(model.asked) == 3
    rewriter = HyDE(model, kept=0)
    for _ in range(2):
        rewriter.rewrite(Query("a"))
    assert len(model.asked) == 5
    assert HyDE(model).timeout == ModelExpansion(model).timeout == TIMEOUT
    with pytest.raises(ConfigError, match="kept"):
        HyDE(model, kept=-1)


# Several at once


async def test_several_add_their_variants_together() -> None:
    query = Query(QUESTION, (Variant("own"),), require={"b": 2})
    together = Together([RuleExpansion(3), HyDE(Model("Press it.")), RuleExpansion(3)])
    related = f"{QUESTION} restart reboot"
    expected = ["own", related, "Press it."]
    assert [variant.text for variant in together.rewrite(query).variants] == expected
    assert together.rewrite(query).require == query.require
    dense, bm25 = ListChannel([("a", 1.0)]), ListChannel([("a", 1.0)], kind="keyword")
    (together >> dense).search(Query(QUESTION), 3)
    await (together >> bm25).asearch(Query(QUESTION), 3)
    assert [text for text, _ in dense.asked] == [QUESTION, "reset the pump", "Press it."]
    assert bm25.asked == [(QUESTION, 3), (related, 3)]


@pytest.mark.parametrize("failing", ["expansion", "hyde"])
async def test_where_one_of_several_fails_the_others_variants_stay(failing: str) -> None:
    error = RuntimeError("no model")
    wordings = ModelExpansion(Model(error if failing == "expansion" else "restart"))
    answer = HyDE(AsyncModel(error if failing == "hyde" else "Press it."))
    for search in ("asearch", "search"):
        channel = ListChannel([("a", 1.0)])
        if search == "search":
            answer = HyDE(Model(answer.model.answer))  # type: ignore[attr-defined]
        pipeline = Pipeline(Together([wordings, answer]) >> channel)
        result = await pipeline.asearch(QUESTION) if search == "asearch" else pipeline.search(QUESTION)
        assert [text for text, _ in channel.asked] == [QUESTION, "Press it." if failing == "expansion" else "restart"]
        assert [(failure.stage, failure.error) for failure in result.errors] == [(failing, error)]


def test_several_are_asked_at_the_same_time() -> None:
    class Waiting(Model):
        """Answers when the other one has been asked as well."""

        other: Waiting

        def complete(self, prompt: str) -> str:
            super().complete(prompt)
            while not self.other.asked:
                time.sleep(0.001)
            return "restart"

    one, two = Waiting(""), Waiting("")
    one.other, two.other = two, one
    result = Pipeline(Together([ModelExpansion(one), HyDE(two)]) >> ListChannel([("a", 1.0)]), timeout=60).search("q")
    assert not result.degraded


def test_recipes() -> None:
    together = Together([ModelExpansion(Model("")), HyDE(Model(""), prompt="{query}")])
    assert repr(together) == (
        "Together([ModelExpansion(Model(), 3, timeout=10.0, name='expansion'), "
        "HyDE(Model(), weight=1.0, prompt='{query}', timeout=10.0, name='hyde')])"
    )
    with pytest.raises(ConfigError, match="RuleExpansion"):
        Together([3])  # type: ignore[list-item]
