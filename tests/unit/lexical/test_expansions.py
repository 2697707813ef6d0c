"""Misspelled words and prefixes: which terms they stand for, how these score, and what is said of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import edits_between, examples
from voicevault_retrievers._support.compiled import installed
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import fuse
from voicevault_retrievers.lexical import BM25, merge_policy
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.lexical.operators import Operators, TermPattern
from voicevault_retrievers.lexical.reading import NEAREST, PREFIXED
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.spelling import WordList, edits_allowed

ENGLISH, PLAIN = Analyzer("en"), Analyzer(None)
BACKENDS = ("numpy", "numba") if installed() else ("numpy",)
EVEN = {"even": True}

letters = st.text("abcé", min_size=1, max_size=9)


def _chunks(*texts: str) -> list[Chunk]:
    return [Chunk(f"c{number:02}", text, metadata={"even": number % 2 == 0}) for number, text in enumerate(texts)]


def _said(ranking: Ranking) -> list[str]:
    return [failure.message for failure in ranking.errors]


def _scores(channel: BM25, query: str | Query, k: int = 99) -> list[tuple[str, float | None]]:
    return [(hit.id, hit.score) for hit in channel.search(query, k)]


@given(word=letters, others=st.lists(letters, min_size=1, max_size=12), most=st.integers(1, 3))
def test_edits_are_those_of_the_slow_algorithm(word: str, others: list[str], most: int) -> None:
    expected = [min(edits_between(word, other), most + 1) for other in others]
    assert WordList(others).distances(word, most).tolist() == expected


# Against a base in which the words are spelled alike


def _nearest(word: str, counts: Counter[str], edits: int) -> list[str]:
    """The terms of the fewest edits, by falling frequency, then by name."""
    apart = [(edits_between(word, other), -count, other) for other, count in counts.items() if other[0] == word[0]]
    near = sorted(one for one in apart if one[0] <= min(edits, len(word) - 1))
    return [other for distance, _, other in near if distance == near[0][0]][:NEAREST]


def _folded(chunks: Sequence[Chunk], terms: Sequence[str], word: str) -> list[Chunk]:
    """The chunks with one word in the place of all of some terms."""
    return [
        Chunk(
            chunk.id, " ".join(word if term in terms else term for term in PLAIN(chunk.text)), metadata=chunk.metadata
        )
        for chunk in chunks
    ]


def _mistyped(draw: random.Random, word: str) -> str:
    """The word with up to two letters replaced, left out, added or swapped; not the first."""
    for _ in range(draw.randint(0, 2)):
        at = draw.randrange(1, len(word))
        before, letter, rest = word[:at], word[at], word[at + 1 :]
        swapped = rest[:1] + letter + rest[1:]
        word = before + draw.choice([draw.choice("abé") + rest, rest, draw.choice("ab") + letter + rest, swapped])
    return word if len(word) > 2 else "abab"


@examples(2)
@given(
    seed=st.integers(0, 1 << 32),
    kind=st.sampled_from(["fuzzy", 1, 2, "*"]),
    require=st.booleans(),
    formula=st.sampled_from(sorted(FORMULAS.keys() - {"okapi"})),  # its floor is a mean over the whole vocabulary
    backend=st.sampled_from(BACKENDS),
)
def test_terms_are_those_of_a_look_at_every_word_and_score_as_one(
    seed: int, kind: int | str, require: bool, formula: str, backend: str
) -> None:
    draw = random.Random(seed)
    pool = ["a" + "".join(draw.choices("abé", k=draw.randint(3, 8))) for _ in range(draw.randint(3, 40))]
    texts = [" ".join(draw.choices(pool, k=draw.randint(1, 6))) for _ in range(draw.randint(1, 16))]
    later, gone = draw.randint(0, 12), set(draw.sample(range(16), draw.randint(0, 6)))
    word, other = _mistyped(draw, draw.choice(pool)), PLAIN(draw.choice(pool))[0]
    word = word[: draw.randint(2, 4)] if kind == "*" else word
    word, chunks = PLAIN(word)[0], _chunks(*texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_policy, "SEAL_AT", 4)
        fuzzy = {"fuzzy": "auto", "*": False}.get(str(kind), kind)
        options = {"formula": formula, "backend": backend, "operators": kind == "*", "fuzzy": fuzzy}
        channel = BM25.from_chunks(chunks[later:], PLAIN, **options)
        for chunk in chunks[:later]:
            channel.add([chunk])
        channel.delete([f"c{number:02}" for number in gone])
    live = [chunk for number, chunk in enumerate(chunks) if number not in gone]
    counted = [chunk for chunk in live if chunk.metadata["even"]] if require else live
    counts = Counter(term for chunk in counted for term in set(PLAIN(chunk.text)))
    text = f"{other} {word}*" if kind == "*" else f"{other} {word}"
    query = Query(text, require=EVEN if require else None)
    if kind == "*":
        expected = sorted((term for term in counts if term.startswith(word)), key=lambda term: (-counts[term], term))
    else:
        edits = edits_allowed(word) if kind == "fuzzy" else int(kind)
        expected = [] if word in counts else _nearest(word, counts, edits)
    reading = channel.reading(channel.index, query, query.original)
    written = f"{word}*" if kind == "*" else word
    assert [list(one.terms) for one in reading.expansions if one.word == written] == [expected] * bool(
        expected or kind == "*"
    )
    if other not in counts or other in expected:
        query = Query(text.removeprefix(f"{other} "), require=query.require)
    fresh = BM25.from_chunks(_folded(counted, expected, "zzz"), PLAIN, formula=formula)
    found = channel.search(query, 99)
    alike = query.text.removesuffix(written) + "zzz" if expected or kind == "*" else query.text
    assert [(hit.id, hit.score) for hit in found] == _scores(fresh, alike)
    for hit in found:
        parts = channel.explain(query, hit.id)
        assert math.fsum(part.contribution for part in parts) == pytest.approx(hit.score, abs=1e-9)
        in_chunk = Counter(PLAIN(hit.text))
        assert all(part.frequency == in_chunk[part.term] for part in parts if part.term != written)
        assert channel.scan(query).scores([hit.id]) == {hit.id: hit.score}
    if not require:
        many = [query.text, "zzz", word, other, f'"{word} {other}"']
        assert channel.search_many(many, 5) == [_scores(channel, one, 5) for one in many]


# What is corrected

TEXTS = (
    "You receive the pump, and the installer installs it.",
    "Die Prüfungen der Ventile und Maschinen sind wichtig, die Installation auch.",
    "The valve receives oil; ERR_2043 needs an installation",
    "Relieve the pressure, and retrieve the universal key of the university",
)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("recieve oil", ["no chunk has 'recieve': 'receive' and 'relieve' were searched"]),
        ("recives ventill pumpp", ["no chunk has 'recives': 'receive' was searched",
                                   "no chunk has 'ventill': 'ventile' was searched",
                                   "no chunk has 'pumpp': 'pump' was searched"]),
        ("receive the valves", []),
        ("deceive RECIEVE recieve2 ERR_2034 re-cieve reCieve pmp nowhere", []),
    ],
)  # fmt: skip
def test_an_unknown_word_stands_for_the_nearest_and_a_note_says_so(query: str, said: list[str]) -> None:
    chunks = _chunks(*TEXTS)
    found = BM25.from_chunks(chunks, fuzzy=True).search(query, 9)
    assert _said(found) == said
    assert [(failure.stage, failure.kind, failure.degrades) for failure in found.errors] == [
        ("bm25", "DidYouMean", False)
    ] * len(said)
    assert {word for hit in found for word in hit.votes[0].terms} <= {*query.split(), "err"}
    plain = BM25.from_chunks(chunks).search(query, 9)
    assert not plain.errors
    assert set(plain.ids) <= set(found.ids) if said else plain == found


def test_a_correction_is_told_by_every_wording_once_and_behind_a_fusion() -> None:
    channel = BM25.from_chunks(_chunks(*TEXTS), fuzzy=True)
    query = Query("recives it", variants=(Variant("recives oil"), Variant("", terms={"recives": 2.0, "oil": 1.0})))
    for one in (channel, fuse({"bm25": channel, "other": BM25.from_chunks(_chunks(*TEXTS), name="other")})):
        (note,) = one.search(query, 9).errors
        assert note.message == "no chunk has 'recives': 'receive' was searched"


def test_a_note_has_the_nearest_of_the_words_that_the_best_hit_has_for_a_term() -> None:
    channel = BM25.from_chunks(_chunks("They received what he receives, and receive it"), fuzzy=True)
    for written, suggested in (("recives", "receives"), ("recieve", "receive"), ("recieved", "received")):
        assert _said(channel.search(written, 9)) == [f"no chunk has {written!r}: {suggested!r} was searched"]


def test_where_no_hit_has_the_words_a_note_has_the_stems() -> None:
    channel = BM25.from_chunks(_chunks(*TEXTS), fuzzy=True)
    found = channel.search(Query("recives", where={"even": None}), 9)
    assert (len(found), _said(found)) == (0, ["no chunk has 'recives': 'receiv' (a stem) was searched"])


def test_what_is_required_or_quoted_is_not_corrected() -> None:
    channel = BM25.from_chunks(_chunks(*TEXTS), fuzzy=True, operators=True)
    for query in ("+recives", '"recives oil"', "oil +recives"):
        found = channel.search(query, 9)
        assert (found.ids, found.errors) == ((), ())
    assert channel.search("+recives~ -oil", 9).ids == ("c00",)


@pytest.mark.parametrize("value", [0, 3, "1", None, 1.0])
def test_other_options_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="fuzzy is true, false"):
        BM25.from_chunks([], fuzzy=value)


# Patterns


@pytest.mark.parametrize(
    ("query", "words", "must", "never", "patterns"),
    [
        ("pump instal*", "pump", [], [], ["instal*"]),
        ("+instal*, -pum*! recieve~ key~2.", ", ! .", ["instal*"], ["pum*"], ["instal*", "recieve~", "key~2"]),
        ("ERR_20* HS-44*", "", [], [], ["ERR_20*", "HS-44*"]),
        ("a* **bold** 2*3 x~ ~5 * ~ a~b key~3", "a **bold** 2*3 x ~5 * ~ a~b key~3", [], [], []),
        ("+e-mail* -a/b* -电池维*", "e-mail", ["e-mail"], ["a/b", "电池维"], []),
        ("\"hot pum*\" 'pum*'", "hot pum* 'pum*'", [], [], []),
    ],
)
def test_patterns_are_words_with_an_operator(
    query: str, words: str, must: list[str], never: list[str], patterns: list[str]
) -> None:
    parsed = Operators.parse(query, ENGLISH)
    assert parsed.text.split() == words.split()
    for found, expected in ((parsed.must, must), (parsed.never, never), (parsed.patterns, patterns)):
        assert [str(one) for one in found] == expected
    assert all(isinstance(one, TermPattern) for one in parsed.patterns)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("instal*", {0, 1, 2}),
        ("installati*", {0, 1, 2}),  # the stem of the English "installation" is that of "installs"
        ("installer*", {0, 2}),
        ("Prüfunge*", {1}),
        ("PRÜFUNGEN*", {1}),
        ("prufung*", {1}),
        ("maschi*", {1}),
        ("Ventile*", {1}),
        ("universit*", {3}),
        ("err-20*", {2}),
        ("ERR20*", {2}),
        ("err_3*", set()),
        ("+instal* pump", {0, 1, 2}),
        ("pump +instal* +valv*", {2}),
        ("valve oil -install*", set()),
        ("pressure pump -instal*", {3}),
        ("pump +nothing*", set()),
        ("pump -nothing*", {0}),
        ("Maschinne~", {1}),
        ("+reciev~ -key", {0, 2}),
        ("valve~1 -err_2044~", set()),
        ("the~", set()),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_what_patterns_find_in_english_and_german(query: str, found: set[int], sealed: bool) -> None:
    channel = BM25.from_chunks(_chunks(*TEXTS) if sealed else [], operators=True)
    if not sealed:
        channel.add(_chunks(*TEXTS))
    assert set(channel.search(query, 9).ids) == {f"c{number:02}" for number in found}


def test_near_words_of_an_operator_count_as_the_word_that_is_there() -> None:
    chunks = _chunks("Herr Meier", "Frau Meyer", "Herr Maier", "Maler")
    channel = BM25.from_chunks(chunks, PLAIN, operators=True)
    assert set(channel.search("Meier~1", 9).ids) == {"c00", "c01", "c02"}
    assert [part.document_frequency for part in channel.explain("Meier~1", "c01")] == [3]
    assert channel.search_many(["Meier~1", "Meier"], 9) == [_scores(channel, "Meier~1"), _scores(channel, "Meier")]


def test_a_prefix_of_many_words_scores_with_the_most_frequent_and_demands_all() -> None:
    count = PREFIXED + 5
    texts = [*(f"key{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(count)), "keyaa"]
    channel = BM25.from_chunks(_chunks(*texts), PLAIN, operators=True)
    found = channel.search("ke*", 999)
    assert (len(found), len(channel.search("ke*", 999).errors)) == (PREFIXED + 1, 1)
    assert _said(found) == ["'ke*' stands for 105 terms of the index: the first 100 were searched"]
    assert (
        len(BM25.from_chunks(_chunks(*(f"{t} oil" for t in texts)), PLAIN, operators=True).search("oil -ke*", 9)) == 0
    )


def test_an_own_analyzer_has_prefixes_of_its_terms() -> None:
    channel = BM25.from_chunks(_chunks("PUMPS run", "pumps rest"), str.split, operators=True, fuzzy=True)
    assert channel.search("PUM*", 9).ids == ("c00",)
    assert channel.search("pumsp", 9).ids == ("c01",)


# Access


def test_no_term_of_a_chunk_that_is_not_permitted_matches_or_is_suggested() -> None:
    chunks = _chunks("the pump receives oil", "the secret merger of receivables", "recieve a merger")
    rights = {"$not": {"even": False}}
    alone = BM25.from_chunks([chunks[0]], fuzzy=True, operators=True)
    channel = BM25.from_chunks(chunks[:2], fuzzy=True, operators=True)
    for query in ("mergre", "mergr*", "merg*", "recievable", "receiva*", "pump -merg*", "secert~", "recives"):
        found = channel.search(Query(query, require=rights), 9)
        assert (found.ids, found.errors) == (alone.search(query, 9).ids, alone.search(query, 9).errors)
        assert "merger" not in repr(found)
        assert "secret" not in repr(found)
    assert _said(channel.search("mergre", 9)) == ["no chunk has 'mergre': 'merger' was searched"]
    # A word that only others' chunks have is unknown.
    channel.add([Chunk("z", "recieve", metadata={"even": False})])
    said = ["no chunk has 'recieve': 'receives' was searched"]
    assert _said(channel.search(Query("recieve", require=rights), 9)) == said
    assert not channel.search("recieve", 9).errors


def test_a_knowledge_base_corrects_over_its_log_and_its_segments(tmp_path: Path) -> None:
    with KnowledgeBase.create("kb", root=tmp_path, analyzer=Analyzer("en")) as base:
        base.add(_chunks(*TEXTS[:2]))
        base.compact()
        base.add(_chunks("", "", *TEXTS[2:])[2:])
        fresh = BM25.from_chunks(_chunks(*TEXTS), ENGLISH, fuzzy=True, operators=True)
        for query in ("recieve oil", "instal* +valv*", "retreive~ univers*"):
            channel = base.bm25(fuzzy=True, operators=True)
            assert _scores(channel, query) == _scores(fresh, query)
            assert _said(channel.search(query, 9)) == _said(fresh.search(query, 9))
