"""Parents and sources: kept with the chunks, gone with the last of them, through logs, seals, merges and repairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, DocumentError
from voicevault_retrievers.store import Changes, Drift, KnowledgeBase, Source, commit

PARENTS = [Chunk("p1", "the whole fox story", metadata={"source_file": "a.md"}), Chunk("p2", "all about dogs")]
CHILDREN = [
    Chunk("a", "the fox", "p1", {"source_file": "a.md"}),
    Chunk("b", "the dog and the fox", "p1", {"source_file": "a.md"}),
    Chunk("c", "the dog", "p2", {"source_file": "b.md"}),
]


@pytest.fixture(params=[1, 4096], ids=["sealed", "logged"])
def kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> KnowledgeBase:
    monkeypatch.setattr(commit, "SEAL_AT", request.param)
    made = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())
    made.add(CHILDREN, parents=PARENTS, sources=[Source("a.md", "1"), Source("b.md", "1")])
    return made


def everywhere(kb: KnowledgeBase, holds: Callable[[KnowledgeBase], None]) -> None:
    """As written, as read again, as one segment, as repaired."""
    holds(kb)
    holds(KnowledgeBase.open(kb.path, embedder=HashEmbedder()))
    kb.compact()
    kb.close()
    holds(kb)
    holds(KnowledgeBase.repair(kb.path, embedder=HashEmbedder()))
    assert KnowledgeBase.open(kb.path).verify() == []


def test_parents_are_kept_and_not_searched(kb: KnowledgeBase) -> None:
    def holds(kb: KnowledgeBase) -> None:
        assert (len(kb), kb.ids()) == (3, ["a", "b", "c"])
        found = kb.parents(["p2", "p1", "none"])
        assert {parent.id: (parent.text, parent.metadata, parent.kb) for parent in found.values()} == {
            parent.id: (parent.text, parent.metadata, "kb") for parent in PARENTS
        }
        assert kb.bm25().search("story whole").hits == ()
        assert set(kb.dense().search("fox").ids) <= {"a", "b", "c"}
        assert kb.get(["p1"]) == {}

    everywhere(kb, holds)


def test_a_parent_goes_with_its_last_child(kb: KnowledgeBase) -> None:
    assert kb.delete(["a"]) == 1
    assert kb.parents(["p1", "p2"]).keys() == {"p1", "p2"}
    assert kb.add([Chunk("b", "moved", "p2", {"source_file": "a.md"})]) == Changes(replaced=1)

    def holds(kb: KnowledgeBase) -> None:
        assert kb.parents(["p1", "p2"]).keys() == {"p2"}

    everywhere(kb, holds)
    assert kb.clear() == 2
    assert (kb.parents(["p2"]), kb.sources, kb.ids()) == ({}, {}, [])
    kb.add([CHILDREN[0]], parents=PARENTS[:1])
    assert kb.parents(["p1"]).keys() == {"p1"}


def test_a_parent_is_replaced_and_one_may_come_before_its_children(kb: KnowledgeBase) -> None:
    kb.add([], parents=[Chunk("p1", "another story"), Chunk("p3", "for later")])

    def holds(kb: KnowledgeBase) -> None:
        found = kb.parents(["p1", "p3"])
        assert [found[name].text for name in ("p1", "p3")] == ["another story", "for later"]

    everywhere(kb, holds)
    kb.add([Chunk("d", "later", "p3")])
    kb.delete(["d"])
    assert kb.parents(["p3"]) == {}


def test_replacing_all_keeps_the_parents_of_what_stays(kb: KnowledgeBase) -> None:
    assert kb.replace(CHILDREN[:1]) == Changes(unchanged=1, removed=2)
    assert (kb.parents(["p1", "p2"]).keys(), kb.sources) == ({"p1"}, {})


def test_a_base_of_parents_alone_is_sealed_and_read(kb: KnowledgeBase) -> None:
    kb.clear()
    kb.add([], parents=PARENTS)
    kb.compact()
    assert KnowledgeBase.open(kb.path).parents(["p1"]).keys() == {"p1"}
    assert (len(kb), kb.bm25().search("fox").hits, kb.dense().search("fox").hits, kb.verify()) == (0, (), (), [])


def test_a_source_is_all_that_its_chunks_say(kb: KnowledgeBase) -> None:
    changes = kb.add([Chunk("new", "a cat", None, {"source_file": "a.md"}), CHILDREN[0]], sources=[Source("a.md", "2")])
    assert changes == Changes(added=1, unchanged=1, removed=1)

    def holds(kb: KnowledgeBase) -> None:
        assert kb.ids() == ["a", "c", "new"]
        assert {name: source.sha256 for name, source in kb.sources.items()} == {"a.md": "2", "b.md": "1"}

    everywhere(kb, holds)


def test_a_list_of_sources_counts_alike_in_log_and_segment(kb: KnowledgeBase) -> None:
    kb.add([Chunk("two", "of both", None, {"source_file": ["a.md", "b.md"]})])
    kb.delete(["a", "b", "c"])
    assert set(kb.sources) == {"a.md", "b.md"}
    kb.delete(["two"])
    assert kb.sources == {}


def test_a_source_is_forgotten_with_its_last_chunk(kb: KnowledgeBase) -> None:
    assert kb.delete(["a"]) == 1
    assert set(kb.sources) == {"a.md", "b.md"}
    assert kb.delete(where={"source_file": {"$in": ["a.md", "none"]}}) == 1
    assert kb.delete(source="b.md") == 1
    assert (kb.sources, kb.ids(), kb.parents(["p1", "p2"])) == ({}, [], {})


@pytest.mark.parametrize("key", ["source_file", "source", "file_name"])
def test_a_file_is_deleted_under_the_name_that_either_framework_has_for_it(kb: KnowledgeBase, key: str) -> None:
    kb.add([Chunk("x", "fox", metadata={key: "x.pdf"}), Chunk("y", "fox", metadata={key: "y.pdf"})])
    assert (kb.delete(source="x.pdf"), "x" in kb.ids(), "y" in kb.ids()) == (1, False, True)


def test_a_delete_says_what_it_means(kb: KnowledgeBase) -> None:
    assert kb.delete(where={"source_file": "none"}) == kb.delete(source="none") == kb.delete([]) == 0
    for options, said in (
        ({}, "one of ids, source"),
        ({"ids": ["a"], "source": "a.md"}, "one of ids, source"),
        ({"where": {}}, r"use clear\(\)"),
        ({"where": {"page": {"$foo": 1}}}, "unknown filter operator"),
        ({"where": {"$and": []}}, r"use clear\(\)"),
        ({"where": {"$and": [{"page": 1}, {}]}}, r"use clear\(\)"),
        ({"where": {"$not": {"$or": []}}}, r"use clear\(\)"),
        ({"source": ["a.md"]}, "source is the name of a file"),
    ):
        with pytest.raises(ConfigError, match=said):
            kb.delete(**options)  # type: ignore[arg-type]  # wrong on purpose
    assert len(kb) == 3


def test_files_are_compared_with_what_was_read(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (folder / name).write_text(name)
    kb = KnowledgeBase.create("kb", root=tmp_path)
    assert kb.drift(folder) == Drift(new=("a.md", "b.md", "c.md"))
    read = [Source.of(folder / name, recipe="900") for name in ("a.md", "b.md", "c.md")]
    kb.add([Chunk(s.name, s.name, None, {"source_file": s.name}) for s in read], sources=read)
    assert not kb.needs_rebuild(folder)
    assert kb.drift([folder], recipe="500").changed == ("a.md", "b.md", "c.md")
    (folder / "a.md").write_text("other")
    (folder / "b.md").unlink()
    (folder / "d.md").write_text("new")
    assert kb.drift(folder) == Drift(("d.md",), ("a.md",), ("b.md",))
    assert kb.drift(folder / "b.md") == Drift(gone=("b.md",))
    assert not kb.needs_rebuild(folder / "c.md")
    below = folder / "below"
    below.mkdir()
    (below / "e.md").write_text("deep")
    kb.add([Chunk("e", "deep", None, {"source_file": "below/e.md"})], sources=[Source.of(below / "e.md", "below/e.md")])
    assert not kb.needs_rebuild(below)
    with pytest.raises(DocumentError, match="does not exist"):
        kb.drift(folder / "none.md")


def test_sources_are_named_once(kb: KnowledgeBase) -> None:
    with pytest.raises(ConfigError, match=r"two sources have the name 'a\.md'"):
        kb.add([], sources=[Source("a.md", "1"), Source("a.md", "2")])
    for wrong in ({"name": 5}, {"sha256": None}, {"path": Path("a.md")}):
        with pytest.raises(ConfigError, match=rf"Source\({next(iter(wrong))}=\.\.\.\) is a string"):
            Source(**{"name": "a.md", "sha256": "1", **wrong})  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match=r"Source\.of"):
        kb.add([], sources=["a.md"])  # type: ignore[list-item]  # wrong on purpose


def test_all_parents_are_told_one_by_one(kb: KnowledgeBase) -> None:
    def holds(kb: KnowledgeBase) -> None:
        assert [(one.id, one.text, one.kb) for one in kb.iter_parents()] == [(p.id, p.text, "kb") for p in PARENTS]

    everywhere(kb, holds)
    told = kb.iter_parents()
    kb.delete(["c"])
    assert [one.id for one in told] == ["p1", "p2"]
    assert [one.id for one in kb.iter_parents()] == ["p1"]
    assert [(one.id, one.parent_id) for one in kb.view("kb:").iter_parents()] == [("kb:p1", None)]


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_chunks_with_vectors_are_told_in_batches_of_one_commit(kb: KnowledgeBase, size: int) -> None:
    def holds(kb: KnowledgeBase) -> None:
        batches = list(kb.batches(size))
        assert [chunk for batch in batches for chunk in batch.chunks] == list(kb)
        assert {len(batch.chunks) for batch in batches[:-1]} <= {size}
        rows = [row.tobytes() for batch in batches if batch.vectors is not None for row in batch.vectors]
        assert rows == [kb.view().snapshot.vector(chunk_id).tobytes() for chunk_id in kb.ids()]
        for at, chunk in enumerate(kb):
            rest = [one.id for batch in kb.batches(size, after=chunk.id) for one in batch.chunks]
            assert rest == kb.ids()[at + 1 :]
        assert {batch.vectors for batch in kb.batches(size, vectors=False)} == {None}

    everywhere(kb, holds)
    told = kb.batches(size)
    first = next(told)
    kb.delete(["a", "b"])
    kb.add([Chunk("d", "a new dog")])
    assert [chunk.id for batch in (first, *told) for chunk in batch.chunks] == ["a", "b", "c"]
    assert [chunk.id for batch in kb.batches(size, after="b") for chunk in batch.chunks] == ["c", "d"]
    named = [chunk.id for batch in kb.view("kb:").batches(size, after="kb:c") for chunk in batch.chunks]
    assert named == ["kb:d"]


def test_batches_of_what_has_no_vectors_or_no_size(tmp_path: Path) -> None:
    with KnowledgeBase.create("words", root=tmp_path) as kb:
        assert list(kb.batches()) == []
        kb.add([Chunk("a", "x")])
        assert [batch.vectors for batch in kb.batches()] == [None]
        with pytest.raises(ConfigError, match="size"):
            kb.batches(0)
