"""What a model reads of the hits: no text twice, headers once, within the budget (CAPABILITIES B and E)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.documents import Document, Part, split_families
from voicevault_retrievers.structure import OverBudget, ParentExpansion
from voicevault_retrievers.structure.packing import CharacterSpan, Text, together

BOOK = "One pump. Two valves. Three filters. Four alarms. Five doors. Six lamps."
HEADER = "State v. Smith, 2001"


def part(name: str, text: str, parent: str | None = None, **metadata: Any) -> Hit:
    """A hit whose chunk is a part of the book."""
    start = BOOK.index(text)
    place = {"source_file": "book.pdf", "page_number": 1, "start": start, "end": start + len(text)}
    return Hit(Chunk(name, text, parent, {**place, **metadata}))


def whole(name: str, text: str, **metadata: Any) -> Chunk:
    return part(name, text, **metadata).chunk


def expanded(
    hits: Sequence[Hit], parents: Mapping[str, Chunk] | None = None, query: Query | None = None, **options: Any
) -> Ranking:
    return ParentExpansion(parents or {}, **options).refine(query or Query("q"), Ranking(tuple(hits)))


def read(ranking: Ranking) -> list[tuple[str, str]]:
    return [(hit.id, hit.text) for hit in ranking]


def over(ranking: Ranking) -> tuple[str, ...]:
    return next((note.ids for note in ranking.errors if isinstance(note, OverBudget)), ())


# Merging


def test_chunks_without_a_parent_that_adjoin_or_overlap_become_one() -> None:
    found = expanded([
        part("c", "Three filters. Four alarms."), part("f", "Six lamps."), part("d", "Four alarms. Five doors."),
        part("b", "Two valves."),
    ])  # fmt: skip
    # "d" closes the gap between "c" and "f", and "b" comes before: all is one text, for the best of them.
    assert read(found) == [("c", "Two valves.\nThree filters. Four alarms. Five doors.\nSix lamps.")]
    assert found.hits[0].chunk == part("c", "Three filters. Four alarms.").chunk


def test_texts_far_from_one_another_stay_apart() -> None:
    hits = [part("a", "One pump."), part("c", "Three filters.")]
    assert expanded(hits) == Ranking(tuple(hits))


@pytest.mark.parametrize(
    "other",
    [{"page_number": 2}, {"section": "S"}, {"source_file": "b.pdf"}, {"start": None}, {"end": 9}, {"start": True}],
)
def test_only_one_page_and_section_of_one_file_is_a_place(other: dict[str, Any]) -> None:
    hits = [part("a", "One pump."), part("b", "Two valves.", **other)]
    assert expanded(hits) == Ranking(tuple(hits))


def test_what_follows_is_told_by_the_chunks_index_where_there_is_one() -> None:
    far = {"start": 50, "end": 50 + len("Two valves.")}
    following = expanded([part("a", "One pump.", chunk_index=3), part("b", "Two valves.", chunk_index=4, **far)])
    assert read(following) == [("a", "One pump.\n\nTwo valves.")]
    for index in (3, 5, None):
        hits = [part("a", "One pump.", chunk_index=3), part("b", "Two valves.", chunk_index=index)]
        assert len(expanded(hits)) == 2


def test_places_that_the_texts_belie_are_none() -> None:
    hits = [part("a", "One pump. Two valves."), Hit(Chunk("b", "Other text altogether", None, {
        "source_file": "book.pdf", "page_number": 1, "start": 10}))]  # fmt: skip
    assert expanded(hits) == Ranking(tuple(hits))


def test_langchains_places_are_read_too() -> None:
    hits = [
        Hit(Chunk(name, text, None, {"source": "a.pdf", "page": 0, "start_index": BOOK.index(text)}))
        for name, text in [("a", "One pump. Two valves."), ("b", "valves. Three filters.")]
    ]
    assert read(expanded(hits)) == [("a", "One pump. Two valves. Three filters.")]


def test_parents_that_overlap_become_one_and_those_that_adjoin_do_not() -> None:
    parents = {
        "p": whole("p", "One pump. Two valves. Three filters."),
        "q": whole("q", "Three filters. Four alarms."),
        "r": whole("r", "Five doors. Six lamps."),
    }
    hits = [part("d", "Four alarms.", "q"), part("f", "Six lamps.", "r"), part("a", "One pump.", "p")]
    assert read(expanded(hits, parents)) == [
        ("d", "One pump. Two valves. Three filters. Four alarms."), ("f", "Five doors. Six lamps."),
    ]  # fmt: skip
    apart = expanded(hits, parents, merge=False)
    assert [text for _, text in read(apart)] == [parents[name].text for name in "qrp"]


def test_a_chunk_within_a_parent_that_is_shown_comes_once() -> None:
    parents = {"p": whole("p", "One pump. Two valves. Three filters.")}
    alone, child = part("alone", "Two valves."), part("a", "One pump.", "p")
    assert read(expanded([child, alone], parents)) == [("a", parents["p"].text)]
    assert read(expanded([alone, child], parents)) == [("alone", parents["p"].text)]


def test_children_of_a_parent_that_does_not_fit_or_is_lost_are_joined_where_they_are_neighbours() -> None:
    hits = [part("b", "Two valves.", "p"), part("f", "Six lamps.", "p"), part("a", "One pump.", "p")]
    joined = [("b", "One pump.\nTwo valves."), ("f", "Six lamps.")]
    assert read(expanded(hits, {"p": whole("p", BOOK)}, max_chars=len(BOOK) - 1)) == joined
    lost = expanded(hits)
    assert read(lost) == joined
    assert lost.errors[0].message == "1 of 1 parents are not in the store"


def test_a_text_that_grows_counts_once() -> None:
    hits = [part("b", "Two valves."), part("c", "Three filters."), part("f", "Six lamps.")]
    room = len("Two valves.\nThree filters.") + len("Six lamps.")
    assert read(expanded(hits, max_chars=room)) == [("b", "Two valves.\nThree filters."), ("f", "Six lamps.")]
    assert over(expanded(hits, max_chars=room - 1)) == ("f",)


def test_knowledge_bases_are_kept_apart() -> None:
    hits = [
        Hit(Chunk(name, text, None, part(name, text).chunk.metadata, kb))
        for name, text, kb in [("a", "One pump.", "one"), ("b", "Two valves.", "two")]
    ]
    assert expanded(hits) == Ranking(tuple(hits))


LETTERS = "".join(chr(0x4E00 + at) for at in range(60))
"""A document in which no character comes twice."""

SPANS = st.lists(st.tuples(st.integers(0, 59), st.integers(1, 20)), min_size=1, max_size=8)


@given(SPANS, st.integers(1, 80))
def test_no_character_comes_twice_and_none_is_lost(spans: list[tuple[int, int]], room: int) -> None:
    hits = [
        Hit(Chunk(f"c{at}", LETTERS[start : start + size], None, {"source_file": "b", "start": start}))
        for at, (start, size) in enumerate(spans)
    ]
    found = expanded(hits)
    characters = "".join(hit.text for hit in found).replace("\n", "")
    assert sorted(characters) == sorted({character for hit in hits for character in hit.text})
    assert list(found.ids) == [hit.id for hit in hits if hit.id in found.ids]
    bounded = expanded(hits, max_chars=room)
    assert sum(len(hit.text) for hit in bounded) <= room
    assert [hit.id for hit in bounded if hit.over_budget] == [name for name in bounded.ids if name in over(bounded)]


def test_texts_that_overlap_are_joined_whichever_comes_first() -> None:
    one, other = Text.of("abcd", CharacterSpan("d", 0, 4, "1")), Text.of("cdef", CharacterSpan("d", 2, 6, "2"))
    for joined in (together(one, other), together(other, one)):
        assert joined is not None
        assert (joined.body, joined.span) == ("abcdef", CharacterSpan("d", 0, 6, "1"))
    inner = together(Text.of("bc", CharacterSpan("d", 1, 3, "2", "3")), one)
    assert inner is not None
    assert (inner.body, inner.span) == ("abcd", CharacterSpan("d", 0, 4, "1"))


# Headers


PARENTS = {
    "p": Chunk("p", "The whole of one.", metadata={"court": "high"}),
    "h": Chunk("h", HEADER, metadata={"court": "high"}),
    "h2": Chunk("h2", "Doe v. Roe, 1999", metadata={"court": "low"}),
}
HITS = [
    Hit(Chunk("a", "text a", "p", {"header_id": "h"})),
    Hit(Chunk("b", "text b", None, {"header_id": "h2"})),
    Hit(Chunk("c", "text c", None, {"header_id": "h"})),
    Hit(Chunk("d", "text d")),
]


class Counted(dict[str, Chunk]):
    """A store that says what it was asked for."""

    def __init__(self, chunks: Mapping[str, Chunk]) -> None:
        super().__init__(chunks)
        self.asked: list[list[str]] = []

    def fetch(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        self.asked.append(list(ids))
        return {name: self[name] for name in ids if name in self}


def test_a_header_stands_once_above_the_first_text_of_its_document() -> None:
    store = Counted(PARENTS)
    found = expanded(HITS, store, header_key="header_id")
    assert read(found) == [
        ("a", f"{HEADER}\n\nThe whole of one."), ("b", "Doe v. Roe, 1999\n\ntext b"), ("c", "text c"), ("d", "text d"),
    ]  # fmt: skip
    assert store.asked == [["p", "h", "h2"]]
    assert found.errors == ()
    assert [hit.text for hit in expanded(HITS, store)] == ["The whole of one.", "text b", "text c", "text d"]


def test_a_header_that_is_missing_degrades_and_one_that_is_not_permitted_is_not_told_of() -> None:
    lost = expanded(HITS, {"p": PARENTS["p"], "h": PARENTS["h"]}, header_key="header_id")
    assert [error.message for error in lost.errors] == ["1 of 2 headers are not in the store"]
    assert lost.errors[0].degrades
    secret = expanded(HITS, PARENTS, Query("q", require={"court": "low"}), header_key="header_id")
    assert [text for _, text in read(secret)] == ["text a", "Doe v. Roe, 1999\n\ntext b", "text c", "text d"]
    assert secret.errors == ()


@pytest.mark.parametrize(
    ("room", "expected", "left_out"),
    [
        # header 20, blank line 2, parent 17, own texts 6 each
        (20 + 2 + 17, [f"{HEADER}\n\nThe whole of one.", "", ""], "cd"),
        (20 + 2 + 17 - 1, [f"{HEADER}\n\ntext a", "text c", ""], "d"),
        (20 + 2 + 6 - 1, ["text a", "text c", "text d"], ""),
        (6, ["text a", "", ""], "cd"),
        (5, ["text", "", ""], "acd"),
    ],
)
def test_a_header_counts_and_gives_way_to_the_text(room: int, expected: list[str], left_out: str) -> None:
    found = expanded([hit for hit in HITS if hit.id != "b"], PARENTS, header_key="header_id", max_chars=room)
    assert [text for _, text in read(found)] == expected
    assert over(found) == tuple(left_out)


def test_a_header_that_was_left_out_comes_with_the_next_that_has_room() -> None:
    hits = [Hit(Chunk("long", "x" * 50, None, {"header_id": "h"})), HITS[2]]
    found = expanded(hits, PARENTS, header_key="header_id", max_chars=50 + 20)
    assert [text for _, text in read(found)] == ["x" * 50, "text c"]
    assert [text for _, text in read(expanded(hits[::-1], PARENTS, header_key="header_id", max_chars=28))] == [
        f"{HEADER}\n\ntext c", "",
    ]  # fmt: skip


# The budget


def test_the_first_is_cut_at_a_sentences_end_and_what_is_left_out_is_named() -> None:
    hits = [part("all", BOOK, "p"), Hit(Chunk("b", "text b")), Hit(Chunk("c", "x" * 99))]
    found = expanded(hits, {"p": Chunk("p", BOOK * 3)}, max_chars=50)
    assert read(found)[0] == ("all", "One pump. Two valves. Three filters. Four alarms.")
    assert over(found) == ("all", "b", "c")
    assert not found.errors[0].degrades
    with_header = [Hit(Chunk("a", BOOK, None, {"header_id": "h"}))]
    cut = expanded(with_header, PARENTS, header_key="header_id", max_chars=20 + 2 + 9)
    assert read(cut) == [("a", f"{HEADER}\n\nOne pump.")]
    assert read(expanded(with_header, PARENTS, header_key="header_id", max_chars=9)) == [("a", "One pump.")]


def test_a_tokenizer_counts() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    letters = {bytes([at]): at for at in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"\S+|\s+", mergeable_ranks=letters, special_tokens={})

    def tokens(text: str) -> int:
        return len(encoding.encode(text))

    limit = tokens(PARENTS["p"].text) + tokens("text b")
    found = expanded(HITS, PARENTS, max_tokens=limit, count_tokens=tokens)
    assert [hit.text for hit in found][:2] == ["The whole of one.", "text b"]
    assert over(found) == ("c", "d")
    lowered = expanded(HITS, PARENTS, Query("q", max_context_tokens=limit - 1), max_tokens=limit, count_tokens=tokens)
    assert [hit.text for hit in lowered][:2] == ["The whole of one.", ""]
    assert over(lowered) == ("b", "c", "d")


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40), st.booleans()), max_size=10),
    st.integers(1, 150),
    st.booleans(),
)
def test_what_is_read_stays_within_the_budget(drawn: list[tuple[int, int, bool]], room: int, headed: bool) -> None:
    parents = {f"p{at}": Chunk(f"p{at}", "P" * (17 * at + 1)) for at in range(5)} | {"h": Chunk("h", "H" * 7)}
    hits = [
        Hit(Chunk(f"c{at}", "c" * size, f"p{above}", {"header_id": "h"} if named else {}))
        for at, (above, size, named) in enumerate(drawn)
    ]
    found = expanded(hits, parents, max_chars=room, header_key="header_id" if headed else None)
    shown = [hit for hit in found if hit.text]
    assert sum(len(hit.text) for hit in shown) <= room
    assert [hit.id for hit in found if hit.over_budget] == [name for name in found.ids if name in over(found)]
    assert sum("H" in hit.text for hit in shown) <= 1
    assert [hit.id for hit in found] == [hit.id for hit in hits if hit.id in found.ids]
    assert len({hit.text for hit in shown if "P" in hit.text}) == sum("P" in hit.text for hit in shown)


def test_a_document_as_it_is_split_and_a_context_of_it() -> None:
    pages = tuple(Part(" ".join(f"Page {at} tells of pump {n}." for n in range(200)), at) for at in range(1, 6))
    made = split_families(Document("pump.pdf", pages))
    hits = [Hit(child) for child in made.chunks[::3]]
    found = expanded(hits, {parent.id: parent for parent in made.parents}, max_chars=12_000)
    context = ContextBuilder(max_chars=12_000).build(found)
    assert len(context.text) <= 12_000
    shown = [citation.chunk_id for citation in context.citations]
    assert shown == list(dict.fromkeys(shown))
    assert context.citations[0].page_number == found.hits[0].chunk.metadata["page_number"] == 1
    assert (context.citations[0].start, context.citations[0].end) == (0, len(made.parents[0].text))
    assert set(over(found)) <= set(context.over_budget)
