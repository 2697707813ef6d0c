"""How a knowledge base's segments come, become one and go, and what is kept of the chunks that were deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.rows import SearchableIds
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.lexical.merge_policy import plan
from voicevault_retrievers.store import KnowledgeBase, commit, files
from voicevault_retrievers.store.segment import StoredSegment


def sample(start: int, stop: int) -> list[Chunk]:
    return [Chunk(f"{at:04}", f"{('fox', 'dog', 'cat')[at % 3]} and number{at} fox") for at in range(start, stop)]


def opened(root: Path) -> KnowledgeBase:
    return KnowledgeBase.open("kb", root=root, embedder=HashEmbedder())


def answers(kb: KnowledgeBase) -> list[object]:
    return [
        [(hit.chunk, hit.score) for hit in channel.search(query, 100)]
        for channel in (kb.bm25(), kb.dense())
        for query in ("fox", "dog number7", "cat")
    ]


@pytest.fixture
def kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnowledgeBase:
    """Seals at every fourth change; two segments of one size become one."""
    monkeypatch.setattr(commit, "SEAL_AT", 4)
    monkeypatch.setattr(merge_policy, "TIER", 2)
    return KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())


def counts(kb: KnowledgeBase) -> list[int]:
    return [entry.count for entry in kb.manifest.segments]


def test_a_plan_merges_what_is_of_one_size_and_leaves_out_what_is_empty() -> None:
    few, many = [100] * 7, [100] * 8
    assert plan([*few, 0], 100) == [[at] for at in range(7)]
    assert plan([*many, 0], 100) == [[*range(8)]]
    assert plan([800, *few, 90], 100) == [[0], [*range(1, 9)]]
    assert plan([*[800] * 7, *many], 100) == [[*range(15)]]
    assert plan([], 100) == []


def test_segments_of_one_size_become_one(kb: KnowledgeBase, tmp_path: Path) -> None:
    sizes = []
    for start in range(0, 32, 4):
        kb.add(sample(start, start + 4))
        sizes.append(counts(kb))
    assert sizes == [[4], [8], [8, 4], [16], [16, 4], [16, 8], [16, 8, 4], [32]]
    assert answers(kb) == answers(opened(tmp_path))
    assert kb.verify() == []
    assert {path.name for path in kb.path.iterdir()} == {*kb.manifest.names, "manifest.json", "lock"}


def test_a_merge_leaves_out_the_dead_and_keeps_the_vectors(kb: KnowledgeBase, tmp_path: Path) -> None:
    kb.add(sample(0, 4), np.eye(16)[:4])
    kb.delete(["0001"])
    kb.add(sample(4, 7), np.eye(16)[4:7])
    (entry,) = kb.manifest.segments
    assert (entry.count, entry.deleted) == (6, 0)
    (part,) = opened(tmp_path).parts
    assert part.vectors is not None
    assert np.array_equal(part.vectors, np.eye(16, dtype=np.float32)[[0, 2, 3, 4, 5, 6]])
    alone = BM25.from_chunks(list(kb))
    assert [hit.score for hit in kb.bm25().search("fox")] == [hit.score for hit in alone.search("fox")]


def test_a_segment_of_which_more_than_half_is_dead_is_written_again(kb: KnowledgeBase) -> None:
    kb.add(sample(0, 16))
    kb.delete([f"{at:04}" for at in range(8)])
    assert [(entry.count, entry.deleted) for entry in kb.manifest.segments] == [(16, 8)]
    kb.delete([f"{at:04}" for at in range(8, 12)])
    assert [(entry.count, entry.deleted) for entry in kb.manifest.segments] == [(4, 0)]
    assert (kb.verify(), kb.ids()) == ([], [f"{at:04}" for at in range(12, 16)])


def test_what_has_changed_on_disk_is_not_written_again(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that opening does not check must not come under a new checksum."""
    monkeypatch.setattr(files, "SMALL", 0)
    kb.add(sample(0, 2000))
    kb.close()
    path = kb.path / kb.manifest.segments[0].name / "vectors.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    kb = opened(tmp_path)
    before = kb.ids()
    with pytest.raises(IndexDamagedError, match=r"vectors\.npy has changed at bytes 65536"):
        kb.add(sample(2000, 4000))
    assert kb.ids() == opened(tmp_path).ids() == before
    path.write_bytes(whole)
    with kb:
        kb.add(sample(2000, 4000))
    assert (counts(kb), kb.verify()) == ([4000], [])


def test_what_deletions_took_is_known_after_opening(kb: KnowledgeBase, tmp_path: Path) -> None:
    kb.add(sample(0, 16))
    kb.delete([f"{at:04}" for at in range(6)])
    again = opened(tmp_path)
    (segment,) = (part.lexical for part in again.parts)
    (before,) = (part.lexical for part in kb.parts)
    assert segment.removed is not None
    assert before.removed is not None
    terms = len(segment.postings.vocabulary())
    assert np.array_equal(segment.removed.counts(terms), before.removed.counts(terms))
    fresh = BM25.from_chunks(sample(6, 16)).index.segments[0]
    assert segment.length == before.length == fresh.length
    assert answers(again) == answers(kb)
    kb.close()
    with again:
        again.delete(["0006", "0007"])
        assert answers(again) == answers(KnowledgeBase.open("kb", root=tmp_path, embedder=HashEmbedder()))
    assert again.verify() == []


def test_counts_that_are_not_the_deleted_chunks_are_found(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    kb.add(sample(0, 16))
    monkeypatch.setattr(StoredSegment, "bury", _bury_wrongly)
    kb.delete([f"{at:04}" for at in range(6)])
    assert kb.verify() == ["seg-000001: what its deleted chunks take from the counts is not what they have"]


_bury = StoredSegment.bury


def _bury_wrongly(self: StoredSegment, folder: Path, name: str, segment: object, live: object) -> object:
    removed = segment.removed.and_documents([np.array([0])], 0)  # type: ignore[attr-defined]  # a Segment
    return _bury(self, folder, name, type(segment)(segment.rows, segment.postings, removed), live)  # type: ignore


def test_a_reader_that_comes_while_another_merges_reads_again(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add(sample(0, 4))
    reader = opened(tmp_path)
    before = answers(reader)
    first = StoredSegment.open

    def late(folder: Path, *rest: object) -> StoredSegment:
        monkeypatch.setattr(StoredSegment, "open", first)
        kb.add(sample(4, 8))
        assert not (folder / "seg-000001").exists()
        return first(folder, *rest)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(StoredSegment, "open", late)
    assert answers(opened(tmp_path)) == answers(kb)
    assert answers(reader) == before
    assert reader.reload()
    assert answers(reader) == answers(kb)


def test_replacing_all_chunks_is_one_commit(kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 100)
    kb.add(sample(0, 4))
    reader, before = opened(tmp_path), kb.ids()
    changes = kb.replace([*sample(2, 4), Chunk("new", "fox")])
    assert changes == commit.Changes(added=1, unchanged=2, removed=2)
    assert (reader.ids(), kb.ids()) == (before, ["0002", "0003", "new"])
    assert reader.reload()
    assert reader.ids() == kb.ids()
    assert (kb.replace([]), kb.ids()) == (commit.Changes(removed=3), [])


def test_files_of_others_in_the_folder_stay(kb: KnowledgeBase) -> None:
    theirs = [kb.path / "log-202401 notes.txt", kb.path / "seg-000001 backup.zip"]
    for path in theirs:
        path.write_text("mine")
    kb.add(sample(0, 12))
    assert all(path.read_text() == "mine" for path in theirs)


def test_a_base_is_opened_without_the_parser_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CPython 3.11 it fails now and then where threads parse at once."""
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as kb:
        kb.add([Chunk("a", "a pump"), Chunk("b", "a valve")])
        kb.compact()

    def refuse(_: object) -> None:
        raise AssertionError("a text was parsed")

    monkeypatch.setattr("ast.literal_eval", refuse)
    opened = KnowledgeBase.open("kb", root=tmp_path, embedder=HashEmbedder())
    assert [opened.bm25().search("pump").ids, opened.dense().search("valve", 1).ids] == [("a",), ("b",)]


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 500])
def test_an_id_on_disk_is_found_and_no_other(size: int, tmp_path: Path) -> None:
    there = sorted({f"{'aé中😀'[at % 4]}{at * 2:03}" for at in range(size)})
    with KnowledgeBase.create("ids", root=tmp_path) as base:
        base.add([Chunk(chunk_id, "a pump") for chunk_id in there])
        base.compact()
        (segment,) = base.bm25().index.segments
        rows = segment.rows
        assert isinstance(rows.ids, SearchableIds)
        assert list(rows.ids) == there
        assert rows.ids_at(range(size - 1, -1, -1)) == there[::-1]
        assert (rows.ids_at([]), rows.ids_at([0, 0])) == ([], [there[0]] * 2)
        assert [rows.ordinal(chunk_id) for chunk_id in there] == list(range(size))
        others = {"", "zz", "\uffff", *(f"{one}x" for one in there), *(one[:-1] for one in there)} - {*there}
        assert {rows.ordinal(chunk_id) for chunk_id in others} == {None}
        assert (rows.ids[-1], rows.ids[:1], rows.ids[size // 2]) == (there[-1], there[:1], there[size // 2])
        with pytest.raises(IndexError):
            rows.ids[size]
