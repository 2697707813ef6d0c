"""The graph of a knowledge base: of its chunks as they are, whatever its file says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers import Chunk, KnowledgeBase, Pipeline, Query, RuleRouter, compose, fuse
from voicevault_retrievers.core.types import Hit, Ranking
from voicevault_retrievers.errors import StorageError
from voicevault_retrievers.pipeline.options import Expand, Fusion
from voicevault_retrievers.store import Bases, commit, graphs
from voicevault_retrievers.store.graphs import FILE, GraphUpdate, update_graph
from voicevault_retrievers.structure.graph import (
    EmbeddedGraph,
    Entry,
    GraphChannel,
    GraphExpansion,
    GraphStore,
    RuleReferences,
    build_graph,
    declared_laws,
    saved,
)
from voicevault_retrievers.structure.graph.building import entry_of

ACT = [
    Chunk("s1", "Section 1. This Act may be cited as the Water Act or as WA.", metadata={"act": "WA"}),
    Chunk("s2", "Section 2. Whoever breaks section 3 pays as section 4 says.", metadata={"act": "WA"}),
    Chunk("s3", "Section 3. Nobody fishes at night.", metadata={"act": "WA"}),
    Chunk("s4", "Section 4. A fine of ten crowns.", metadata={"act": "WA"}),
]
ASKED = ("What does section 2 WA say?", "section 3 of the Water Act", "nothing at all")


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    made = KnowledgeBase.create("law", root=tmp_path)
    made.add(ACT)
    return made


def found(channel: object, text: str) -> list[tuple[str, float | None]]:
    assert isinstance(channel, GraphChannel)
    return [(hit.id, hit.score) for hit in channel.search(text)]


def test_it_is_the_graph_of_the_chunks_with_and_without_its_file(kb: KnowledgeBase) -> None:
    plain = EmbeddedGraph()
    build_graph(kb, plain, reader=kb.references().reader)
    expected = {text: found(GraphChannel(plain, reader=kb.references().reader), text) for text in ASKED}
    assert [one for one, _ in expected[ASKED[0]]] == ["s2", "s3", "s4"]
    assert expected[ASKED[2]] == []
    assert {text: found(kb.graph(), text) for text in ASKED} == expected
    assert not (kb.path / FILE).exists()
    assert update_graph(kb) == GraphUpdate(4, 0, 0)
    assert update_graph(kb) == GraphUpdate(0, 0, 4)
    with KnowledgeBase.open("law", root=kb.path.parent) as again:
        assert {text: found(again.graph(), text) for text in ASKED} == expected
        assert again.verify() == []


def test_what_changed_since_the_file_was_written_is_read_anew(kb: KnowledgeBase) -> None:
    update_graph(kb)
    kb.delete(["s4"])
    kb.add([Chunk("s3", "Section 3. See section 5.", metadata={"act": "WA"})])
    kb.add([Chunk("s5", "Section 5. Nobody fishes at noon.", metadata={"act": "WA"})])
    assert [one for one, _ in found(kb.graph(), "section 3 WA")] == ["s3", "s2", "s5"]
    assert "s4" not in dict(found(kb.graph(), "section 4 WA"))
    assert update_graph(kb) == GraphUpdate(2, 1, 2)
    kb.add([Chunk("s6", 'Section 6. The Water Act may be cited as "Old Act (OA)".', metadata={"act": "WA"})])
    assert update_graph(kb).read in (1, 5)


def test_a_reading_is_of_its_commit(kb: KnowledgeBase) -> None:
    channel = kb.graph()
    kb.delete(["s3"])
    assert "s3" in dict(found(channel, "section 3 WA"))
    assert "s3" not in dict(found(kb.graph(), "section 3 WA"))


def test_a_damaged_file_is_named_and_made_anew(kb: KnowledgeBase, caplog: pytest.LogCaptureFixture) -> None:
    update_graph(kb)
    expected = found(kb.graph(), "section 3 WA")
    file = kb.path / FILE
    file.write_bytes(file.read_bytes()[:-9])
    with KnowledgeBase.open("law", root=kb.path.parent) as again, caplog.at_level("WARNING"):
        assert found(again.graph(), "section 3 WA") == expected
        assert "it is made anew of the chunks" in caplog.text
        assert update_graph(again) == GraphUpdate(4, 0, 0)
        caplog.clear()
        assert update_graph(again) == GraphUpdate(0, 0, 4)
    assert caplog.text == ""


def test_it_is_made_once_for_a_commit_and_nothing_is_put_in_beside_the_base(kb: KnowledgeBase) -> None:
    assert kb.references() is kb.references()
    before = kb.references()
    kb.delete(["s4"])
    assert kb.references() is not before
    several = Bases([kb])
    assert several.references() is several.references()
    graph = kb.references()
    assert isinstance(graph, GraphStore)
    assert graph.stats().chunks == 3
    with pytest.raises(TypeError, match="add chunks to the base"):
        graph.put([])
    with pytest.raises(TypeError, match="delete chunks from the base"):
        graph.delete(["s1"])


def test_what_is_not_permitted_does_not_crowd_out_what_is(tmp_path: Path) -> None:
    hidden = [
        Chunk(f"h{at:02d}", f"Section 5. Rule {at}.", metadata={"act": f"Act {at:02d}", "t": "b"}) for at in range(60)
    ]
    with KnowledgeBase.create("acts", root=tmp_path) as acts:
        acts.add([*hidden, Chunk("mine", "Section 5. My rule.", metadata={"act": "Zoo Act", "t": "a"})])
        query = Query("section 5", require={"t": "a"})
        assert acts.graph().search(query).ids == ("mine",)
        answer = acts.graph().kg_direct_query(query)
        assert answer is not None
        assert answer["chunk_id"] == "mine"


async def test_the_direct_answer_stays_within_what_narrows_the_graph() -> None:
    sections = [
        Chunk("p", "Section 421. Open.", metadata={"t": "a"}),
        Chunk("q", "Section 420. Secret.", metadata={"t": "b"}),
    ]
    graph = EmbeddedGraph()
    build_graph(sections, graph, work="code")
    words = ListChannel([("p", 1.0)], kind="keyword")
    inner = compose({"bm25": words, "graph": GraphChannel(graph)}, expansion=Expand(route=True))
    outer = Pipeline(RuleRouter() >> fuse({"tenant": inner.narrowed(require={"t": "a"}), "bm25": words}))
    for asked, chunk_id in (("Section 420", None), ("Section 421", "p")):
        for answer in (
            outer.search(asked).kg_direct_answer,
            (await outer.asearch(asked)).kg_direct_answer,
            outer.kg_direct_query(asked),
            await outer.akg_direct_query(asked),
        ):
            assert (answer and answer["chunk_id"]) == chunk_id


async def test_a_direct_answer_that_fails_leaves_the_hits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = EmbeddedGraph()
    build_graph([Chunk("p", "Section 421. Open.")], graph, work="code")
    channel = GraphChannel(graph)

    def broken(query: object) -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setattr(channel, "_direct", broken)
    monkeypatch.setattr(channel, "_awaits", False)
    pipeline = compose({"graph": channel}, expansion=Expand(route=True))
    for result in (pipeline.search("Section 421"), await pipeline.asearch("Section 421")):
        assert [hit.id for hit in result.hits] == ["p"]
        assert result.kg_direct_answer is None
        assert result.skipped == ("graph: StorageError: the disk is gone",)
    with pytest.raises(StorageError):
        compose({"graph": channel}, expansion=Expand(route=True), fusion=Fusion(on_error="raise")).search("Section 421")
    assert pipeline.kg_direct_query("Section 421") is None


def test_several_bases_are_one_graph(kb: KnowledgeBase, tmp_path: Path) -> None:
    with KnowledgeBase.create("cases", root=tmp_path) as cases:
        cases.add([Chunk("c1", "The accused broke section 3 of the Water Act.")])
        hits = found(Bases(["law", "cases"], root=tmp_path).graph(), "section 3 WA")
        assert hits[0][0] == "law:s3"
        assert "cases:c1" in dict(hits)
        assert found(Bases(["law"], root=tmp_path).graph(), ASKED[0]) == found(kb.graph(), ASKED[0])


HIDDEN = Chunk("h1", "Section 1. This Act may be cited as the Hidden Act or as WA.", metadata={"act": "HID", "t": "b"})
TWICE = Chunk("h2", "The Sea Act (SA) and the Sky Act (SA) are two.", metadata={"t": "b"})
SEEN = [
    Chunk("o2", "Section 2. See section 3.", metadata={"act": "WA", "t": "a"}),
    Chunk("o3", "Section 3. Nobody fishes at night.", metadata={"act": "WA", "t": "a"}),
    Chunk("o4", "Who breaks section 3 WA, or 7 SA, pays.", metadata={"t": "a"}),
    Chunk("o5", "Under section 3 of the Hidden Act a fee is due.", metadata={"t": "a"}),
    Chunk("o6", "Section 4. The Lake Act (LA) holds. 5 LA is the rule.", metadata={"t": "a", "act": "Lake Act"}),
    Chunk("o7", "Section 5. Boats.", metadata={"t": "a", "act": "LA"}),
]
LOOKED_FOR = (
    "section 3 WA", "section 3 of the hidden act", "section 3 of the Hidden Act", "3 WA", "7 SA",
    "section 7 of the Sky Act", "WA 3", "5 LA", "section 5 of the Lake Act", "section 2",
)  # fmt: skip


@pytest.mark.parametrize("text", LOOKED_FOR)
def test_a_law_that_a_hidden_chunk_declares_changes_nothing(tmp_path: Path, text: str) -> None:
    query = Query(text, require={"t": "a"})
    with KnowledgeBase.create("all", root=tmp_path) as every, KnowledgeBase.create("seen", root=tmp_path) as own:
        every.add([*SEEN, HIDDEN, TWICE])
        own.add(SEEN)
        update_graph(every)

        def answered(kb: KnowledgeBase) -> tuple[object, object, object]:
            hits = [(hit.id, hit.score, hit.votes[0].via, hit.votes[0].terms) for hit in kb.graph().search(query)]
            seed = Ranking((Hit(next(chunk for chunk in kb if chunk.id == "o4"), 1.0),))
            spread = [(hit.id, hit.score) for hit in GraphExpansion(kb.references()).refine(query, seed)]
            return hits, spread, kb.graph().direct(query)

        assert answered(every) == answered(own)


def test_all_declared_laws_are_known_to_those_who_see_them(tmp_path: Path) -> None:
    with KnowledgeBase.create("all", root=tmp_path) as kb:
        kb.add([*SEEN, HIDDEN])
        graph = kb.references()
        assert graph.seen_by({"t": {"$in": ["a", "b"]}}) is graph
        assert graph.seen_by({"t": "a"}) is graph.seen_by({"t": {"$ne": "b"}})
        assert graph.seen_by({"t": "a"}) is not graph
        asked = "section 3 of the Hidden Act"
        assert "o3" in dict(found(kb.graph(), asked))
        assert "o3" in kb.graph().search(Query(asked, require={"t": {"$in": ["a", "b"]}})).ids
        assert "o3" not in kb.graph().search(Query(asked, require={"t": "a"})).ids


def test_what_reads_queries_is_had_without_the_graph(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> int:
        raise AssertionError("the graph was made")

    with monkeypatch.context() as patched:
        patched.setattr(graphs, "build_graph", never)
        references = kb.references()
        (read,) = references.read("section 3 WA")
        assert read.work == "water act"
        assert references.seen_by({"act": "other"}).read("section 3 WA")[0].work == "wa"
    assert references.graph.stats().chunks == 4


def test_texts_are_read_for_laws_once(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    update_graph(kb)
    counted: list[str] = []
    plainly = declared_laws

    def counting(texts: Iterable[str]) -> dict[str, list[str]]:
        given = list(texts)
        counted.extend(given)
        return plainly(given)

    monkeypatch.setattr(graphs, "declared_laws", counting)
    with KnowledgeBase.open("law", root=kb.path.parent) as again:
        assert found(again.graph(), ASKED[0])
    assert sorted(counted) == sorted(chunk.text for chunk in ACT)


@pytest.mark.parametrize("rules", [saved.RULES + 1, saved.RULES - 1, None])
def test_a_file_that_other_rules_made_is_made_anew(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch, rules: int | None
) -> None:
    """The last is a file from before files said which rules had made them."""
    with monkeypatch.context() as before:
        if rules is None:
            EmbeddedGraph(Entry(chunk) for chunk in kb).save(kb.path / FILE)
        else:
            before.setattr(saved, "RULES", rules)
            update_graph(kb)
    assert found(kb.graph(), ASKED[0])
    assert update_graph(kb) == GraphUpdate(4, 0, 0)
    assert update_graph(kb) == GraphUpdate(0, 0, 4)


def test_which_of_two_laws_is_meant_does_not_hang_on_the_order_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    monkeypatch.setattr(commit, "MERGE_AT_ONCE", 1)
    declared = [Chunk("x1", "The Sea Act (SA)."), Chunk("x2", "The Sky Act (SA).")]
    for name, chunks in (("one", declared), ("two", declared[::-1])):
        with KnowledgeBase.create(name, root=tmp_path) as kb:
            for chunk in chunks:
                kb.add([chunk])
            assert kb.references().read("7 SA")[0].work == "sky act"


def test_the_rules_that_read_references_have_a_number() -> None:
    """Where this fails because references are read in another way now, raise `saved.RULES` with what is expected."""
    reader = RuleReferences({"water act": ["WA"]})
    texts = [
        *(chunk.text for chunk in (*ACT, *SEEN)),
        "§§ 3, 4 Abs. 2 BGB i.V.m. Art. 5 GG, see AIR 1973 SC 1461 and Table IV of chapter 2.",
        '"Pilot" means whoever steers. Clause (a) of sub-section (3) of section 12 of the Companies Act; 420 IPC.',
        "Roe v. Wade, 410 U.S. 113 (1973); sections 3 to 7 and rule 4; Annex B.",
    ]
    entries = [entry_of(Chunk(str(at), text, metadata={"act": "WA"}), reader).links for at, text in enumerate(texts)]
    digest = hashlib.sha256(repr(entries).encode()).hexdigest()[:16]
    assert (saved.RULES, digest) == (1, "4d23981653c50ef8")


def test_a_damaged_file_is_reported_and_a_repair_removes_it(kb: KnowledgeBase) -> None:
    update_graph(kb)
    kb.close()
    file = kb.path / FILE
    file.write_bytes(file.read_bytes()[:-9])
    (said,) = kb.verify()
    assert str(file) in said
    expected = found(kb.graph(), ASKED[0])
    repaired = KnowledgeBase.repair(kb.path)
    assert not file.exists()
    assert repaired.verify() == []
    assert found(repaired.graph(), ASKED[0]) == expected
    update_graph(repaired)
    KnowledgeBase.repair(kb.path)
    assert file.exists()
