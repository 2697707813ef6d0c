"""Expansion by rules: the original first, at most so many wordings, nothing of it when it fails."""

from __future__ import annotations

import pytest

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.query import RuleExpansion
from voicevault_retrievers.types import Query, Variant


@pytest.mark.parametrize(
    ("question", "wordings"),
    [
        ("How do I reset the pump?", ["How do I reset the pump?", "reset the pump", "reset pump"]),
        ("What is ERR_2043?", ["What is ERR_2043?", "ERR_2043"]),
        (
            "Could you tell me about the oil of T4?",
            ["Could you tell me about the oil of T4?", "the oil of T4", "oil T4"],
        ),
        (
            "Wie setze ich die Pumpe zurück?",
            ["Wie setze ich die Pumpe zurück?", "setze ich die Pumpe zurück", "setze Pumpe zurück"],
        ),
        ("Was ist ERR_2043?", ["Was ist ERR_2043?", "ERR_2043"]),
        ("Wie viele Pumpen haben wir?", ["Wie viele Pumpen haben wir?", "Pumpen haben wir", "Pumpen"]),
        ("Was the pump repaired?", ["Was the pump repaired?", "the pump repaired", "pump repaired"]),
        ("Wartung der Pumpe", ["Wartung der Pumpe"]),
        ("tides", ["tides"]),
        ("", [""]),
        ("浮标的电池多久检查一次?", ["浮标的电池多久检查一次?", "浮标的电池多久检查一次"]),
    ],
)
def test_wordings(question: str, wordings: list[str]) -> None:
    query = RuleExpansion().rewrite(Query(question))
    assert [wording.text for wording in query.wordings("bm25", "keyword")] == wordings


def test_given_variants_stay_and_count() -> None:
    query = RuleExpansion(2).rewrite(Query("How do I reset the pump?", (Variant("restart it"),)))
    assert [variant.text for variant in query.variants] == ["restart it"]
    assert RuleExpansion(1).rewrite(Query("How do I reset the pump?")).variants == ()
    with pytest.raises(ConfigError):
        RuleExpansion(0)
