"""Documents cut into parents and children, read from files, kept and found again (CAPABILITIES B and E)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents import Document, Part, files, load, read, recipe, split, split_families
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import Changes, KnowledgeBase
from voicevault_retrievers.structure import ParentExpansion
from voicevault_retrievers.text.sentences import beginning, pieces

SENTENCE = "Pump {} is rated for hot water. "


def text(first: int, count: int) -> str:
    return "".join(SENTENCE.format(at) for at in range(first, first + count)).strip()


def pages(*counts: int, section: str | None = None) -> Document:
    """A document of pages with so many sentences, none of which comes twice."""
    starts = [sum(counts[:at]) for at in range(len(counts))]
    parts = (
        Part(text(first, count), at, section) for at, (first, count) in enumerate(zip(starts, counts, strict=True), 1)
    )
    return Document("pump.pdf", tuple(parts))


BOOK = pages(100, 30, 90, 2, 200, 15)
"""Sentences of 32 to 34 characters: pages of about 3,300, 1,000, 3,000, 70, 6,800 and 500."""

WORDS = st.lists(
    st.sampled_from(["pump", "Seal.", "a", "No. 5", "\n", "\n\n", "zu", "x" * 70, "。", "  "]), max_size=60
)
DOCUMENTS = st.lists(st.tuples(WORDS, st.integers(1, 3)), min_size=1, max_size=6).map(
    lambda parts: Document("a.pdf", tuple(Part(" ".join(words), page, "s" * (page % 2)) for words, page in parts))
)


def test_children_and_parents_have_the_sizes_and_metadata_that_are_said() -> None:
    made = split_families(BOOK)
    assert all(len(child.text) <= 2000 for child in made.chunks)
    assert all(len(parent.text) <= 8000 for parent in made.parents)
    assert all(len(parent.text) >= 8000 // 3 for parent in made.parents)
    assert {child.metadata["chunk_type"] for child in made.chunks} == {"child"}
    assert {parent.metadata["chunk_type"] for parent in made.parents} == {"parent"}
    assert [child.metadata["chunk_index"] for child in made.chunks] == list(range(len(made.chunks)))
    assert {child.metadata["chunks_in_file"] for child in made.chunks} == {len(made.chunks)}
    counted = {parent.id: parent.metadata["children"] for parent in made.parents}
    assert counted == {name: sum(child.parent_id == name for child in made.chunks) for name in counted}


def test_children_end_with_sentences_and_stay_on_their_page() -> None:
    parts = {part.page_number: part.text for part in BOOK.parts}
    for child in split_families(BOOK).chunks:
        page = parts[child.metadata["page_number"]]
        assert page[child.metadata["start"] : child.metadata["end"]] == child.text
        assert child.text.endswith("water.")
        assert child.text.startswith("Pump")


def test_a_parent_ends_with_a_page_and_says_which_are_its_own() -> None:
    made = split_families(BOOK)
    for parent in made.parents:
        own = [child for child in made.chunks if child.parent_id == parent.id]
        assert parent.metadata["pages"] == sorted({child.metadata["page_number"] for child in own})
        assert all(child.text in parent.text for child in own)
        assert len(parent.text.split("\n\n")) == len(parent.metadata["pages"])
    # The first three pages have about 7,300 characters, and so have the others.
    assert [parent.metadata["pages"] for parent in made.parents] == [[1, 2, 3], [4, 5, 6]]


def test_what_is_of_several_pages_passes_no_filter_for_one_of_them() -> None:
    over, within = split_families(BOOK).parents[0], split_families(pages(300)).parents[0]
    assert over.metadata.keys() == {"source_file", "file_id", "pages", "chunk_type", "children"}
    assert within.metadata["page_number"] == 1
    assert within.text == pages(300).parts[0].text[within.metadata["start"] : within.metadata["end"]]
    named = split_families(pages(50, 50, section="Limits")).parents[0]
    assert (named.metadata["section"], named.metadata["sections"]) == ("Limits", ["Limits"])
    assert "page_number" not in named.metadata


def test_a_child_that_is_all_of_its_parent_stands_alone() -> None:
    made = split_families(pages(20))
    (alone,) = made.chunks
    assert (made.parents, alone.parent_id, alone.metadata["chunk_type"]) == ((), None, "standalone")
    assert "chunk_type" not in split(pages(20))[0].metadata
    assert split_families(Document("a.txt", ())).chunks == ()


def test_a_chunk_that_stands_alone_is_searched(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())
    family, (alone,) = split_families(BOOK), split_families(pages(20)).chunks
    plain = Chunk("plain", "a drawing of the pump house")  # with no chunk_type, as ever
    kb.add([*family.chunks, alone, plain], parents=family.parents)
    assert {alone.id, "plain"} <= set(kb.bm25().search("pump drawing", 99).ids)
    assert {alone.id, "plain"} <= set(kb.dense().search("pump drawing", 99).ids)
    found = (kb.bm25() >> ParentExpansion(kb)).search("drawing house")
    assert [(hit.id, hit.text) for hit in found] == [("plain", plain.text)]


def test_equal_pages_have_their_own_ids() -> None:
    twice = Document("a.txt", (Part(text(0, 80)), Part(text(0, 80))))
    made = split_families(twice, parents=3000, children=1000)
    assert len({chunk.id for chunk in (*made.chunks, *made.parents)}) == len(made.chunks) + len(made.parents)


def test_ids_stay_where_the_text_does() -> None:
    before = split_families(BOOK, parents=3500, children=1000)
    edited = Document("pump.pdf", (Part("New. " + BOOK.parts[0].text, 1), *BOOK.parts[1:]))
    after = split_families(edited, parents=3500, children=1000)
    later = {child.id for child in before.chunks if child.metadata["page_number"] > 1}
    assert later <= {child.id for child in after.chunks}
    assert {parent.id for parent in before.parents if min(parent.metadata["pages"]) > 2} <= {
        parent.id for parent in after.parents
    }
    appended = Document("pump.pdf", (*BOOK.parts, Part(text(900, 300), 7)))
    assert {child.id for child in split_families(BOOK).chunks} <= {
        child.id for child in split_families(appended).chunks
    }


@given(DOCUMENTS, st.integers(40, 90), st.integers(90, 200))
def test_nothing_but_white_space_is_lost(document: Document, children: int, parents: int) -> None:
    made = split_families(document, parents=parents, children=children)
    assert "".join("".join(child.text for child in made.chunks).split()) == "".join(
        "".join(part.text for part in document.parts).split()
    )
    assert all(0 < len(child.text) <= children and child.text == child.text.strip() for child in made.chunks)
    kept = {parent.id: parent for parent in made.parents}
    assert len(kept) == len(made.parents) == len({child.parent_id for child in made.chunks} - {None})
    assert all(len(parent.text) <= parents and parent.metadata["children"] > 1 for parent in made.parents)
    assert all(child.text in kept[child.parent_id].text for child in made.chunks if child.parent_id)
    assert len({child.id for child in made.chunks}) == len(made.chunks)


@pytest.mark.parametrize(
    ("given", "size", "expected"),
    [
        ("One two. Three four five.", 16, ["One two.", "Three four five."]),
        ("One two.\n\nThree. Four.", 16, ["One two.", "Three. Four."]),
        ("See No. 5 and J. Doe v. Roe here. End of it.", 40, ["See No. 5 and J. Doe v. Roe here.", "End of it."]),
        ('He said: "Stop!" Then he left it.', 20, ['He said: "Stop!"', "Then he left it."]),
        ("1. Foo bar baz\n2. Foo bar baz", 20, ["1. Foo bar baz", "2. Foo bar baz"]),
        ("一二三。四五六。七", 5, ["一二三。", "四五六。七"]),
        ("x" * 25, 10, ["x" * 10, "x" * 7, "x" * 8]),
        ("a 3.14159265 b c", 9, ["a 3.1415", "9265 b c"]),
        ("  ", 5, []),
        ("", 5, []),
    ],
)
def test_where_a_text_is_cut(given: str, size: int, expected: list[str]) -> None:
    found = list(pieces(given, size))
    assert [piece for _, piece in found] == expected
    assert [given[start : start + len(piece)] for start, piece in found] == expected


def test_a_long_text_without_any_border_is_read_at_once() -> None:
    assert sum(len(piece) for _, piece in pieces("x" * 1_000_000, 2000)) == 1_000_000


@pytest.mark.parametrize(
    ("room", "expected"),
    [(99, "One two. Three 4.5 five."), (23, "One two."), (8, "One two."), (7, "One"), (2, "On"), (0, "")],
)
def test_the_longest_beginning_that_fits(room: int, expected: str) -> None:
    assert beginning("One two. Three 4.5 five.", lambda part: len(part) <= room) == expected


@pytest.mark.program
def test_files_are_read_with_parents_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"# One\n{text(0, 60)}\n\n# Two\n{text(60, 60)}")
    (tmp_path / "b.md").write_text("short")
    with_parents, plain = read(tmp_path, parents=3000, children=1000), read(tmp_path)
    document = load(tmp_path / "a.md")
    expected = split_families(document, parents=3000, children=1000)
    assert with_parents.chunks[: len(expected.chunks)] == expected.chunks
    assert with_parents.parents == expected.parents
    assert (plain.parents, plain.chunks[:1]) == ((), tuple(split(document)[:1]))
    (first, _), _ = files(tmp_path)
    assert first.split(parents=3000, children=1000) == expected
    assert list(first.split().chunks) == first.chunks()
    assert recipe() == recipe(max_chars=900) != recipe(parents=8000)
    assert len({recipe(parents=8000), recipe(parents=4000), recipe(parents=8000, children=900)}) == 3


def test_a_knowledge_base_reads_anew_and_keeps_what_stayed(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path)
    before = split_families(BOOK)
    kb.add(before.chunks, parents=before.parents)
    assert len(kb) == len(before.chunks)
    found = (kb.bm25() >> ParentExpansion(kb)).search("pump 17 rated hot water", 2)
    assert (
        found.hits[0].text == kb.parents([str(found.hits[0].chunk.parent_id)])[found.hits[0].chunk.parent_id or ""].text
    )
    assert found.hits[0].chunk.metadata["page_number"] == 1
    assert len({hit.text for hit in found}) == len(found)
    assert kb.add(before.chunks, parents=before.parents) == Changes(unchanged=len(before.chunks))
    after = split_families(pages(100, 30, 90, 2, 200, 15, 40))
    changes = kb.replace(after.chunks, parents=after.parents)
    assert changes.removed == 0
    assert changes.added == len(after.chunks) - len(before.chunks)
    assert kb.parents(parent.id for parent in after.parents).keys() == {parent.id for parent in after.parents}


@pytest.mark.parametrize(("parents", "children"), [(1000, 2000), (0, 0), (2000, 0), (True, 1)])
def test_wrong_sizes_are_refused(parents: int, children: int) -> None:
    with pytest.raises(ConfigError, match=r"parents|children"):
        split_families(BOOK, parents=parents, children=children)
