"""The graph of a knowledge base: of its chunks as they are, whatever its file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers import Chunk, KnowledgeBase, Pipeline, Query, RuleRouter, compose, fuse
from voicevault_retrievers.errors import StorageError
from voicevault_retrievers.store import Bases
from voicevault_retrievers.store.graphs import FILE, GraphUpdate, update_graph
from voicevault_retrievers.structure.graph import EmbeddedGraph, GraphChannel, GraphStore, build_graph

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


def test_it_is_made_once_for_a_commit(kb: KnowledgeBase) -> None:
    assert kb.references() is kb.references()
    before = kb.references()
    kb.delete(["s4"])
    assert kb.references() is not before
    several = Bases([kb])
    assert several.references() is several.references()


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
    inner = compose({"bm25": words, "graph": GraphChannel(graph)}, route=True)
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
    monkeypatch.setattr(channel, "afind", None)
    pipeline = compose({"graph": channel}, route=True)
    for result in (pipeline.search("Section 421"), await pipeline.asearch("Section 421")):
        assert [hit.id for hit in result.hits] == ["p"]
        assert result.kg_direct_answer is None
        assert result.skipped == ("graph: StorageError: the disk is gone",)
    with pytest.raises(StorageError):
        compose({"graph": channel}, route=True, on_error="raise").search("Section 421")
    assert pipeline.kg_direct_query("Section 421") is None


def test_nothing_is_put_in_beside_the_base(kb: KnowledgeBase) -> None:
    graph = kb.references()
    assert isinstance(graph, GraphStore)
    assert graph.stats().chunks == 4
    with pytest.raises(TypeError, match="add chunks to the base"):
        graph.put([])
    with pytest.raises(TypeError, match="delete chunks from the base"):
        graph.delete(["s1"])


def test_several_bases_are_one_graph(kb: KnowledgeBase, tmp_path: Path) -> None:
    with KnowledgeBase.create("cases", root=tmp_path) as cases:
        cases.add([Chunk("c1", "The accused broke section 3 of the Water Act.")])
        hits = found(Bases(["law", "cases"], root=tmp_path).graph(), "section 3 WA")
        assert hits[0][0] == "law:s3"
        assert "cases:c1" in dict(hits)
        assert found(Bases(["law"], root=tmp_path).graph(), ASKED[0]) == found(kb.graph(), ASKED[0])


def test_rights_hold(kb: KnowledgeBase) -> None:
    kb.add([Chunk("secret", "Section 9. Breaks section 3.", metadata={"act": "WA", "secret": True})])
    seen = kb.graph().search(Query("section 3 WA", require={"secret": {"$exists": False}}))
    assert "secret" not in seen.ids
    assert "secret" in kb.graph().search("section 3 WA").ids
