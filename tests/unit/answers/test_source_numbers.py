"""Sources with numbers, whatever the framework."""

from __future__ import annotations

import pytest

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.citations import LAST, citation_of
from voicevault_retrievers.answers.source_numbers import (
    Layout,
    Reserved,
    as_data,
    block_numbers,
    from_data,
    indexes,
    kept_numbers,
    mentioned,
)
from voicevault_retrievers.core.types import Chunk, Citation, Hit
from voicevault_retrievers.errors import ConfigError


def hit(name: str, text: str = "A pump.", score: float | None = 1.0, kb: str = "") -> Hit:
    return Hit(Chunk(name, text, kb=kb), score)


def given(number: int, one: Hit) -> Citation:
    return citation_of(number, one, one.text)


def test_a_source_keeps_its_number_where_it_reads_the_same() -> None:
    before = [given(4, hit("a", score=0.2)), given(7, hit("b"))]
    hits = [hit("c"), hit("b", score=None), hit("a", "Another text."), hit("a"), hit("b", kb="other")]
    assert kept_numbers(hits, before, 8) == [8, 7, 9, 4, 10]
    assert kept_numbers([hit("a"), hit("a")], before, 8) == [4, 8]


def test_the_best_is_told_by_its_rank_where_numbers_do_not() -> None:
    layout = Layout(ContextBuilder(max_chars=len("[9] [Source: a]\nA pump."), markers="numbered"))
    hits = [hit("a"), hit("b")]
    text, citations = layout.listed(hits, [9, 2], ranks=[0, 1])
    assert [one.index for one in citations] == [9]
    assert text.endswith("\n\n[9] [Source: a]\nA pump.")
    assert [one.index for one in layout.listed(hits, [9, 2])[1]] == [2]
    for ranks in ([0, 0], [0]):
        with pytest.raises(ConfigError, match="numbers are one for each of 2 hits"):
            layout.listed(hits, [9, 2], ranks=ranks)


def test_how_to_cite_is_said_to_who_is_to_cite() -> None:
    builder = ContextBuilder(markers="numbered")
    assert Layout(builder).listed([hit("a")], [1])[0].startswith("After each statement cite")
    assert Layout(builder, instructs=False).listed([hit("a")], [1])[0] == "[1] [Source: a]\nA pump."


def test_numbers_in_texts() -> None:
    assert mentioned("It was green [2, 4–6], not (7) nor [20240].") == [2, 4, 6]
    assert block_numbers("Cite.\n\n[3] [Source: a]\nSee [9].\n\n[12] [Source: b]\nText.") == [3, 12]


def test_citations_as_plain_data_come_back_each_once() -> None:
    citations = (given(1, hit("a")), given(2, hit("b")))
    other = {"index": 3, "id": "of another version"}
    told = [*as_data(citations), other, None, "a text", *as_data(citations)]
    assert from_data(told) == citations
    assert indexes(told) == [1, 2, 3, 1, 2]


def test_reserved_numbers_begin_again_where_a_marker_could_not_say_the_next() -> None:
    reserved = Reserved(last=LAST - 2)
    assert reserved.next(2) == range(LAST - 1, LAST + 1)
    assert reserved.next(1) == range(1, 2)
    assert Reserved(last=LAST - 1).next(2) == range(1, 3)
    assert reserved.next(3) == range(2, 5)
