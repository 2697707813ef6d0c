"""The window of a passage that a reranker reads: inside the passage, where the query's words are, at borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank.windows import WindowSelector, best_window

FILLER = "The rest of this report is about other things. "
TEXTS = st.text(alphabet="ab Bß é'.-_2§水源泵น้ำีİ\n\ud800😀", max_size=60)


@given(query=TEXTS, passages=st.lists(TEXTS, min_size=1, max_size=4), max_chars=st.integers(1, 40))
def test_windows_are_inside_the_passages_and_hold_the_whole_where_that_fits(
    query: str, passages: list[str], max_chars: int
) -> None:
    for passage, (start, end) in zip(passages, WindowSelector(query, max_chars).windows(passages), strict=True):
        assert 0 <= start <= end <= len(passage)
        assert end - start <= max_chars
        assert end - start > max_chars * 3 / 4 - 2 or (start, end) == (0, len(passage))


@given(before=st.integers(0, 30), behind=st.integers(0, 30))
def test_the_only_sentence_that_matches_is_whole_in_the_window(before: int, behind: int) -> None:
    sentence = "Pumps need oil every month. "
    text = FILLER * before + sentence + FILLER * behind
    start, end = best_window("How often does a pump need oil?", text, 600)
    assert sentence in text[start:end]
    assert text[start:end] == text or (text[start:].startswith(("The rest", "Pumps")) and text[:end].endswith(". "))


@pytest.mark.parametrize(
    ("query", "filler", "sentence"),
    [
        ("Straßen in Zürich", "Hier steht etwas Text. ", "In Zurich gibt es eine lange Strasse. "),
        ("developpement economique", "Le texte est ici. ", "Le développement économique d'une région. "),
        ("наводнения в Москве", "Здесь текст. ", "Наводнение затопило Москву. "),
        ("IL6 and ERR_2043", "Filler text is here. ", "The level of IL-6 was high, see err_2043. "),
        ("PostgreSQL 索引", "填充文字在这里。", "使用PostgreSQL的索引方法。"),
        ("如何建立数据库", "填充文字在这里。", "向量数据库的建立方法。"),
        ("データベース", "ここに文章。", "これはデータベースの話である。"),
        ("น้ำท่วมกรุงเทพ", "ข้อความเติม ", "น้ำท่วมในกรุงเทพมหานคร "),
        ("to be or not to be", "Filler text is here. ", "Be, or not be? "),
    ],
)
def test_words_are_found_in_other_forms_and_in_scripts_without_spaces(query: str, filler: str, sentence: str) -> None:
    text = filler * 60 + sentence + filler * 60
    start, end = best_window(query, text, 150)
    assert sentence in text[start:end]


def test_distinct_words_count_for_more_than_repeats_of_one_and_earlier_windows_win_ties() -> None:
    repeats, both, gap = "oil oil oil oil oil oil. ", "pump oil. ", FILLER * 10
    text = gap + repeats + gap + both + gap + both
    start, end = best_window("pump oil", text, 100)
    assert start <= text.index(both) < end
    assert best_window("pump", FILLER + text, 100)[0] < (FILLER + text).index(both) + len(gap)
    assert best_window("oil", FILLER + both + gap, 100)[0] == 0


def test_a_word_that_is_rare_among_the_passages_weighs_more() -> None:
    first, second = "oil and oil. ", "pump. "
    text = FILLER * 10 + first + FILLER * 10 + second + FILLER * 10
    alone = WindowSelector("pump oil", 100)
    ((start, end),) = alone.windows([text])
    assert first in text[start:end]
    start, end = alone.windows([text, *["oil"] * 9])[0]
    assert second in text[start:end]


def test_a_word_inside_another_does_not_match() -> None:
    text = FILLER * 10 + "Human manners are manifold. " + FILLER * 10
    assert best_window("man", text, 100)[0] == 0


@pytest.mark.parametrize("query", ["", "   ", "?!", "turbine"])
def test_where_nothing_matches_the_window_is_the_start(query: str) -> None:
    start, end = best_window(query, FILLER * 10, 100)
    assert (start, end) == (0, 2 * len(FILLER))


def test_recipe_and_checks() -> None:
    assert repr(WindowSelector("q", 10)) == "WindowSelector('q', 10)"
    assert WindowSelector("q", 10).windows([]) == []
    with pytest.raises(ConfigError, match="max_chars is a whole number of at least 1, not 0"):
        WindowSelector("q", 0)
