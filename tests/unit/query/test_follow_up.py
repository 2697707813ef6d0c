"""Follow-up questions: which lean on the conversation, what they are searched with, and what a model may say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ListChannel, Says
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import FollowUp, ModelFollowUp, RuleExpansion

ENGLISH = [("What is the VAT rate in France?", "20 %.")]
GERMAN = [("Wie lange gilt die Garantie für Pumpen?", "Zwei Jahre.")]


def wordings(question: str, history: list[tuple[str, str]]) -> list[str]:
    rewritten = FollowUp().rewrite(Query(question, history=history))  # type: ignore[arg-type]
    return [variant.text for variant in rewritten.texts_for("bm25", "keyword")]


LEANING = {
    "VAT rate France": [
        "and in Germany?", "What about Spain?", "How much does it cost?", "Who introduced it?", "Why?", "there?",
        "Does the same apply to books?", "When did they raise it?", "How long is this period?", "Or that?",
    ],
    "lange Garantie Pumpen": [
        "und für Ventile?", "Was kostet sie?", "Warum?", "Gilt das auch für Ventile?", "Wie hoch ist ihr Preis?",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("topic", "question"), [(topic, one) for topic, asked in LEANING.items() for one in asked])
def test_a_question_that_leans_on_the_last_is_searched_with_its_topic_too(topic: str, question: str) -> None:
    history = ENGLISH if topic == "VAT rate France" else GERMAN
    assert wordings(question, history) == [question, f"{question} {topic}"]


@pytest.mark.parametrize(
    "question",
    [
        "What is the VAT rate in Spain?", "If a tenant breaks the lease, can they be evicted?", "reset the pump",
        "Is it possible to fly to Rome?", "Which models that fit in RAM are fast?", "ERR_2043", "", "  ",
        "Does Germany tax its citizens abroad?", "Kann der Mieter seine Kaution zurückfordern?", "Gibt es Ausnahmen?",
        "Welche Frist gilt für die Kündigung?",
    ],
)  # fmt: skip
def test_a_question_that_stands_alone_is_left_as_it_is(question: str) -> None:
    query = Query(question, history=ENGLISH)  # type: ignore[arg-type]
    assert FollowUp().rewrite(query) is query


def test_the_topic_reaches_back_to_the_question_that_stood_alone() -> None:
    history = [("What is BM25?", "A formula."), *ENGLISH, ("and in Germany?", "19 %.")]
    assert wordings("what about its reduced rate?", history)[1] == "what about its reduced rate? Germany VAT France"
    short = FollowUp(turns=1).rewrite(Query("why?", history=history))  # type: ignore[arg-type]
    assert short.variants == (Variant("why? Germany"),)


def test_without_history_and_without_a_topic_nothing_is_added() -> None:
    assert wordings("and in Germany?", []) == ["and in Germany?"]
    assert wordings("why?", [("why?", "because")]) == ["why?"]


def test_the_original_and_then_the_rewritten_come_first() -> None:
    query = Query("and in Germany?", variants=(Variant("Germany"),), history=ENGLISH)  # type: ignore[arg-type]
    rewritten = FollowUp().rewrite(query)
    assert [v.text for v in rewritten.texts_for("a", "b")] == [
        "and in Germany?",
        "and in Germany? VAT rate France",
        "Germany",
    ]
    assert query.variants == (Variant("Germany"),)


TURNS = st.lists(st.tuples(st.text(max_size=20), st.text(max_size=5)), max_size=4)


@given(st.text(max_size=30), TURNS)
def test_whatever_is_asked_stays_first(question: str, history: list[tuple[str, str]]) -> None:
    rewritten = FollowUp().rewrite(Query(question, history=history))  # type: ignore[arg-type]
    assert rewritten.text == Query(question).text
    assert rewritten.history == tuple(Turn(*turn) for turn in history)


async def test_a_pipeline_gives_its_history_to_rewriters_and_the_context() -> None:
    channel = ListChannel([("x", 1.0)])
    pipeline = compose({"a": channel}, expansion=[FollowUp(), RuleExpansion()])
    result = pipeline.search("and in Germany?", history=ENGLISH)
    assert {text for text, _ in channel.asked} >= {"and in Germany?", "and in Germany? VAT rate France"}
    assert result.context.text.startswith("User: What is the VAT rate in France?\nAssistant: 20 %.")
    brought = Query("and in Germany?", history=ENGLISH)  # type: ignore[arg-type]
    assert pipeline.search(brought).context == result.context
    assert (await pipeline.asearch(brought)).query == result.query
    with pytest.raises(ConfigError, match="a turn of the history"):
        pipeline.search("q", history=["hello"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "answer",
    [
        "What is the VAT rate in Germany?",
        'Question: "What is the VAT rate in Germany?"',
        "<think>VAT, then.</think>\nSure! Here is the question:\nWhat is the VAT rate in Germany?\n",
        '```json\n{"question": "What is the VAT rate in Germany?"}\n```',
    ],
)
def test_a_model_rewrites(answer: str) -> None:
    model = Says(answer)
    rewriter = ModelFollowUp(model, turns=1)
    history = [("{query}", "old"), *ENGLISH]
    rewritten = rewriter.rewrite(Query("and in {history}?", history=history))  # type: ignore[arg-type]
    assert [variant.text for variant in rewritten.variants] == ["What is the VAT rate in Germany?"]
    (prompt,) = model.asked
    assert "User: What is the VAT rate in France?\nAssistant: 20 %.\n\nFollow-up question: and in {history}?" in prompt
    assert "old" not in prompt


def test_a_model_that_repeats_the_question_adds_nothing_and_is_not_asked_in_vain() -> None:
    query = Query("What is BM25?", history=ENGLISH)  # type: ignore[arg-type]
    assert ModelFollowUp(CallableTextModel(lambda _: "what is  BM25")).rewrite(query) is query

    def never(prompt: str) -> str:
        raise AssertionError(prompt)

    for asked in (Query("and in Germany?"), Query("  ", history=ENGLISH)):  # type: ignore[arg-type]
        assert ModelFollowUp(CallableTextModel(never)).rewrite(asked) is asked


@pytest.mark.parametrize("answer", ["", "I'm sorry, I can't help with that.", "x" * 9999])
def test_a_model_that_is_of_no_use_leaves_the_question_and_is_noted(answer: str) -> None:
    channel = ListChannel([("x", 1.0)])
    pipeline = Pipeline(ModelFollowUp(CallableTextModel(lambda _: answer)) >> channel)
    result = pipeline.search("and in Germany?", history=ENGLISH)
    assert [hit.id for hit in result.hits] == ["x"]
    assert channel.asked == [("and in Germany?", 5)]
    assert (result.degraded, result.errors[0].stage) == (True, "follow_up")
    assert "follow_up: RetrievalError" in str(result.errors[0])


def test_options_that_are_wrong_and_recipes() -> None:
    model = CallableTextModel(str)
    with pytest.raises(ConfigError, match=r"\{history\}"):
        ModelFollowUp(model, prompt="{query}")
    with pytest.raises(ConfigError, match="turns is a whole number"):
        FollowUp(0)
    assert repr(FollowUp()) == "FollowUp(3)"
    assert "turns=3" in repr(ModelFollowUp(model))
