"""The graph of references: building it, walking it, who may see what, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Awaited, ListChannel
from voicevault_retrievers import RRF, fuse
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Variant, Vote
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    IndexDamagedError,
    SearchNotAvailableError,
    StorageError,
)
from voicevault_retrievers.structure.graph import (
    Edge,
    EmbeddedGraph,
    Entry,
    GraphChannel,
    GraphExpansion,
    Link,
    ModelReferences,
    build_graph,
)
from voicevault_retrievers.structure.graph.walk import Reached, Walk, run

IPC = "indian penal code"
CHUNKS = [
    Chunk("c420", "Section 420. Cheating. See section 415.", metadata={"act": "IPC", "team": "red"}),
    Chunk("c415", 'Section 415. "Cheating" means deceit.', metadata={"act": "Indian Penal Code", "team": "red"}),
    Chunk("c17", "The accused was charged under S. 420 IPC.", metadata={"team": "blue"}),
    Chunk("c0", "Nothing is cited here.", metadata={"team": "red"}),
]


def graph(chunks: Sequence[Chunk] = CHUNKS) -> EmbeddedGraph:
    store = EmbeddedGraph()
    assert build_graph(chunks, store) == len(chunks)
    return store


class Down(EmbeddedGraph):
    """A store whose server is gone."""

    def edges(self, nodes: Sequence[str]) -> list[Edge]:
        raise SearchNotAvailableError("the server is gone")

    find = edges  # type: ignore[assignment]


def scored(ranking: Ranking) -> dict[str, float | None]:
    return {hit.id: hit.score for hit in ranking}


def test_scores_are_decay_to_the_distance_times_the_weights_of_the_path() -> None:
    found = GraphChannel(graph()).search("What is Section 420 of the Indian Penal Code?")
    assert scored(found) == {"c420": 0.5 * 1.0, "c17": 0.5 * 0.5, "c415": 0.5 * 1.0 * 0.5 * 0.5 * 1.0 + 0.0}
    assert [hit.found_by for hit in found] == ["graph"] * 3


def test_a_vote_says_by_which_path() -> None:
    votes = {hit.id: hit.votes[0] for hit in GraphChannel(graph()).search("420 IPC")}
    section = f"section 420 {IPC}"
    assert votes["c17"].via == (section, "cited by", "c17")
    assert votes["c415"].via == (section, "is", "c420", "cites", f"section 415 {IPC}", "is", "c415")
    assert votes["c17"].terms == ("420 IPC",)


def test_paths_of_least_length_are_added() -> None:
    entries = [
        Entry(Chunk("x"), (Link("cites", "section:1:a", 0.5), Link("cites", "section:2:a", 0.25))),
        Entry(Chunk("y"), (Link("is", "section:1:a", 1.0),)),
    ]
    found = GraphChannel(EmbeddedGraph(entries)).search("sections 1 and 2")
    assert scored(found) == {"x": 0.5 * 0.5 + 0.5 * 0.25, "y": 0.5}
    assert found.hits[0].id == "y"
    assert found.hits[1].votes[0].via[0] == "section 1 a"


def test_depth_is_how_many_chunks_a_path_passes() -> None:
    chain = [
        Entry(Chunk(f"c{at}"), (Link("is", f"section:{at}:a"), Link("cites", f"section:{at + 1}:a"))) for at in range(6)
    ]
    for depth in (1, 2, 3):
        found = GraphChannel(EmbeddedGraph(chain), depth=depth, decay=0.5).search("section 0")
        assert scored(found) == {f"c{at}": 0.5 ** (at + 1) for at in range(depth)}


def test_fan_out_follows_the_heaviest_edges() -> None:
    entries = [Entry(Chunk(f"c{at}"), (Link("cites", "section:1:a", 0.1 * at),)) for at in range(1, 6)]
    found = GraphChannel(EmbeddedGraph(entries), fan_out=2).search("section 1")
    assert found.ids == ("c5", "c4")


@pytest.mark.parametrize(
    "text", ["no reference", "section 999", "Section 420 of the Companies Act", "  ", "what does x mean"]
)
def test_what_names_nothing_that_is_here_finds_nothing_and_that_is_no_failure(text: str) -> None:
    assert GraphChannel(graph()).search(text) == Ranking()


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("section 420", 1.0),
        (f"section 420 of the {IPC}", 1.0),
        ("section 420 of the Penal Code", 0.5),
        ("s. 420(1) IPC", 0.5),
    ],
)
def test_a_reference_that_says_less_or_more_begins_with_a_part(text: str, share: float) -> None:
    assert scored(GraphChannel(graph(), depth=1).search(text))["c420"] == 0.5 * share


def test_a_defined_term_is_found_by_the_question_for_it() -> None:
    assert GraphChannel(graph()).search("What does cheating mean?").ids[0] == "c415"


def test_filters_narrow_what_is_found_and_rights_also_what_is_passed_through() -> None:
    channel = GraphChannel(graph())
    assert channel.search(Query("420 IPC", where={"team": "blue"})).ids == ("c17",)
    assert channel.search(Query("420 IPC", require={"team": "blue"})).ids == ("c17",)
    assert channel.search(Query("420 IPC", require={"team": "red"})).ids == ("c420", "c415")
    assert channel.search(Query("420 IPC", where={"act": "Indian Penal Code"})).ids == ("c415",)
    assert channel.search(Query("420 IPC", require={"act": "Indian Penal Code"})).ids == ()
    assert channel.search(Query("420 IPC", require={})).ids == ()


entries = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(
            st.tuples(st.sampled_from(["is", "cites"]), st.integers(0, 5), st.sampled_from([0.25, 0.5, 1.0])),
            max_size=4,
        ),
    ),
    max_size=8,
).map(
    lambda drawn: [
        Entry(Chunk(f"c{at}", metadata={"open": is_open}), tuple(Link(r, f"section:{n}:a", w) for r, n, w in links))
        for at, (is_open, links) in enumerate(drawn)
    ]
)


@given(entries, st.integers(1, 3), st.integers(1, 3))
def test_a_search_under_rights_is_a_search_of_what_they_permit(drawn: list[Entry], depth: int, fan_out: int) -> None:
    permitted = [entry for entry in drawn if entry.chunk.metadata["open"]]
    options: dict[str, Any] = {"depth": depth, "fan_out": fan_out}
    asked = Query("sections 0 and 3", require={"open": True})
    everything, alone = GraphChannel(EmbeddedGraph(drawn), **options), GraphChannel(EmbeddedGraph(permitted), **options)
    assert everything.search(asked, 20) == alone.search("sections 0 and 3", 20)
    assert everything.kg_direct_query(asked) == alone.kg_direct_query("sections 0 and 3")


@given(entries, st.integers(0, 9))
def test_a_smaller_k_is_a_prefix_and_the_order_of_chunks_does_not_matter(drawn: list[Entry], k: int) -> None:
    channel = GraphChannel(EmbeddedGraph(drawn))
    whole = channel.search("sections 0 and 3", 20)
    assert channel.search("sections 0 and 3", k).hits == whole.hits[:k]
    assert GraphChannel(EmbeddedGraph(drawn[::-1])).search("sections 0 and 3", 20) == whole


@given(entries, st.sets(st.integers(0, 7)))
def test_adding_and_deleting_leaves_no_trace(drawn: list[Entry], gone: set[int]) -> None:
    store = EmbeddedGraph(drawn)
    store.delete([f"c{at}" for at in gone])
    fresh = EmbeddedGraph([entry for at, entry in enumerate(drawn) if at not in gone])
    assert (store.entries(), store.stats()) == (fresh.entries(), fresh.stats())
    keys = [f"section:{n}" for n in range(6)]
    assert store.find(keys) == fresh.find(keys)


async def test_wordings_are_searched_and_sync_equals_async() -> None:
    channel = GraphChannel(graph())
    query = Query("q", variants=(Variant("420 IPC"), Variant("415 IPC", weight=0.5)))
    found = channel.search(query)
    assert found.ids[0] == "c420"
    assert await channel.asearch(query) == found
    assert await channel.adirect("420 IPC") == channel.direct("420 IPC")


async def test_an_async_reader_is_awaited() -> None:
    model = Awaited(json.dumps([{"text": "fraud", "kind": "section", "number": "420", "law": "IPC"}]))
    channel = GraphChannel(graph(), reader=ModelReferences(model))
    assert (await channel.asearch("fraud")).ids[0] == "c420"
    assert (await channel.akg_direct_query("fraud") or {})["chunk_id"] == "c420"


async def test_a_direct_answer_that_fails_is_logged_without_what_others_said(caplog: pytest.LogCaptureFixture) -> None:
    class Down(EmbeddedGraph):
        def find(self, names: Sequence[str]) -> dict[str, list[str]]:
            try:
                raise ConnectionError("bolt://user:secret@host")
            except ConnectionError as error:
                raise SearchNotAvailableError(f"the graph cannot be reached: {error}") from error

    channel = GraphChannel(Down())
    assert channel.kg_direct_query("420 IPC") is None
    assert await channel.akg_direct_query("420 IPC") is None
    said = "graph could not be asked: the graph cannot be reached: ConnectionError"
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_the_direct_answer() -> None:
    answer = GraphChannel(graph()).kg_direct_query("What is Section 420 IPC?")
    assert answer == {
        "reference": "Section 420 IPC",
        "key": f"section:420:{IPC}",
        "chunk_id": "c420",
        "text": CHUNKS[0].text,
        "metadata": {"act": "IPC", "team": "red"},
        "neighbours": [
            {"chunk_id": "c17", "score": 0.25, "path": [f"section 420 {IPC}", "cited by", "c17"]},
            {
                "chunk_id": "c415",
                "score": 0.125,
                "path": [f"section 420 {IPC}", "is", "c420", "cites", f"section 415 {IPC}", "is", "c415"],
            },
        ],
    }
    assert (GraphChannel(graph()).kg_direct_query("section 999, or what does cheating mean?") or {})[
        "chunk_id"
    ] == "c415"


def test_no_direct_answer_where_there_is_none_or_the_graph_is_down(caplog: pytest.LogCaptureFixture) -> None:
    channel = GraphChannel(graph())
    assert channel.kg_direct_query("no reference") is None
    assert channel.kg_direct_query("420 IPC", require={"team": "blue"}) is None
    assert not caplog.records
    down = GraphChannel(Down())
    assert down.kg_direct_query("420 IPC") is None
    assert "the server is gone" in caplog.text
    with pytest.raises(SearchNotAvailableError):
        down.direct("420 IPC")


async def test_a_graph_that_is_down_degrades() -> None:
    channel = fuse({"other": ListChannel([("a", 1.0)]), "graph": GraphChannel(Down())}, method=RRF())
    expanded = ListChannel([("c420", 1.0)]) >> GraphExpansion(Down())
    for found in (channel.search("420 IPC"), await channel.asearch("420 IPC"), expanded.search("q")):
        assert len(found) == 1
        (failure,) = found.errors
        assert (failure.kind, failure.degrades) == ("SearchNotAvailableError", True)


FOUND = Ranking(
    (Hit(Chunk("c420"), 9.0, (Vote("bm25", 1, 9.0, kind="keyword"),)), Hit(Chunk("c0"), -3.0), Hit(Chunk("c17"), -4.0))
)


def test_expansion_adds_neighbours_and_strengthens_those_that_are_there() -> None:
    found = GraphExpansion(graph(), seeds=1).refine(Query("q"), FOUND)
    # from c420, of 1/1: to c415 by what it cites (0.5) and is (1); to c17 by what c420 is (1) and c17 cites (0.5)
    assert scored(found) == {"c420": 1.0, "c17": 1 / 3 + 0.5 * 0.5, "c0": 1 / 2, "c415": 0.5 * 0.5}
    assert found.ids == ("c420", "c17", "c0", "c415")
    added = found.hits[3]
    assert (added.found_by, added.votes[0].via) == ("graph", ("c420", "cites", f"section 415 {IPC}", "is", "c415"))
    assert found.hits[0] == Hit(FOUND.hits[0].chunk, 1.0, FOUND.hits[0].votes)
    assert found.hits[1].vote("graph_expansion") is not None


def test_expansion_keeps_filters_rights_and_limits() -> None:
    stage = GraphExpansion(graph(), seeds=1)
    assert "c415" not in stage.refine(Query("q", where={"team": "blue"}), FOUND).ids
    assert "c415" not in stage.refine(Query("q", require={"team": "blue"}), FOUND).ids
    assert "c415" in stage.refine(Query("q", require={"team": "red"}), FOUND).ids
    assert len(GraphExpansion(graph(), limit=0).refine(Query("q"), FOUND)) == 3
    assert stage.refine(Query("q"), Ranking()) == Ranking()


def test_a_smaller_k_is_a_prefix_behind_an_expansion() -> None:
    found = [(f"c{at}", 1.0 / rank) for rank, at in enumerate((0, 420, 17, 3, 4), 1)]
    channel = ListChannel(found) >> GraphExpansion(graph())
    whole = channel.search("q", 10)
    assert "c415" in whole.ids
    assert [channel.search("q", k) for k in range(8)] == [whole.top(k) for k in range(8)]


@pytest.mark.parametrize(
    ("chunk", "links"),
    [
        (Chunk("c", "x", metadata={"section": "Section 12. Theft", "act": "A"}), {("is", "section:12:a")}),
        (Chunk("c", "x", metadata={"section": 12}), {("is", "section:12:")}),
        (Chunk("c", "x", metadata={"section": "4.2 Termination"}), {("is", "section:4.2:")}),
        (Chunk("c", "x", metadata={"section": "Results", "part": "IV"}), {("in", "part:4:")}),
        (Chunk("c", "x", metadata={"title": "Section 8 HNA. Dues"}), {("is", "section:8:hna")}),
        (Chunk("c", "Section 12. Theft is"), {("is", "section:12:")}),
        (Chunk("c", "## § 12 Diebstahl\nWer"), {("is", "section:12:")}),
        (Chunk("c", "Article 21\nNo person"), {("is", "article:21:")}),
        (Chunk("c", "Table 2: Sums", metadata={"source": "a.pdf"}), {("is", "table:2:apdf")}),
        (Chunk("c", "Section 12 says that"), {("cites", "section:12:")}),
        (Chunk("c", "s. 12(3)", metadata={"act": "A"}), {("is", "section:12(3):a"), ("is", "section:12:a")}),
        (Chunk("c", "under s. 12(3) of B Act 1990"), {("cites", f"section:{n}:b act 1990") for n in ("12(3)", "12")}),
        (Chunk("c", "Section 12. See section 12."), {("is", "section:12:")}),
        (Chunk("c", 'so "x y" means z'), {("defines", "term:x y:")}),
        (Chunk("c", ""), set()),
    ],
)
def test_what_a_chunk_states(chunk: Chunk, links: set[tuple[str, str]]) -> None:
    assert {(edge.relation, edge.target) for edge in graph([chunk]).edges(["chunk:c"])} == links


def test_building_is_incremental_tells_progress_and_can_be_told_the_work() -> None:
    store, told = EmbeddedGraph(), list[int]()
    assert build_graph(iter(CHUNKS), store, batch=3, progress=told.append) == 4
    assert told == [3, 4]
    assert store.entries() == graph().entries()
    build_graph([Chunk("c17", "Nothing now.")], store)
    assert GraphChannel(store).search("420 IPC").ids == ("c420", "c415")
    for work in ("IPC", lambda chunk: f"{chunk.metadata['act']}"):
        told_work = EmbeddedGraph()
        build_graph([Chunk("c", "Section 1. Name", metadata={"act": "I.P.C."})], told_work, work=work)
        assert told_work.find(["section:1"]) == {"section:1": [f"section:1:{IPC}"]}


def test_a_graph_in_a_file_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "kb.graph"
    odd = Chunk("\u2028 \ud800".replace("\ud800", "é"), 'a\n"b"\u2028', "p", {"n": [1, None]}, "kb")
    store = graph([*CHUNKS, odd])
    store.save(path)
    store.save(path)
    loaded = EmbeddedGraph.load(path)
    assert loaded.entries() == store.entries()
    assert [e.chunk.text for e in loaded.entries()] == [e.chunk.text for e in store.entries()]
    assert GraphChannel(loaded).search("420 IPC") == GraphChannel(store).search("420 IPC")
    assert [entry.name for entry in tmp_path.iterdir()] == ["kb.graph"]


def test_two_that_write_at_once_both_write_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flush, within = tmp_path / "kb.graph", os.fsync, [True]

    def meanwhile(descriptor: int) -> None:
        if within and within.pop():
            graph(CHUNKS[:1]).save(path)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    graph().save(path)
    assert EmbeddedGraph.load(path).entries() == graph().entries()
    assert [entry.name for entry in tmp_path.iterdir()] == ["kb.graph"]


@pytest.mark.parametrize("at", [0, 5, 40, 120, 300, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "graph"
    graph().save(path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises((IndexDamagedError, IncompatibleIndexError)):
        EmbeddedGraph.load(path)
    path.write_bytes(bytes(content[: len(content) // 2]))
    with pytest.raises((IndexDamagedError, IncompatibleIndexError)):
        EmbeddedGraph.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    graph().save(newer)
    newer.write_bytes(newer.read_bytes().replace(b'"graph": 1', b'"graph": 2'))
    with pytest.raises(IncompatibleIndexError, match="format 2"):
        EmbeddedGraph.load(newer)
    with pytest.raises(StorageError):
        EmbeddedGraph.load(tmp_path / "none")
    with pytest.raises(StorageError):
        graph().save(tmp_path / "no folder" / "graph")
    with pytest.raises(ConfigError, match="JSON"):
        EmbeddedGraph([Entry(Chunk("c", metadata={"x": object()}))]).save(tmp_path / "odd")


@pytest.mark.parametrize("options", [{"depth": 0}, {"decay": 0.0}, {"decay": 1.5}, {"fan_out": 0}, {"timeout": 0}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    for part in (GraphChannel, GraphExpansion):
        with pytest.raises(ConfigError):
            part(EmbeddedGraph(), **options)
        with pytest.raises(ConfigError, match="EmbeddedGraph"):
            part(object())
    with pytest.raises(ConfigError, match="read"):
        GraphChannel(EmbeddedGraph(), reader=object())  # type: ignore[arg-type]


def test_a_walk_from_chunks_passes_other_chunks_of_the_same_section() -> None:
    parts = [Entry(Chunk(name), (Link("is", "section:1:a"),)) for name in ("one", "two")]
    found = run(EmbeddedGraph(parts), Walk(1, 0.5, 10).from_({"chunk:one": Reached(1.0, ("one",))}))
    assert found == {"two": Reached(0.5, ("one", "is", "section 1 a", "is", "two"))}


async def test_a_direct_answer_is_under_the_rights_of_the_query_and_of_the_call() -> None:
    graph = EmbeddedGraph()
    build_graph([Chunk("c420", "Section 420. Secret.", metadata={"act": "IPC", "acl": "a", "open": True})], graph)
    channel, asked = GraphChannel(graph), "Section 420 IPC"
    cases: list[tuple[Any, Any, bool]] = [
        (None, None, True), (None, {"acl": "a"}, True), (None, {"acl": "b"}, False),
        ({"acl": "a"}, {"open": True}, True), ({"acl": "a"}, {"open": False}, False),
        ({"acl": "b"}, {"open": True}, False), ({"acl": "a"}, {}, False),
    ]  # fmt: skip
    for own, rights, found in cases:
        query = Query(asked, require=own)
        assert (channel.kg_direct_query(query, require=rights) is not None) == found
        assert (await channel.akg_direct_query(query, require=rights) is not None) == found
