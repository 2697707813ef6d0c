"""Operators in a query: how it is taken apart, and what is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25, Operators, merge_policy
from voicevault_retrievers.text import Analyzer

ENGLISH = Analyzer("en")
WORDS = ["pump", "pumps", "valve", "the", "ERR_2043", "err-2043", "2043", "e-mail", "mail", "oil", "Öl"]
BODIES = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
PHRASES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)


def _chunks(*texts: str) -> list[Chunk]:
    return [Chunk(f"c{number:02}", text, metadata={"even": number % 2 == 0}) for number, text in enumerate(texts)]


def _found(query: str | Query, *texts: str, language: str = "en") -> list[str]:
    """The texts that are found, as they were given."""
    channel = BM25.from_chunks(_chunks(*texts), Analyzer(language), operators=True)
    return sorted((hit.text for hit in channel.search(query, len(texts))), key=texts.index)


@pytest.mark.parametrize(
    ("query", "words", "must", "phrases", "never"),
    [
        ("", "", (), (), ()),
        ("plain words", "plain words", (), (), ()),
        ("oil +pump -valve", "oil pump", ("pump",), (), ("valve",)),
        ('oil "hot pump" -"cold valve" +"a b"', "oil hot pump a b", (), ("hot pump", "a b"), ("cold valve",)),
        ("„heiße Pumpe“ “hot pump” «pompe chaude»", "heiße Pumpe hot pump pompe chaude", (),
         ("heiße Pumpe", "hot pump", "pompe chaude"), ()),
        ("HS-4410-B e-mail a+b C++", "HS-4410-B e-mail a+b C++", (), (), ()),
        ("+HS-4410-B -e-mail", "HS-4410-B", ("HS-4410-B",), (), ("e-mail",)),
        ("a + b - c +", "a + b - c +", (), (), ()),
        ("--verbose ++i +-1", "--verbose ++i +-1", (), (), ()),
        ('a "b c', 'a "b c', (), (), ()),
        ('+"a b', '+"a b', (), (), ()),
        ('5" pipe, 6" hose', '5" pipe, 6" hose', (), (), ()),
        ('"" +"" -" "', '"" +"" -" "', (), (), ()),
        ('"a b"c', "a b c", (), ("a b",), ()),
    ],
)  # fmt: skip
def test_a_query_is_taken_apart(query: str, words: str, must: object, phrases: object, never: object) -> None:
    parsed = Operators.parse(query)
    assert parsed.text.split() == words.split()
    assert (parsed.must, parsed.phrases, parsed.never) == (must, phrases, never)


@given(st.text(alphabet='ab +-"“” \n', max_size=30))
def test_any_text_is_a_query_and_loses_only_signs_and_what_is_excluded(query: str) -> None:
    parsed = Operators.parse(query)
    kept = "".join(letter for letter in parsed.text + "".join(parsed.never) if letter in "ab")
    assert sorted(kept) == sorted(letter for letter in query if letter in "ab")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"ERR_2043 pump"', ["an err-2043 pump"]),
        ('"err 2043"', ["an err-2043 pump", "err 2043: pumps run"]),
        ('"running pumps"', ["runs the pump"]),
        ('"runs a pump"', ["runs the pump"]),
        ('pump "run"', ["err 2043: pumps run", "runs the pump"]),
        ("pump -err2043 -run", ["valve, pump"]),
        ('pump -"pump run"', ["an err-2043 pump", "runs the pump", "valve, pump"]),
        ("+pump +valve", ["valve, pump"]),
        ("+pump,valve", []),
        ("+valve,pump", ["valve, pump"]),
        ("+the valve", ["valve, pump"]),
        ('"the of" valve', ["valve, pump"]),
        ('valve "unheard of"', []),
        ("valve -unheard", ["valve, pump"]),
        ("-valve", []),
    ],
)
def test_what_operators_find(query: str, found: list[str]) -> None:
    assert _found(query, "an err-2043 pump", "err 2043: pumps run", "runs the pump", "valve, pump") == found


def test_without_operators_their_signs_are_text() -> None:
    channel = BM25.from_chunks(_chunks("hot pump", "pump, hot", "cold"), ENGLISH)
    assert len(channel.search('"hot pump" -cold', 9)) == 3
    with pytest.raises(ConfigError, match="operators is true or false"):
        BM25.from_chunks([], ENGLISH, operators=1)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"电池维护"', ["锂电池维护保养 pump"]),
        ('"维护保养 pump"', ["锂电池维护保养 pump"]),
        ('"pump 电池"', ["pump: 电池, 维护"]),
        ("+维 -养", ["pump: 电池, 维护"]),
    ],
)
@pytest.mark.parametrize("language", ["en", "auto"])
def test_a_phrase_of_a_script_without_spaces_is_part_of_a_longer_run(
    query: str, found: list[str], language: str
) -> None:
    assert _found(query, "锂电池维护保养 pump", "pump: 电池, 维护", language=language) == found


def test_a_phrase_is_read_as_each_documents_language_has_it() -> None:
    german, english = "Die Pumpe ist nicht den ganzen Tag an, die Nummer 5", "The lion den near you is number 5"
    texts = (german, english, "The den of a lion, and you with 5")
    # "den", "die" and "nicht" are stopwords in German, and words in English; "you" is the other way round.
    assert _found('"lion den"', *texts, language="auto") == [english]
    assert _found('"ganze Tage"', *texts, language="auto") == [german]
    assert _found('pump nummer "nicht 5"', *texts, language="auto") == [german]
    assert _found('"lion насос"', *texts, language="auto") == []
    assert _found("lion number -den", *texts, language="auto") == []
    assert _found("lion number -nummer", *texts, language="auto") == list(texts[1:])


def _brute(channel_texts: dict[str, str], required: Sequence[str], excluded: Sequence[str]) -> set[str]:
    """The ids of the texts that have all of some phrases, and none of others."""

    def has(text: str, phrase: str) -> bool:
        terms, sought = ENGLISH(text), ENGLISH(phrase)
        return any(terms[at : at + len(sought)] == sought for at in range(len(terms) - len(sought) + 1))

    return {
        chunk_id
        for chunk_id, text in channel_texts.items()
        if all(has(text, phrase) for phrase in required)
        and not any(has(text, phrase) for phrase in excluded if ENGLISH(phrase))
    }


@given(
    texts=st.lists(BODIES, min_size=1, max_size=12),
    gone=st.sets(st.integers(0, 11), max_size=4),
    plain=BODIES,
    must=st.lists(st.sampled_from(WORDS), max_size=2),
    phrases=st.lists(PHRASES, max_size=2),
    never=st.lists(PHRASES, max_size=2),
    even=st.booleans(),
)
def test_operators_find_what_a_look_at_every_text_finds(
    texts: list[str], gone: set[int], plain: str, must: list[str], phrases: list[str], never: list[str], even: bool
) -> None:
    chunks = _chunks(*texts)
    channel = BM25.from_chunks(chunks[::2], ENGLISH, operators=True)
    channel.add(chunks[1::2])
    channel.delete([chunk.id for number, chunk in enumerate(chunks) if number in gone])
    left = {chunk.id: chunk.text for number, chunk in enumerate(chunks) if number not in gone}
    excluded = [f'-"{phrase}"' for phrase in never]
    required = [f"+{word}" for word in must] + [f'"{phrase}"' for phrase in phrases]
    where = {"even": True} if even else None
    query = Query(" ".join([plain, *required, *excluded]), where=where)

    ordinary = BM25(channel.index, ENGLISH)
    scored = Query(" ".join([plain, *must, *phrases]), where=where)
    everything = ordinary.search(scored, len(texts))
    expected = _brute(left, must + phrases, never)
    found = channel.search(query, len(texts))
    assert [(hit.id, hit.score) for hit in found] == [(h.id, h.score) for h in everything if h.id in expected]
    passing = {chunk_id for chunk_id in expected if not even or chunk_id in {chunk.id for chunk in chunks[::2]}}
    of_all = ordinary.scores(scored, left)
    asked = {chunk_id: of_all.get(chunk_id, 0.0) for chunk_id in passing} if query.text.strip() else {}
    assert channel.scores(query, [chunk.id for chunk in chunks]) == asked
    for chunk_id in left:
        parts = ordinary.explain(scored, chunk_id) if chunk_id in expected else []
        assert channel.explain(query, chunk_id) == parts
    assert channel.search_many([query.text], 3) == [[(hit.id, hit.score) for hit in channel.search(query.text, 3)]]


def test_in_many_segments_and_under_require(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_policy, "SEAL_AT", 2)
    chunks = _chunks("hot pump", "hot pump", "pump, hot", "hot pump", "hot valve", "hot valve pump")
    channel = BM25.from_chunks(chunks[:2], ENGLISH, operators=True)
    for chunk in chunks[2:]:
        channel.add([chunk])
    assert len(channel.index.segments) > 1
    assert set(channel.search('"hot pump"', 9).ids) == {"c00", "c01", "c03"}
    assert channel.search(Query('"hot pump"', require={"even": False}), 9).ids == ("c01", "c03")
    assert channel.search(Query("hot -pump", require={"even": True}), 9).ids == ("c04",)


def test_the_operators_of_a_query_hold_for_its_variants_which_may_have_their_own() -> None:
    channel = BM25.from_chunks(
        _chunks("pump", "pump valve", "compressor", "compressor valve oil"), ENGLISH, operators=True
    )
    wider = Query("pump -valve", variants=(Variant("compressor valve", 0.5),))
    assert set(channel.search(wider, 9).ids) == {"c00", "c02"}
    assert set(channel.scores(wider, ["c00", "c01", "c02", "c03"])) == {"c00", "c02"}
    own = Query("compressor", variants=(Variant("+pump +valve"),))
    assert set(channel.search(own, 9).ids) == {"c01", "c02", "c03"}
    assert channel.search(Query("-valve", variants=(Variant("pump"),)), 9).ids == ("c00",)


def test_a_phrase_of_another_tokenizer_is_a_sequence_of_its_terms() -> None:
    channel = BM25.from_chunks(_chunks("电 池 Hot", "池 电 hot"), str.split, operators=True)
    assert channel.search('"电 池"', 9).ids == ("c00",)
    assert channel.search("+hot 电", 9).ids == ("c01",)
