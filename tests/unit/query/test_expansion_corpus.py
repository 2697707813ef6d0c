"""Expansions that read a corpus: acronyms, compounds, spelling; when they read, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FailingChannel, ListChannel, edits_between, texts_of
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import (
    AcronymExpansion,
    CompoundExpansion,
    RuleExpansion,
    SpellingExpansion,
    Together,
)
from voicevault_retrievers.query.acronyms import Form, long_form, pairs
from voicevault_retrievers.query.compounds import LINKS, split
from voicevault_retrievers.query.corpus import Learned
from voicevault_retrievers.query.phrases import Phrases
from voicevault_retrievers.query.related_words import american
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text.spelling import Nearest

TEXTS = [
    "The World Health Organization (WHO) met. Who came?",
    "Die Europäische Union (EU) und die Всемирная организация здравоохранения (ВОЗ).",
    "MRI (magnetic resonance imaging) of the tumour; the pump has a battery.",
    "Das Ladegerät. Der Akku. Die Verteidigung. Eine Linie. Das Ladegerät.",
]
MAKE: list[Callable[..., Learned[object]]] = [AcronymExpansion, CompoundExpansion, SpellingExpansion]  # type: ignore[list-item]


# Acronyms


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the World Health Organization (WHO) met", [("WHO", "World Health Organization")]),
        ("WHO (World Health Organization) met", [("WHO", "World Health Organization")]),
        ("heat shock protein (HSP; see above)", [("HSP", "heat shock protein")]),
        ("the Europäische Union（EU）", [("EU", "Europäische Union")]),
        ("École nationale d'administration (ENA)", [("ENA", "École nationale d'administration")]),
        ("interleukin 6 (IL-6)", [("IL-6", "interleukin 6")]),
        ("Всемирная организация здравоохранения (ВОЗ)", [("ВОЗ", "Всемирная организация здравоохранения")]),
        ("some thing else (WHO)", []),
        ("see UK (http://uk.example.org)", []),
        ("in the year (2003) a man (see below) left", []),
        ("It ended. World peace (WHO)", []),
        ("()(A)(", []),
    ],
)
def test_acronyms_are_read(text: str, found: list[tuple[str, str]]) -> None:
    assert list(pairs(text)) == found


@given(st.text(max_size=12), st.text(max_size=40))
def test_a_long_form_is_the_end_of_its_text(short: str, candidate: str) -> None:
    found = long_form(short, candidate)
    assert found is None or (found in candidate and len(found) > len(short))


@pytest.mark.parametrize(
    ("question", "wording"),
    [
        ("What does the WHO say?", "What does the World Health Organization say?"),
        ("who came", None),
        ("the world  health-organization", None),
        ("the world\nhealth organization and MRI", "the WHO and magnetic resonance imaging"),
        ("is an mri safe?", "is an magnetic resonance imaging safe?"),
        ("EU und ВОЗ", "Europäische Union und Всемирная организация здравоохранения"),
        ("world health organization", "WHO"),
        ("the World Health Organization (WHO)", None),
        ("UNKNOWN", None),
    ],
)
def test_either_form_gives_the_other(question: str, wording: str | None) -> None:
    query = AcronymExpansion(TEXTS).rewrite(Query(question))
    assert texts_of(query) == [question] + ([wording] if wording else [])


def test_an_acronym_counts_as_the_words_that_it_stands_for() -> None:
    (variant,) = AcronymExpansion(TEXTS).rewrite(Query("WHO rules")).variants
    assert variant.terms == {"WHO rules": 1.0, "World Health Organization": 1 / 3}


@pytest.mark.parametrize(("least", "found"), [(0, True), (0.5, True), (0.75, False), (1, False)])
def test_of_several_meanings_the_most_frequent_is_taken_or_none(least: float, found: bool) -> None:
    corpus = ["principal investigator (PI)"] * 2 + ["Principal Investigator (PI)", "protease inhibitor (PI)"]
    for texts_ in (corpus, corpus[::-1]):
        query = AcronymExpansion(texts_, least=least).rewrite(Query("the PI"))
        assert texts_of(query) == ["the PI"] + ["the principal investigator"] * found


# Compounds

COUNTS = {"akku": 5, "lade": 1, "gerät": 9, "ladegerät": 6, "verteidigung": 3, "linie": 2, "auto": 2, "bahn": 2}


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("akkuladegerät", ("akku", "ladegerät")),  # sqrt(5 * 6) is above cbrt(5 * 1 * 9)
        ("ladegerät", ("ladegerät",)),  # 6 is above sqrt(1 * 9)
        ("verteidigungslinie", ("verteidigung", "linie")),
        ("autobahnen", ("autobahnen",)),
        ("autobahn", ("auto", "bahn")),
        ("akku", ("akku",)),
        ("a" * 5000, ("a" * 5000,)),
    ],
)
def test_compounds_come_apart_where_their_parts_are_more_frequent(word: str, parts: tuple[str, ...]) -> None:
    assert split(word, COUNTS, LINKS["de"], 4) == parts


def test_the_parts_of_a_compound_count_together_as_it_does() -> None:
    (variant,) = CompoundExpansion(TEXTS).rewrite(Query("Akkuladegerät kaputt")).variants
    assert variant.terms == {"Akkuladegerät kaputt": 1.0, "akku": 1 / 2, "ladegerät": 1 / 2}
    assert variant.channels == frozenset({"keyword"})
    with pytest.raises(ConfigError, match="Did you mean 'de'"):
        CompoundExpansion(language="dee")


@given(st.text("abcns", max_size=20), st.dictionaries(st.text("abcns", min_size=1, max_size=6), st.integers(1, 9)))
def test_parts_are_words_and_in_their_order(word: str, counts: dict[str, int]) -> None:
    parts = split(word, counts, LINKS["de"], 2)
    at = 0
    for part in parts if parts != (word,) else ():
        assert part in counts
        at = word.index(part, at) + len(part)


# Spelling


@pytest.mark.parametrize(
    ("question", "wording"),
    [
        ("the batery of the pump", "the battery of the pump"),
        ("the pumps", None),  # known under its stem
        ("Organizatoin", "organization"),
        ("tumor", "tumour"),
        ("Die Organisation", "Die organization"),
        ("ERR_2043 batery2 BATERY bat-ery x.batery", None),
        ("the bat", None),
        ("电池的电池的电池", None),
    ],
)
def test_unknown_words_give_way_to_the_nearest(question: str, wording: str | None) -> None:
    query = SpellingExpansion(TEXTS).rewrite(Query(question))
    assert texts_of(query) == [question] + ([wording] if wording else [])


def test_the_nearest_word_takes_the_fewest_edits_and_then_is_the_most_frequent() -> None:
    nearest = Nearest({"pumps": 1, "pumas": 9, "pump": 5, "pimps": 1, "dumps": 99})
    assert nearest.of("pumqs", 1) == "pumas"
    assert nearest.of("pmups", 1) == "pumps"
    assert nearest.of("xxxxx", 2) is None
    assert Nearest({}).of("pump", 2) is None


@given(
    st.text("abc", min_size=1, max_size=7), st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 3))
)
def test_the_filter_loses_no_word(word: str, counts: dict[str, int]) -> None:
    ranked = [(edits_between(word, other), -count, other) for other, count in counts.items() if other[0] == word[0]]
    least, _, best = min(ranked, default=(9, 0, ""))
    assert Nearest(counts).of(word, 2) == (best if least <= 2 else None)


@pytest.mark.parametrize(
    ("british", "other"),
    [
        ("colour", "color"), ("behaviours", "behaviors"), ("organisation", "organization"), ("analysed", "analyzed"),
        ("centre", "center"), ("travelled", "traveled"), ("modelling", "modeling"), ("anaemia", "anemia"),
        ("paediatric", "pediatric"), ("oestrogen", "estrogen"), ("defence", "defense"), ("dialogue", "dialog"),
    ],
)  # fmt: skip
def test_british_spellings(british: str, other: str) -> None:
    assert american(british) == american(other) == other


@pytest.mark.parametrize("word", ["four", "hour", "fire", "filling", "wise", "our", "size", "course"])
def test_what_is_spelt_alike(word: str) -> None:
    assert american(word) == word


# What they share


@pytest.mark.parametrize("make", MAKE)
@given(question=st.text(max_size=40), own=st.lists(st.text(min_size=1, max_size=5), max_size=2))
def test_the_original_stays_and_at_most_one_wording_comes(
    make: Callable[..., Learned[object]], question: str, own: list[str]
) -> None:
    query = Query(question, tuple(map(Variant, own)), where={"a": 1})
    expanded = make(TEXTS).rewrite(query)
    assert (expanded.text, expanded.where) == (query.text, query.where)
    assert expanded.variants[: len(own)] == query.variants
    assert len(expanded.variants) <= len(own) + 1
    assert all(variant.terms and variant.terms[query.text] >= 1 for variant in expanded.variants[len(own) :])


def over(make: Callable[..., Learned[object]], *corpus: str) -> tuple[Learned[object], BM25]:
    channel = BM25.from_chunks([Chunk(str(at), text) for at, text in enumerate(corpus)])
    return make().over(fuse(bm25=channel, list=ListChannel([]))), channel


async def test_without_a_corpus_they_read_what_is_searched_as_it_is_now() -> None:
    channel = BM25.from_chunks([Chunk("a", "World Health Organization"), Chunk("b", "WHO rules")])
    pipeline = Pipeline(AcronymExpansion() >> fuse(bm25=channel, dense=ListChannel([])))
    assert set(pipeline.search("World Health Organization").ranking.ids) == {"a"}
    channel.add([Chunk("c", "the World Health Organization (WHO)")])
    found = pipeline.search("World Health Organization")
    assert set(found.ranking.ids) == {"a", "b", "c"}
    assert (await pipeline.asearch("World Health Organization")).ranking == found.ranking
    channel.delete(["c"])
    assert set(pipeline.search("World Health Organization").ranking.ids) == {"a"}


def test_a_corpus_is_read_once_and_a_base_again_when_it_has_changed(tmp_path: Path) -> None:
    read: list[int] = []

    class Counting(AcronymExpansion):
        def learn(self, texts: Iterable[str]) -> Phrases[Form]:
            read.append(1)
            return super().learn(texts)

    with KnowledgeBase.create(tmp_path / "kb") as kb:
        kb.add([Chunk("a", TEXTS[0])])
        expansion = Counting(kb)
        assert expansion.rewrite(Query("WHO")).variants
        assert not expansion.rewrite(Query("MRI")).variants
        assert len(read) == 1
        kb.add([Chunk("b", TEXTS[2])])
        assert expansion.rewrite(Query("MRI")).variants
        kb.delete(["a"])
        assert not expansion.rewrite(Query("WHO")).variants
        assert len(read) == 3
        first, second = Counting(), kb.bm25()
        for channel in (second, kb.bm25()):  # what one commit's channel has told serves another's
            assert (first >> channel).search("MRI").ids == ("b",)
        assert len(read) == 4


@pytest.mark.parametrize("make", MAKE)
async def test_who_may_not_see_everything_is_told_nothing(make: Callable[..., Learned[object]]) -> None:
    channel = BM25.from_chunks([Chunk("a", text, metadata={"team": 1}) for text in TEXTS[:1]])
    asked = Query("WHO batery Akkuladegerät", require={"team": 1})
    expansion = make(TEXTS)
    assert expansion.rewrite(asked) == asked
    pipeline = Pipeline(expansion >> channel)
    for result in (pipeline.search(asked), await pipeline.asearch(asked)):
        assert result.ranking.ids == ("a",)
        assert [(failure.stage, failure.degrades) for failure in result.errors] == [(expansion.name, False)]


def test_what_a_channel_filters_is_not_read() -> None:
    inner = Pipeline(BM25.from_chunks([Chunk("a", TEXTS[0], metadata={"team": 1}), Chunk("b", "WHO")]))
    for narrowed in (inner.narrowed(None, {"team": 2}), fuse(bm25=inner.narrowed(None, {"team": 2}))):
        with pytest.raises(ConfigError, match="give a corpus"):
            Pipeline(AcronymExpansion() >> narrowed).search("World Health Organization")


@pytest.mark.parametrize("below", [ListChannel([("a", 1.0)]), FailingChannel(OSError(), name="dense")])
def test_without_anything_to_read_it_is_set_up_wrongly(below: Channel) -> None:
    with pytest.raises(ConfigError, match="give a corpus"):
        Pipeline(AcronymExpansion() >> fuse(dense=below, other=ListChannel([("b", 1.0)]))).search("WHO")


def test_they_go_together_and_one_after_the_other() -> None:
    both = Together([RuleExpansion(2), AcronymExpansion(), SpellingExpansion()])
    channel = BM25.from_chunks([Chunk(str(at), text) for at, text in enumerate(TEXTS)])
    expanded = both.over(channel).rewrite(Query("What is the WHO batery?"))
    assert texts_of(expanded)[1:] == ["the WHO batery", "What is the World Health Organization batery?",
                                   "What is the WHO battery?"]  # fmt: skip
    assert (AcronymExpansion() >> (SpellingExpansion() >> channel)).search("batery of WHO").ids[:2] == ("0", "2")


def test_a_generator_is_read_at_once_and_a_text_is_no_corpus() -> None:
    assert AcronymExpansion(text for text in TEXTS).rewrite(Query("WHO")).variants
    assert AcronymExpansion([Chunk("a", TEXTS[0])]).rewrite(Query("WHO")).variants
    with pytest.raises(ConfigError, match="a corpus is"):
        AcronymExpansion(TEXTS[0])
    with pytest.raises(ConfigError, match="share"):
        AcronymExpansion(TEXTS, least=2)
