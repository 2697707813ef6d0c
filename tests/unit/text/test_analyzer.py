"""Analyzers: what becomes a term, and that a saved recipe gives the same terms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import (
    Analyzer,
    CustomAnalyzer,
    QueryTerm,
    analyzer,
    estimate_tokens,
    languages,
    untagged,
)
from voicevault_retrievers.text.languages import TAGS
from voicevault_retrievers.text.stopwords import STOPWORDS

TEXTS = {
    "ar": "المضخة تعمل", "da": "pumperne kører", "de": "Druckbehälter werden geprüft", "el": "οι αντλίες λειτουργούν",
    "en": "the pumps are running", "es": "las bombas funcionan", "fi": "pumput käyvät", "fr": "les pompes marchent",
    "hi": "पंप चल रहे हैं", "hu": "a szivattyúk működnek", "ru": "насосы работают", "ta": "பம்புகள் இயங்குகின்றன",
    "tr": "pompalar çalışıyor", "zh": "浮标的电池多久检查一次", "ja": "ポンプは動いています", "ko": "펌프가 작동합니다",
    "th": "ปั๊มกำลังทำงาน",
}  # fmt: skip
ANY = ["auto", None, *sorted(languages.installed())]
EVERY_TAG = "".join(sorted(TAGS.values()))
RECIPES = [
    Analyzer(), Analyzer("en"), Analyzer("de"), Analyzer(None), Analyzer(stemming=False), Analyzer(stopwords=False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Running pumps, RUNNING!", ["run", "pump", "run"]),
        ("ERR_2043 and HS-4410-B", ["err2043", "err", "2043", "hs4410b", "hs", "4410", "b"]),
        ("COVID-19's covid19", ["covid19", "covid", "19", "covid19", "covid", "19"]),
        ("C++ C# C (C++)", ["c++", "c", "c#", "c", "c", "c++", "c"]),
        ("v1.2.3, 1.2.3.", ["v1.2.3", "v", "1", "2", "3", "1.2.3", "1", "2", "3"]),
        ("<user@example.com>", ["user@example.com", "user", "exampl", "com"]),
        ("§ 433 §433 §§ 312b", ["§433", "433", "§433", "433", "§312b", "312b", "312", "b"]),
        ("getUserName HTTPServer McDonald", ["get", "user", "name", "http", "server", "mcdonald"]),
        ("the U.S. and the U.S.A.", ["us", "usa"]),
        ("in 1990's 3.14 1,000", ["1990", "3", "14", "1", "000"]),
        ("the station's pump isn’t 'hot' well-known", ["station", "pump", "isn't", "hot", "well", "known"]),
        ("to be or not to be", []),
        ("电池维护 test 泵", ["电池", "池维", "维护", "电", "池", "维", "护", "test", "泵"]),
        ("ปั๊ม 펌프가 ポンプ", ["ปั๊ม", "펌프", "프가", "ポン", "ンプ"]),
        ("ﬁlter Ｐump naïve", ["filter", "pump", "naiv"]),
        ("किताबें हिन्दी தமிழ்", ["किताबें", "हिन्दी", "தமிழ்"]),
        ("كِتَاب كتاب ١٢", ["كتاب", "كتاب", "12"]),
        ("İstanbul", ["istanbul"]),
        ("", []),
        ("?! — …", []),
        ("\ud800 pump\udfff", ["pump"]),
    ],
)
def test_terms_of_a_text(text: str, terms: list[str]) -> None:
    assert Analyzer("en")(text) == terms


def test_options() -> None:
    assert Analyzer("en", stemming=False)("the running pumps") == ["running", "pumps"]
    assert Analyzer("en", stopwords=False)("the pump") == ["the", "pump"]
    assert Analyzer(None)("The Pumps") == ["the", "pumps"]
    assert Analyzer("de")("Die Prüfungen der Behälter") == Analyzer("de")("Prüfung Behälter")
    with pytest.raises(ConfigError, match="unknown language 'english'"):
        Analyzer("english")


def test_the_plain_analyzer_cuts_at_punctuation_and_has_no_identifier_twice() -> None:
    plain = Analyzer(language=None)
    text = "GPT-4, gpt-4! ERR_2043: don't (user@example.com) v1.2.3 §433 C++ abc123 getUserName naïve 电池 "
    assert plain(text) == [
        "gpt", "4", "gpt", "4", "err", "2043", "don", "t", "user", "example", "com", "v1", "2", "3", "433", "c",
        "abc123", "getusername", "naive", "电池", "电", "池",
    ]  # fmt: skip
    assert [term.forms for term in plain.query("the GPT-4", "")] == [("the",), ("gpt",), ("4",)]
    assert len(plain("x" * 100)[0]) == len(plain("ü" * 100)[0]) == 64


def test_apostrophes_are_those_of_the_language() -> None:
    assert Analyzer("fr")("L'avion d’un pilote, aujourd'hui") == Analyzer("fr")("avion pilote aujourd'hui")
    assert Analyzer("it")("dell'acqua") == Analyzer("it")("acqua")
    assert Analyzer("tr")("Ankara'nın") == Analyzer("tr")("Ankara")


def test_a_blob_is_no_work_and_no_long_terms() -> None:
    blob = "aGVsbG8gd29ybGQ1" * 10_000
    assert Analyzer("en")(f"{blob} x") == [blob.lower()[:64], "x"]
    assert max(map(len, Analyzer("en")("long-winded-" * 1000 + "9"))) <= 64


def test_an_older_stemmer_is_told_from_a_wrong_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Stemmer.algorithms", lambda: ["english"])
    with pytest.raises(ConfigError, match="no stemmer for polish: pip install -U PyStemmer"):
        Analyzer("pl")


def test_a_fingerprint_is_that_of_the_recipe() -> None:
    assert len({one.fingerprint for one in RECIPES}) == len(RECIPES)
    for one in RECIPES:
        assert Analyzer(**one.recipe()) == one
        assert Analyzer(**one.recipe()).fingerprint == one.fingerprint


@pytest.mark.parametrize("language", ["auto", "de"])
def test_a_fingerprint_is_that_of_the_stems(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def prints(change: str) -> str:
        analyzer._fingerprint.cache_clear()
        real = languages._stemmer

        class Changed:
            def stemWords(self, words: list[str]) -> list[str]:  # noqa: N802 - the stemmer's own name
                return [stem.replace(change, "") for stem in real("de").stemWords(words)]

        with monkeypatch.context() as patched:
            patched.setattr(languages, "_stemmer", lambda code: Changed() if code == "de" else real(code))
            return Analyzer(language).fingerprint

    assert prints("no such stem") == prints("nor this") != prints("buchung")
    analyzer._fingerprint.cache_clear()


@given(text=st.text(), language=st.sampled_from(ANY))
def test_a_query_finds_every_term_of_a_text(text: str, language: str | None) -> None:
    one = Analyzer(language)
    terms = one(text)
    asked = one.query(text, "".join(sorted({term[0] for term in terms} & set(EVERY_TAG))))
    assert all(term.word and all(term.forms) for term in asked)
    stopped = set().union(*STOPWORDS.values()) if language == "auto" else set()
    assert {term for term in terms if untagged(term) not in stopped} <= {form for term in asked for form in term.forms}


def test_a_query_has_a_form_for_each_language_of_the_index() -> None:
    tags = TAGS["de"] + TAGS["en"]
    assert Analyzer().query("Die pumps! насосы 42", tags) == [
        QueryTerm("die", (TAGS["en"] + "die",)),
        QueryTerm("pumps", (TAGS["en"] + "pump", TAGS["de"] + "pumps")),
        QueryTerm("42", ("42",)),
    ]
    assert Analyzer("en").query("the IL-6 pumps", "") == [
        QueryTerm("il-6", ("il6",)), QueryTerm("il", ("il",)), QueryTerm("6", ("6",)), QueryTerm("pumps", ("pump",)),
    ]  # fmt: skip


@given(text=st.text(st.characters(max_codepoint=0x7F)), language=st.sampled_from(["auto", "en"]))
def test_no_text_forges_a_tag(text: str, language: str) -> None:
    for term in Analyzer(language)(text):
        bare = untagged(term)
        assert bare
        assert not any(character in EVERY_TAG or character.isspace() for character in bare)
        assert (bare != term) == (language == "auto" and bare.replace("'", "").isalpha())


def test_a_custom_analyzer_is_known_by_name_and_by_what_it_does() -> None:
    one = CustomAnalyzer(str.split, "spaces")
    assert one("a B a") == one.analyse(["a B a"]).document(0) == ["a", "B", "a"]
    assert one.query("a B") == [QueryTerm("a", ("a",)), QueryTerm("B", ("B",))]
    assert repr(one) == "CustomAnalyzer(name='spaces')"
    others = [one, CustomAnalyzer(str.split, "other"), CustomAnalyzer(lambda text: text.lower().split(), "spaces")]
    assert len({other.fingerprint for other in others}) == len(others)


@pytest.mark.parametrize("language", ANY)
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
