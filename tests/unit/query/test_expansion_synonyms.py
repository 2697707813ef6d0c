"""Expansion by a list of synonyms, and the file that it is read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import texts_of
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.query import SynonymExpansion

SYNONYMS = {"pump": ["compressor", "blower"], "heat pump": "chiller", "C++": "cpp", "node.js": "node"}


@pytest.mark.parametrize(
    ("question", "wordings"),
    [
        ("reset the PUMP?", ["reset the compressor?", "reset the blower?"]),
        ("Heat  Pump and pump", ["chiller and compressor", "chiller and blower"]),
        ("pumps and a pump-house", []),
        ("c++ or node.js?", ["cpp or node?"]),
        ("", []),
    ],
)
def test_whole_words_and_phrases_are_found_whatever_their_case(question: str, wordings: list[str]) -> None:
    assert texts_of(SynonymExpansion(SYNONYMS).rewrite(Query(question))) == [question, *wordings]


def test_equivalents_stand_for_each_other_and_no_more_than_asked() -> None:
    expansion = SynonymExpansion([["pump", "compressor", "Blower"]], size=2)
    assert texts_of(expansion.rewrite(Query("blower"))) == ["blower", "pump"]
    own = Query("blower", (Variant("fan"), Variant("x")))
    assert expansion.rewrite(own) == own
    assert SynonymExpansion(SYNONYMS, 1).rewrite(Query("pump")) == Query("pump")


def test_a_phrase_counts_no_more_than_what_it_stands_for() -> None:
    (variant,) = SynonymExpansion({"WHO": "World Health Organization"}).rewrite(Query("WHO rules")).variants
    assert (variant.text, variant.terms) == (
        "World Health Organization rules",
        {"WHO rules": 1.0, "World Health Organization": 1 / 3},
    )


def test_both_words_are_found() -> None:
    channel = BM25.from_chunks([Chunk("a", "a pump here"), Chunk("b", "one compressor there"), Chunk("c", "neither")])
    expansion = SynonymExpansion({"pump": "compressor"})
    assert set((expansion >> channel).search("pump").ids) == {"a", "b"}
    assert (expansion >> channel).search("pump").hits[0].votes[0].query in ("pump", "compressor")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text("\ufeff# ours\n\npump, compressor\npump => blower\na\\,b , c => d\\=>e\n", encoding="utf-8")
    assert SynonymExpansion.from_file(path).synonyms == {
        "pump": ("compressor", "blower"),
        "compressor": ("pump",),
        "a b": ("d=>e",),
        "c": ("d=>e",),
    }


@pytest.mark.parametrize("line", ["pump", "a => ", "=> b", "a => b => c", ", ,", "?, !"])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text(f"a, b\n{line}\n")
    with pytest.raises(ConfigError, match=r"line 2|with a word"):
        SynonymExpansion.from_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        SynonymExpansion.from_file(tmp_path / "none.txt")


@pytest.mark.parametrize("wrong", ["pump, compressor", {"a": [1]}, [["a", "?"]], {1: "a"}])
def test_what_is_no_list_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="synonym"):
        SynonymExpansion(wrong)


@given(
    st.text(max_size=30), st.integers(1, 4), st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from("xyz")))
)
def test_the_original_comes_first_and_there_are_no_more_than_asked(
    question: str, size: int, synonyms: dict[str, list[str]]
) -> None:
    expanded = texts_of(SynonymExpansion(synonyms, size).rewrite(Query(question)))
    assert expanded[0] == Query(question).text
    assert len(expanded) == len(set(expanded)) <= size
