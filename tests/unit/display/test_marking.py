"""Words that matched, marked where an analyzer reads them in a text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.display import marked
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

WORDS = (
    "contract", "Contracts", "the", "running", "Verträge", "des", "Vertrages", "war", "ERR_2043", "err-2043", "ERR2043",
    "IL-6", "e-mail", "state-of-the-art", "C++", "C#", "U.S.A.", "getUserName", "l'acqua", "§ 12", "§12", "1'000",
    "机器学习", "学习", "기계를", "ภาษาไทย", "Ｅｒｒ_2043", "ﬁle", "größe", "мир", "foo…bar", "Foo™", "naïve", "x" * 70,
)  # fmt: skip
SIGNS = (" ", ", ", "—", "\n", "/", "。", "“", '"', " (", ") ", "…", "\u200b", "\x00", "\ud800", "\u0301")
texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SIGNS)), max_size=8).map(
    lambda parts: "".join(word + sign for word, sign in parts)
)


def shown(text: str, *words: str, analyzer: AnyAnalyzer | None = None) -> str:
    return "".join(f"[{piece}]" if is_marked else piece for piece, is_marked in marked(text, words, analyzer))


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (
            "Der Vertrag und die Verträge des Vertrages sind nicht kündbar.",
            ["verträge"],
            "Der [Vertrag] und die [Verträge] des [Vertrages] sind nicht kündbar.",
        ),
        ("The runner runs; running.", ["run"], "The runner [runs]; [running]."),
        (
            "The error ERR_2043, err-2043 (ERR2043) or err 2043.",
            ["err_2043"],
            "The error [ERR_2043], [err-2043] ([ERR2043]) or err 2043.",
        ),
        ("ERR_2043 and 2043", ["2043"], "ERR_[2043] and [2043]"),
        ("学习机器学习。机场", ["机器"], "学习[机器]学习。机场"),
        ("学习机器学习。机场", ["机器", "机", "器"], "学习[机器]学习。[机]场"),
        ("기계를 학습한다", ["기계"], "[기계]를 학습한다"),
        ("state-of-the-art e-mail", ["state", "mail"], "[state]-of-the-art e-[mail]"),
        ("C++, C and C#", ["c++"], "[C++], C and C#"),
        ("nach § 12 Abs. 3 und §12, nicht 12", ["§12"], "nach [§ 12] Abs. 3 und [§12], nicht 12"),
        ("getUserName(parse)", ["user"], "get[User]Name(parse)"),
        ("U.S.A. and usa", ["usa"], "[U.S.A]. and [usa]"),
        ("Ｅｒｒ_2043 in a ﬁle", ["err_2043", "file"], "[Ｅｒｒ_2043] in a [ﬁle]"),
        ("Mu\u0308ller", ["müller"], "[Mu\u0308ller]"),
        ("nothing here", ["contract"], "nothing here"),
        ("nothing here", [], "nothing here"),
        ("", ["contract"], ""),
    ],
)
def test_what_the_analyzer_reads_as_the_same_word_is_marked(text: str, words: list[str], expected: str) -> None:
    assert shown(text, *words) == expected


def test_the_analyzer_says_what_is_the_same_word() -> None:
    assert shown("Contracts and contract", "contract", analyzer=Analyzer("en", stemming=False)) == (
        "Contracts and [contract]"
    )
    assert shown("Foo, foo bar", "foo", analyzer=CustomAnalyzer(str.split, "spaces")) == "Foo, [foo] bar"
    assert shown("Foo, foo bar", "Foo,", analyzer=str.split) == "[Foo,] foo bar"


def test_the_language_is_that_of_the_text_as_a_whole() -> None:
    german = "Die Katzen und der Hund, die nicht mit uns und den Katzen waren: die Katze."
    assert shown(german, "katze").count("[") == 3
    english = "The cats that were with us and the cat."
    assert shown(english, "cat") == "The [cats] that were with us and the [cat]."


@given(texts | st.text(max_size=60), st.lists(st.sampled_from(WORDS) | st.text(max_size=20), max_size=3))
def test_pieces_join_to_the_text_and_alternate(text: str, words: list[str]) -> None:
    pieces = marked(text, words)
    assert "".join(piece for piece, _ in pieces) == text
    assert all(piece for piece, _ in pieces)
    assert all(one != other for (_, one), (_, other) in pairwise(pieces))


@given(texts, st.sampled_from(WORDS))
def test_what_bm25_says_that_matched_is_marked(text: str, query: str) -> None:
    chunk = Chunk("a", text)
    for hit in BM25.from_chunks([chunk]).search(query):
        for term in hit.votes[0].terms:
            assert any(is_marked for _, is_marked in marked(chunk.text, [term])), term


@pytest.mark.parametrize(
    "unit", ["word{} ", "机{}器学", "a{}-", "ab{}x", "§ {} ", "{}\u0301", "({}", "ERR_{}."], ids=repr
)
def test_twice_the_text_is_twice_the_work(unit: str) -> None:
    """The characters that an analyzer is given are counted: a clock would say less."""

    def work(size: int) -> float:
        read = 0

        def terms(text: str) -> list[str]:
            nonlocal read
            read += len(text)
            return text.split() if len(text) > 9 else list(text)

        text = "".join(unit.format(number) for number in range(size)) + " 1"
        pieces = marked(text, ["1", "机", "a"], terms)
        assert "".join(piece for piece, _ in pieces) == text
        return read / len(text)

    assert work(4000) < 1.5 * work(1000)


@pytest.mark.parametrize(
    "text", ["a" * 10**6, "." * 10**6, "§ " * 10**5, "机器学习" * 10**4, "\u0301" * 10**5, "a-" * 10**5]
)
def test_a_text_without_spaces_is_read_too(text: str) -> None:
    assert "".join(piece for piece, _ in marked(text, ["a", "机器"])) == text
