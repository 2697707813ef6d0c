"""Expansion by rules: the original first, at most so many wordings, nothing of it when it fails."""

from __future__ import annotations

import pytest

from voicevault_retrievers.core.explanation import explain_result, reworded
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.documents import read
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.query import RuleExpansion


@pytest.mark.parametrize(
    ("question", "wordings"),
    [
        (
            "How do I reset the pump?",
            ["How do I reset the pump?", "How do I reset the pump? restart reboot", "reset the pump"],
        ),
        ("What is ERR_2043?", ["What is ERR_2043?", "ERR_2043"]),
        (
            "Could you tell me about the oil of T4?",
            ["Could you tell me about the oil of T4?", "the oil of T4", "oil T4"],
        ),
        (
            "Wie setze ich die Pumpe zurück?",
            [
                "Wie setze ich die Pumpe zurück?",
                "Wie setze ich die Pumpe zurück? zurücksetze",
                "setze ich die Pumpe zurück",
            ],
        ),
        ("Was ist ERR_2043?", ["Was ist ERR_2043?", "ERR_2043"]),
        ("Wie viele Pumpen haben wir?", ["Wie viele Pumpen haben wir?", "Pumpen haben wir", "Pumpen"]),
        ("Was the pump repaired?", ["Was the pump repaired?", "Was the pump repaired? fix", "the pump repaired"]),
        ("Wartung der Pumpe", ["Wartung der Pumpe", "Wartung der Pumpe Instandhaltung"]),
        ("tides", ["tides"]),
        ("", [""]),
        ("浮标的电池多久检查一次?", ["浮标的电池多久检查一次?", "浮标的电池多久检查一次"]),
    ],
)
def test_wordings(question: str, wordings: list[str]) -> None:
    query = RuleExpansion().rewrite(Query(question))
    assert [query.text, *(variant.text for variant in query.variants)] == wordings
    for kind, bare in (("keyword", False), ("semantic", True)):
        asked = query.texts_for("x", kind)[1:]
        assert {variant.terms is None for variant in asked} <= {bare}


def test_another_spelling_counts_as_the_word_itself() -> None:
    (variant,) = RuleExpansion(2).rewrite(Query("colour of the e-mail")).variants
    assert variant.terms == {"colour of the e-mail": 1.0, "color": 1.0, "email": 1.0}


def test_given_variants_stay_and_count() -> None:
    query = RuleExpansion(2).rewrite(Query("How do I reset the pump?", (Variant("restart it"),)))
    assert [variant.text for variant in query.variants] == ["restart it"]
    assert RuleExpansion(1).rewrite(Query("How do I reset the pump?")).variants == ()
    with pytest.raises(ConfigError):
        RuleExpansion(0)


@pytest.fixture(scope="module")
def sample() -> BM25:
    return BM25.from_chunks(read([shipped("sample") / "documents"]).chunks)


@pytest.mark.program
@pytest.mark.parametrize(
    "question",
    [
        "How do I fix a fault of the pump?",
        "How long must the tank be inspected?",
        "What is the price of a holiday at the harbor?",
        "Wie oft wird der Behälter überprüft?",
        "Wie lange dauert der Urlaub?",
    ],
)
def test_keyword_search_finds_with_the_rules_what_it_does_not_find_without(sample: BM25, question: str) -> None:
    plain, expanded = sample.search(question, 100), (RuleExpansion(3) >> sample).search(question, 100)
    assert plain.ids != expanded.ids
    assert set(plain.ids) <= set(expanded.ids) or len(expanded) == 100


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where is my e-mail?", "Open the email program"),
        ("Where is my email?", "Open the e-mail program"),
        ("How do I set up the pump?", "Setup guide"),
        ("Which colour is it?", "Its color is red"),
        ("Which color is it?", "Its colour is red"),
        ("How are meters organized?", "Metres were organised"),
        ("a range of 10 km", "kilometres"),
        ("more than 10,000 parts", "all 10000 of them"),
        ("Which multi-tenant base is it?", "Multitenant"),
        ("How do I reset it?", "Restarting"),
        ("How long does it take?", "Its duration"),
        ("What is a spillway?", "Definition"),
        ("Wie setze ich die Pumpe zurück?", "Zum Zurücksetzen drücken"),
        ("Wie lange dauert es?", "Die Dauer beträgt eine Stunde"),
        ("Wie behebe ich die Störung?", "Der Fehler wird repariert"),
    ],
)
def test_what_else_documents_call_it(question: str, text: str) -> None:
    channel = BM25.from_chunks([Chunk("a", text), Chunk("b", "nothing of that kind"), Chunk("c", "die Halle ist groß")])
    found = (RuleExpansion(3) >> channel).search(question)
    assert found.ids[0] == "a"
    assert "a" not in channel.search(question).ids or found.hits[0].score > channel.search(question).hits[0].score


def test_a_related_word_counts_less_than_one_of_the_question() -> None:
    channel = BM25.from_chunks([Chunk("asked", "a repair"), Chunk("related", "a fix")])
    found = (RuleExpansion(3) >> channel).search("repair")
    assert found.ids == ("asked", "related")
    assert channel.search("repair").hits[0].score == found.hits[0].score


def test_what_other_languages_and_question_words_look_like_is_left_alone() -> None:
    for question in ("Where are we?", "¿Dónde está la bomba?", "pourquoi l'alarme", "ERR-2043", "analyses"):
        query = RuleExpansion(3).rewrite(Query(question))
        assert not [variant for variant in query.variants if variant.terms]


def test_an_explanation_says_which_wordings_were_asked_and_which_found_a_hit() -> None:
    chunks = [Chunk("a", "restart the motor"), Chunk("b", "reset the pump")]
    result = compose({"bm25": BM25.from_chunks(chunks)}, expansion=True).search("How do I reset the pump?")
    related = "How do I reset the pump? restart reboot"
    told = explain_result(result)
    assert reworded(result) == ["How do I reset the pump?", related]
    for text in reworded(result):
        assert f"wording: {text!r} (bm25)" in told
    assert {hit.id: hit.votes[0].query for hit in result.hits} == {"a": related, "b": "How do I reset the pump?"}
    assert f"words restart, for {related!r}" in told
    plain = compose({"bm25": BM25.from_chunks(chunks)}).search("pump")
    assert "wording" not in explain_result(plain)
    assert reworded(plain) == []
