"""Parent expansion: what a model reads of the chunks that were found (CAPABILITIES B and E)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import GivenChannel
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError, ContextExpansionError
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.structure import ParentExpansion, parent_store
from voicevault_retrievers.structure.parent_links import Kinship

PARENTS = {
    "p1": Chunk("p1", "one: a, b and c", metadata={"team": "red"}),
    "p2": Chunk("p2", "two: d", metadata={"team": "blue"}),
}
FOUND = Ranking(
    tuple(
        Hit(Chunk(chunk_id, f"text {chunk_id}", parent_id), score)
        for chunk_id, parent_id, score in [
            ("b", "p1", 0.9), ("alone", None, 0.8), ("d", "p2", 0.7), ("a", "p1", 0.6), ("x", "lost", 0.5),
            ("y", "lost", 0.4),
        ]
    )
)  # fmt: skip


class Store:
    """A store that counts how often it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.error = error

    def fetch(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        self.asked.append(tuple(ids))
        if self.error is not None:
            raise self.error
        return {parent_id: PARENTS[parent_id] for parent_id in ids if parent_id in PARENTS}


class AsyncStore(Store):
    async def afetch(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        return {parent_id: chunk for parent_id, chunk in self.fetch(ids).items()}


def read(ranking: Ranking) -> list[tuple[str, float | None, str]]:
    return [(hit.id, hit.score, hit.text) for hit in ranking]


EXPANDED = [
    ("b", 0.9, "one: a, b and c"),
    ("alone", 0.8, "text alone"),
    ("d", 0.7, "two: d"),
    ("x", 0.5, "text x"),
    ("y", 0.4, "text y"),
]


def test_each_parent_comes_once_and_hits_keep_chunk_score_and_order() -> None:
    store = Store()
    found = ParentExpansion(store).refine(Query("q"), FOUND)
    assert read(found) == EXPANDED
    kept = [hit.chunk for hit in FOUND if hit.id != "a"]
    assert [(hit.id, hit.chunk.text, hit.chunk.parent_id) for hit in found] == [
        (chunk.id, chunk.text, chunk.parent_id) for chunk in kept
    ]
    assert [hit.context for hit in found][1] is None
    assert store.asked == [("p1", "p2", "lost")]


def test_a_parent_brings_its_metadata_and_the_child_keeps_what_it_alone_has() -> None:
    child = {"source_file": "part", "page_number": 3, "parent_id": "p1", "header": "h", "kept": 1, "_id": "own"}
    brought = {
        "source_file": "whole",
        "page_number": None,
        "parent_id": "s",
        "header": "H",
        "title": "T",
        "_id": "parent's",
    }
    store = {
        "p1": Chunk("p1", "one: a", "s", brought),
        "s": Chunk("s", "one: a, two", metadata={"section": "S", "title": "all"}),
    }
    hits = Ranking((Hit(Chunk("a", "a", "p1", child), 1.0),))
    read = {**child, "source_file": "whole", "title": "T"}
    (found,) = ParentExpansion(store, header_key="header").refine(Query("q"), hits)
    assert (found.id, found.chunk.text, found.chunk.parent_id, found.chunk.metadata) == ("a", "a", "p1", read)
    assert found.access_metadata == child
    (highest,) = ParentExpansion(store, levels=None).refine(Query("q"), hits)
    assert highest.chunk.metadata == {**child, "section": "S", "title": "all"}
    (own,) = ParentExpansion(store, max_chars=3).refine(Query("q"), hits)
    assert own.chunk.metadata == child
    (cited,) = ContextBuilder().build([found]).citations
    assert (cited.chunk_id, cited.source_file, cited.page_number) == ("a", "whole", 3)


def test_a_missing_parent_degrades_and_its_children_stay() -> None:
    (failure,) = ParentExpansion(PARENTS).refine(Query("q"), FOUND).errors
    assert (failure.kind, failure.message) == ("ContextExpansionError", "1 of 3 parents are not in the store")
    assert failure.degrades
    empty = ParentExpansion({"p1": Chunk("p1", "")}).refine(Query("q"), FOUND)
    assert read(empty) == read(FOUND)
    assert "3 of 3" in empty.errors[0].message


@pytest.mark.parametrize("kind", [Store, AsyncStore])
@pytest.mark.parametrize("error", [ConnectionError("no route"), KeyError()])
async def test_a_store_that_fails_leaves_the_ranking_as_it_was(kind: type[Store], error: Exception) -> None:
    channel = GivenChannel(FOUND) >> ParentExpansion(kind(error))
    for found in (channel.search("q"), await channel.asearch("q")):
        assert read(found) == read(FOUND)
        (failure,) = found.errors
        assert isinstance(failure.error, ContextExpansionError)
        assert failure.message == f"parents could not be fetched: {type(error).__name__}"
        assert failure.error.__cause__ is error


@pytest.mark.parametrize("kind", [Store, AsyncStore])
async def test_a_search_counts_parents_and_sync_equals_async(kind: type[Store]) -> None:
    many = Ranking(tuple(Hit(Chunk(f"c{at:02d}", "t", f"p{1 + at // 12}"), 1.0 - at / 100) for at in range(24)))
    store = kind()
    channel = GivenChannel(many) >> ParentExpansion(store)
    found = channel.search("q", 2)
    assert [(hit.id, hit.text) for hit in found] == [("c00", "one: a, b and c"), ("c12", "two: d")]
    assert await channel.asearch("q", 2) == found
    assert channel.search("q", 1) == found.top(1)
    assert store.asked[0] == ("p1",)


async def test_an_async_store_is_awaited() -> None:
    class Awaited(AsyncStore):
        async def afetch(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
            return {"p1": Chunk("p1", "awaited")}

    channel = GivenChannel(FOUND) >> ParentExpansion(Awaited())
    assert (await channel.asearch("q")).hits[0].text == "awaited"
    assert channel.search("q").hits[0].text == "one: a, b and c"


def test_hits_without_parents_ask_no_store() -> None:
    store = Store()
    alone = Ranking((Hit(Chunk("a")),))
    assert ParentExpansion(store).refine(Query("q"), alone) == alone
    assert ParentExpansion(store).refine(Query("q"), Ranking()) == Ranking()
    assert store.asked == []


def test_a_parent_that_is_not_permitted_is_not_shown_and_not_told_of() -> None:
    red = {"team": "red"}
    by_query = ParentExpansion(PARENTS).refine(Query("q", require=red), FOUND)
    by_stage = ParentExpansion(PARENTS, require=red).refine(Query("q"), FOUND)
    assert read(by_query) == read(by_stage) == [("d", 0.7, "text d") if row[0] == "d" else row for row in EXPANDED]
    assert [failure.message for failure in by_query.errors] == ["1 of 2 parents are not in the store"]
    for nothing in (
        ParentExpansion(PARENTS).refine(Query("q", require={}), FOUND),
        ParentExpansion(PARENTS, require={}).refine(Query("q"), FOUND),
        ParentExpansion(PARENTS, require={"team": "blue"}).refine(Query("q", require=red), FOUND),
    ):
        assert read(nothing) == read(FOUND)


def test_the_budget_goes_to_the_parent_if_it_fits_then_to_the_hits_own_text() -> None:
    # p1 takes 15 of the characters, "text alone" 10, p2 6, "text x" and "text y" 6 each
    for limit, texts, over in [
        (15 + 10 + 6 + 6 + 6, ["one: a, b and c", "text alone", "two: d", "text x", "text y"], 0),
        (15 + 10 + 6 + 6, ["one: a, b and c", "text alone", "two: d", "text x", ""], 1),
        (15 - 1, ["text b", "", "two: d", "", "", ""], 4),
        (5, ["text", "", "", "", "", ""], 6),
        (3, ["tex", "", "", "", "", ""], 6),
    ]:
        found = ParentExpansion(PARENTS, max_chars=limit).refine(Query("q"), FOUND)
        assert [hit.text for hit in found] == texts
        notes = [failure for failure in found.errors if not failure.degrades]
        assert [note.message.split(" do ")[0] for note in notes] == ([f"{over} of 6 hits"] if over else [])


def test_a_budget_of_tokens_is_lowered_by_the_query() -> None:
    def words(text: str) -> int:
        return len(text.split())

    stage = ParentExpansion(PARENTS, max_tokens=100, count_tokens=words)
    assert read(stage.refine(Query("q"), FOUND)) == EXPANDED
    lowered = stage.refine(Query("q", max_context_tokens=4), FOUND)
    assert [hit.text for hit in lowered][:3] == ["text b", "text alone", ""]


def test_parents_of_a_knowledge_base(tmp_path: Path) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path)
    kb.add([hit.chunk for hit in FOUND], parents=PARENTS.values())
    found = (kb.bm25() >> ParentExpansion(kb)).search("text b", 3)
    assert found.hits[0].id == "b"
    assert {hit.text for hit in found} >= {"one: a, b and c", "two: d"}
    assert repr(ParentExpansion(kb)).startswith(f"ParentExpansion({kb!r}, max_chars=None")


def test_a_parent_of_another_knowledge_base_is_none() -> None:
    store = {"p1": Chunk("p1", "of one", kb="one")}
    hits = Ranking(tuple(Hit(Chunk(kb, "own", "p1", kb=kb)) for kb in ("one", "two")))
    found = ParentExpansion(store).refine(Query("q"), hits)
    assert [hit.text for hit in found] == ["of one", "own"]
    assert found.errors[0].message == "1 of 2 parents are not in the store"


def test_a_parents_id_may_stand_in_the_metadata() -> None:
    hits = Ranking((Hit(Chunk("a", "own", metadata={"doc_id": "p1"})), Hit(Chunk("b", "own", metadata={"doc_id": 3}))))
    found = ParentExpansion(PARENTS, id_key="doc_id").refine(Query("q"), hits)
    assert [hit.text for hit in found] == ["one: a, b and c", "own"]
    assert ParentExpansion(PARENTS).refine(Query("q"), hits) == hits
    found = ParentExpansion({"3": Chunk("3", "whole")}, id_key="doc_id").refine(Query("q"), hits)
    assert [hit.text for hit in found] == ["own", "whole"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_chars": 0}, {"max_tokens": -1}, {"timeout": 0}, {"require": {"$x": 1}}, {"levels": 0},
        {"min_children_ratio": 1.5}, {"min_children_ratio": -0.1},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    said = "unknown filter operator" if "require" in options else next(iter(options))
    with pytest.raises(ConfigError, match=said):
        ParentExpansion(PARENTS, **options)


@pytest.mark.parametrize("store", [None, "kb", Path("kb"), [1]])
def test_what_is_no_store_is_refused(store: Any) -> None:
    with pytest.raises(ConfigError, match="knowledge base"):
        parent_store(store)


def test_rights_stay_as_they_were_given() -> None:
    tenants = ["a"]
    stage = ParentExpansion({"p": Chunk("p", "secret", metadata={"tenant": "b"})}, require={"tenant": {"$in": tenants}})
    tenants.append("b")
    (hit,) = stage.refine(Query("q"), Ranking((Hit(Chunk("c", "own", parent_id="p")),)))
    assert hit.text == "own"


def test_a_parent_that_is_a_hit_itself_is_shown_once() -> None:
    stage = ParentExpansion({"p": Chunk("p", "whole")})
    child, parent = Hit(Chunk("c", "own", parent_id="p")), Hit(Chunk("p", "whole"))
    assert stage.refine(Query("q"), Ranking((child, parent))).ids == ("c",)
    assert stage.refine(Query("q"), Ranking((parent, child))).ids == ("p",)


# Parents of parents: section "s" has parts "p" (a, b) and "q" (c); the book has the section, and nobody has the book.
TREE = {
    "p": Chunk("p", "a b", "s", {"team": "any"}),
    "q": Chunk("q", "c d", "s", {"team": "any"}),
    "s": Chunk("s", "a b c d", "book", {"team": "red"}),
}
LEAVES = Ranking(tuple(Hit(Chunk(name, name, up)) for name, up in [("a", "p"), ("c", "q"), ("b", "p"), ("p", "s")]))


class Counts(Kinship):
    """Each parent has two children, but for the book."""

    def children_of(self, parent: Chunk) -> int:
        return 0 if parent.id == "book" else 2


def texts(ranking: Ranking) -> dict[str, str]:
    return {hit.id: hit.text for hit in ranking}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"levels": 1}, {"a": "a b", "c": "c d"}),
        ({"levels": 2}, {"a": "a b c d"}),
        ({"levels": None}, {"a": "a b c d"}),
        ({"levels": None, "max_chars": 6}, {"a": "a b", "c": "c d"}),
        ({"levels": None, "max_chars": 4}, {"a": "a b", "c": "c"}),
        ({"levels": None, "require": {"team": "any"}}, {"a": "a b", "c": "c d"}),
    ],
)
def test_the_highest_parent_that_fits_is_taken(options: dict[str, Any], expected: dict[str, str]) -> None:
    assert texts(ParentExpansion(TREE, **options).refine(Query("q"), LEAVES)) == expected


async def test_a_parent_that_is_not_permitted_links_nothing_to_what_is_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, chunk in TREE.items():
        monkeypatch.setitem(PARENTS, name, chunk)
    monkeypatch.setitem(PARENTS, "q", Chunk("q", "c d", "s", {"team": "secret"}))
    monkeypatch.setitem(PARENTS, "s", Chunk("s", "a b c d", "book", {"team": "any", "children": 2}))
    leaves = Ranking(LEAVES.hits[:2])
    permitted = Query("q", require={"team": "any"})
    for options, above in ({}, "a b c d"), ({"min_children_ratio": 1.0}, "a b"):
        stage = ParentExpansion(AsyncStore(), levels=None, **options)
        for found in stage.refine(permitted, leaves), await stage.arefine(permitted, leaves):
            assert texts(found) == {"a": above, "c": "c"}
            assert [failure.message for failure in found.errors] == ["1 of 3 parents are not in the store"]
    without = ParentExpansion({"p": TREE["p"]}, header_key="head", require={"team": "any"})
    headed = Ranking((Hit(Chunk("a", "a", "p", {"head": "q"})),))
    assert [failure.message for failure in without.refine(Query("q"), headed).errors] == [
        "1 of 1 headers are not in the store"
    ]
    kept = ParentExpansion(Store(), header_key="head", require={"team": "any"})
    assert not kept.refine(Query("q"), headed).errors


async def test_each_level_is_asked_for_once_and_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, chunk in TREE.items():
        monkeypatch.setitem(PARENTS, name, chunk)
    store = AsyncStore()
    found = ParentExpansion(store, levels=None).refine(Query("q"), LEAVES)
    assert store.asked == [("p", "q", "s"), ("book",)]
    (failure,) = found.errors
    assert failure.message == "1 of 4 parents are not in the store"
    assert await ParentExpansion(store, levels=None).arefine(Query("q"), LEAVES) == found


@pytest.mark.parametrize(
    ("found", "ratio", "expected"),
    [
        ("abc", 1.0, {"a": "a b", "c": "c"}),
        ("abcd", 1.0, {"a": "a b c d"}),
        ("ac", 0.5, {"a": "a b c d"}),
        ("a", 0.5, {"a": "a b c d"}),
        ("a", 0.6, {"a": "a"}),
        ("ap", 1.0, {"a": "a", "p": "a b"}),
        ("abp", 1.0, {"a": "a b"}),
        ("pc", 0.6, {"p": "a b", "c": "c"}),
        ("pcd", 0.6, {"p": "a b c d"}),
    ],
)
def test_a_parent_stands_where_enough_of_its_children_were_found(
    found: str, ratio: float, expected: dict[str, str]
) -> None:
    up = {"a": "p", "b": "p", "c": "q", "d": "q", "p": "s"}
    hits = Ranking(tuple(Hit(Chunk(name, "a b" if name == "p" else name, up[name])) for name in found))
    stage = ParentExpansion(TREE, levels=2, min_children_ratio=ratio, kinship=Counts())
    assert texts(stage.refine(Query("q"), hits)) == expected
    plain = ParentExpansion(TREE, min_children_ratio=ratio)
    assert plain.refine(Query("q"), hits) == ParentExpansion(TREE).refine(Query("q"), hits)


def test_a_circle_of_parents_has_an_end() -> None:
    circle = {"p": Chunk("p", "one", "q"), "q": Chunk("q", "two", "p")}
    hits = Ranking((Hit(Chunk("a", "a", "p")),))
    assert texts(ParentExpansion(circle, levels=None).refine(Query("q"), hits)) == {"a": "two"}
    counted = ParentExpansion(circle, levels=None, min_children_ratio=0.5, kinship=Counts())
    assert texts(counted.refine(Query("q"), hits)) == {"a": "two"}
