"""Questions made from a collection: by rules, and by a language model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import Says
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents import read
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation import (
    Judged,
    load_judged,
    load_questions,
    model_questions,
    rule_questions,
    save_judged,
)
from voicevault_retrievers.pipeline.samples import shipped

CHUNKS = [
    Chunk("a", "# The pump\n\nThe pump is a machine that moves oil. It is loud.", None, {"section": "1.2 Oil pump"}),
    Chunk("b", "A pump is a machine, too. Ein Ventil ist eine Klappe.", None, {"section": "1.2 Oil pump"}),
    Chunk("c", "蓄电池是一种设备。", None, {"section": "保养", "source_file": "x"}),
    Chunk("d", "", None, {"section": "An empty place"}),
]  # fmt: skip


def test_headings_and_definitions_become_questions() -> None:
    found = {question.text: set(question.grades) for question in rule_questions(CHUNKS, 20)}
    expected = {
        "Oil pump": {"a", "b"},
        "保养": {"c"},
        "What is the pump?": {"a"},
        "What is a pump?": {"b"},
        "Was ist ein Ventil?": {"b"},
        "蓄电池是什么?": {"c"},
    }
    assert {**found, **expected} == found


def test_keywords_are_telling_and_of_one_chunk_alone() -> None:
    shared = ["valve", "gasket", "rotor"]
    texts = [f"The {word} of every unit number{at} is kept in good order, as the rules have it."
             for at, word in enumerate(shared)]  # fmt: skip
    both = "The valve, the gasket and the rotor wear out by uniqueness and are to be replaced."
    chunks = [Chunk(str(at), text) for at, text in enumerate([*texts, both, *["Other words fill this place."] * 20])]
    assert [question.text for question in rule_questions(chunks, 9) if "3" in question.grades] == ["valve gasket rotor"]


@pytest.mark.program
def test_equal_chunks_and_seeds_give_equal_questions_whatever_their_order(tmp_path: Path) -> None:
    chunks = read([shipped("sample") / "documents"]).chunks
    made = rule_questions(chunks, 30)
    assert rule_questions(reversed(chunks), 30) == made
    assert rule_questions(chunks, 30, seed=1) != made
    assert len({question.text.casefold() for question in made}) == 30
    assert all(question.synthetic and set(question.grades) <= {chunk.id for chunk in chunks} for question in made)
    assert load_judged(*save_judged(made, tmp_path / "kept")) == made
    assert all(question.synthetic for question in load_questions(tmp_path / "kept" / "questions.jsonl"))
    with pytest.raises(ConfigError, match="no question"):
        rule_questions(CHUNKS[3:], 5)


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("What moves the oil?", "What moves the oil?"),
        ("<think>Is it oil? Yes.</think>\nSure! Here is a question:\n\n**What moves the oil?**", "What moves the oil?"),
        ('```json\n{"question": "What moves the oil?"}\n```', "What moves the oil?"),
        ("1. What moves the oil?\n2. Is it loud?", "What moves the oil?"),
        ("oil pump maker", "oil pump maker"),
    ],
)
def test_a_models_question_is_read_however_it_is_written(answer: str, question: str) -> None:
    model = Says(answer)
    assert model_questions(CHUNKS[:1], 3, model) == [Judged("synthetic-1", question, {"a": 1}, synthetic=True)]
    assert CHUNKS[0].text in model.asked[0]


@pytest.mark.parametrize("answer", ["NONE", "none.", "", "x" * 500, "Oil.\nPumps."])
def test_a_model_without_a_question_is_asked_of_other_chunks_and_not_for_ever(answer: str) -> None:
    model = Says(answer)
    chunks = [Chunk(str(at), f"text {at}") for at in range(50)]
    with pytest.raises(ConfigError, match="no question"):
        model_questions(chunks, 2, model)
    assert len(model.asked) == 6
