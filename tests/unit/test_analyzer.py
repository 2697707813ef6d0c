"""Analyzers: what becomes a term, and that a saved recipe gives the same terms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import Analyzer, estimate_tokens
from voicevault_retrievers.text.analyzer import LANGUAGES
from voicevault_retrievers.types import Chunk

TEXTS = {
    "ar": "المضخة تعمل", "da": "pumperne kører", "de": "Druckbehälter werden geprüft", "el": "οι αντλίες λειτουργούν",
    "en": "the pumps are running", "es": "las bombas funcionan", "fi": "pumput käyvät", "fr": "les pompes marchent",
    "hi": "पंप चल रहे हैं", "hu": "a szivattyúk működnek", "ru": "насосы работают", "ta": "பம்புகள் இயங்குகின்றன",
    "tr": "pompalar çalışıyor", "zh": "浮标的电池多久检查一次", "ja": "ポンプは動いています", "ko": "펌프가 작동합니다",
    "th": "ปั๊มกำลังทำงาน",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Running pumps, RUNNING!", ["run", "pump", "run"]),
        ("ERR_2043 and HS-4410-B", ["err", "2043", "hs", "4410", "b"]),
        ("the station's pump isn’t hot", ["station", "pump", "isn't", "hot"]),
        ("to be or not to be", []),
        ("电池维护 test 泵", ["电池", "池维", "维护", "test", "泵"]),
        ("ﬁlter Ｐump", ["filter", "pump"]),
        ("किताबें हिन्दी தமிழ்", ["किताबें", "हिन्दी", "தமிழ்"]),
        ("كِتَاب كتاب", ["كتاب", "كتاب"]),
        ("İstanbul", ["istanbul"]),
        ("", []),
        ("?! — …", []),
    ],
)
def test_terms_of_a_text(text: str, terms: list[str]) -> None:
    assert Analyzer()(text) == terms


def test_options() -> None:
    assert Analyzer(stemming=False)("the running pumps") == ["running", "pumps"]
    assert Analyzer(stopwords=False)("the pump") == ["the", "pump"]
    assert Analyzer(None)("The Pumps") == ["the", "pumps"]
    assert Analyzer("de")("Die Prüfungen der Behälter") == Analyzer("de")("Prüfung Behälter")
    with pytest.raises(ConfigError, match="unknown language 'english'"):
        Analyzer("english")


def test_a_fingerprint_is_that_of_the_recipe() -> None:
    recipes = [Analyzer(), Analyzer("de"), Analyzer(None), Analyzer(stemming=False), Analyzer(stopwords=False)]
    assert len({analyzer.fingerprint for analyzer in recipes}) == len(recipes)
    for analyzer in recipes:
        assert Analyzer(**analyzer.recipe()) == analyzer
        assert Analyzer(**analyzer.recipe()).fingerprint == analyzer.fingerprint


@given(text=st.text(), language=st.sampled_from([None, *LANGUAGES]))
def test_any_text_has_terms_and_words_for_them(text: str, language: str | None) -> None:
    analyzer = Analyzer(language)
    assert [term for _, term in analyzer.pairs(text)] == analyzer(text)
    assert all(word for word, _ in analyzer.pairs(text))


@pytest.mark.parametrize("language", [None, *LANGUAGES])
def test_a_reopened_base_ranks_as_before_in_every_language(language: str | None, tmp_path: Path) -> None:
    chunks = [Chunk(name, text) for name, text in TEXTS.items()]
    with KnowledgeBase.create("kb", root=tmp_path, analyzer=Analyzer(language)) as base:
        base.add(chunks)
    opened = KnowledgeBase.open("kb", root=tmp_path)
    assert opened.analyzer == Analyzer(language)
    for name, text in TEXTS.items():
        found = opened.bm25().search(text, 20)
        assert found.ids[0] == name
        fresh = BM25.from_chunks(chunks, Analyzer(language)).search(text, 20)
        assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in fresh]


def test_tokens_are_estimated_from_bytes() -> None:
    assert [estimate_tokens(text) for text in ("", "a", "abcd", "abcde", "电池")] == [0, 1, 1, 2, 2]
