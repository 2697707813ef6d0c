"""Writers: one fsync a commit, many threads, waiting, forks, merges in the background, limits."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from threading import Barrier, Event, Thread, current_thread
from typing import Any

import pytest

from tests.forking import ended, fork
from tests.helpers import HashEmbedder, uncollected
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, IndexDamagedError, LockedError
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.lexical.segment import DeletedTermCounts
from voicevault_retrievers.store import (
    Changes,
    KnowledgeBase,
    Limits,
    commit,
    disk,
    embedding,
    knowledge_base,
    lock,
    writer,
)


def opened(path: Path, **options: Any) -> KnowledgeBase:
    return KnowledgeBase.open(path, **{"embedder": HashEmbedder(), **options})


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as made:
        yield made


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(disk.os, "fsync", lambda descriptor: (seen.append(descriptor), fsync(descriptor)))
    return seen


def chunks(first: int, last: int) -> list[Chunk]:
    return [Chunk(f"{i:05}", f"fox number{i}", f"p{i}", {"source_file": "a.md"}) for i in range(first, last)]


def test_an_add_a_batch_and_a_delete_are_flushed_once_each(kb: KnowledgeBase, flushes: list[int]) -> None:
    changes: list[Callable[[], object]] = [
        lambda: kb.add(chunks(0, 1)),
        lambda: kb.add(chunks(1, 1000), parents=[Chunk("p1", "parent")]),
        lambda: kb.delete(["00000"]),
        lambda: kb.delete(source="a.md"),
        lambda: kb.replace(chunks(5, 9)),
    ]
    for change in changes:
        before = len(flushes)
        change()
        assert len(flushes) == before + 1
    kb.add(chunks(5, 9))
    kb.delete(["none"])
    assert len(flushes) == len(changes)


def test_adds_of_many_threads_are_flushed_together(
    kb: KnowledgeBase, flushes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, first = Event(), []
    kb.add(chunks(100, 101))
    append = disk.append

    def slow(*arguments: Any) -> None:
        if not first:
            first.append(True)
            assert waiting.wait(30)
        append(*arguments)

    monkeypatch.setattr(disk, "append", slow)
    before = len(flushes)
    threads = [Thread(target=kb.add, args=(chunks(i, i + 1),)) for i in range(20)]
    for thread in threads:
        thread.start()
    while len(kb._writer._queue) < len(threads) - 1:  # all but the one that writes
        pass
    waiting.set()
    for thread in threads:
        thread.join()
    assert len(flushes) == before + 2
    assert kb.ids() == opened(kb.path).ids() == [f"{i:05}" for i in [*range(20), 100]]


def test_threads_add_and_delete_at_once_and_all_is_told_right(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 16)
    barrier, counts = Barrier(8), list[int]()

    def run(number: int) -> None:
        barrier.wait()
        for at in range(10):
            assert kb.add([Chunk(f"{number}-{at}", f"fox {at}")]) == Changes(added=1)
            counts.append(kb.add([Chunk(f"shared-{at}", "dog")]).added)
        assert kb.delete([f"{number}-{at}" for at in range(5)]) == 5

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert sum(counts) == 10
    kb.close()
    expected = sorted([f"{n}-{at}" for n in range(8) for at in range(5, 10)] + [f"shared-{at}" for at in range(10)])
    assert kb.ids() == opened(kb.path).ids() == expected
    assert kb.verify() == []


def test_what_one_edit_raises_the_others_do_not_feel(kb: KnowledgeBase) -> None:
    kb.add(chunks(0, 1))
    tickets = [
        writer._Ticket(edit) for edit in (lambda s: 1 / 0, lambda s: (writer.CommitRecord(deleted=("00000",)), 7))
    ]
    kb._writer._commit(tickets)
    assert isinstance(tickets[0].error, ZeroDivisionError)
    assert (tickets[1].error, tickets[1].value, kb.ids()) == (None, 7, [])


def test_a_second_writer_waits_as_long_as_it_is_told(kb: KnowledgeBase) -> None:
    kb.add(chunks(0, 1))
    with pytest.raises(LockedError, match=r"and 0\.05 s were not enough"):
        opened(kb.path, wait=0.05).add(chunks(1, 2))
    other = opened(kb.path, wait=60)
    thread = Thread(target=other.add, args=(chunks(1, 2),))
    thread.start()
    kb.close()
    thread.join()
    assert opened(kb.path).ids() == ["00000", "00001"]
    with pytest.raises(ConfigError, match="wait is a number"):
        opened(kb.path, wait=-1)


def test_a_base_that_nobody_refers_to_any_more_holds_no_lock(tmp_path: Path) -> None:
    with uncollected():  # a cycle of references would keep it until a collection
        KnowledgeBase.create("other", root=tmp_path).add(chunks(0, 1))
        with KnowledgeBase.open("other", root=tmp_path) as other:
            assert other.delete(["00000"]) == 1


def test_a_forked_child_does_not_hold_its_parents_lock(kb: KnowledgeBase) -> None:
    kb.add(chunks(0, 1))

    def child() -> int:
        try:
            kb.add(chunks(1, 2))
        except LockedError:
            return 7
        return 1

    assert ended(fork(child)) == 7
    kb.add(chunks(2, 3))
    kb.close()
    assert ended(fork(lambda: kb.add(chunks(3, 4)).added)) == 1
    assert kb.reload()
    assert kb.ids() == opened(kb.path).ids() == ["00000", "00002", "00003"]


def test_a_child_that_lives_on_does_not_keep_its_parents_lock(kb: KnowledgeBase) -> None:
    kb.add(chunks(0, 1))
    read, write = os.pipe()
    ready, began = os.pipe()
    if not (child := fork()):
        os.close(write)
        os.write(began, b"x")
        os.read(read, 1)  # until the parent lets go
        os._exit(0)
    os.close(read)
    os.read(ready, 1)
    os.close(kb._writer._lock._descriptor)  # type: ignore[union-attr]  # as the end of this process would
    opened(kb.path).add(chunks(1, 2))
    kb._writer._lock.release.detach()  # type: ignore[union-attr]  # it is closed already
    os.close(write)
    ended(child)


def merging_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of four chunks, two of which become one behind the commits."""
    monkeypatch.setattr(commit, "SEAL_AT", 4)
    monkeypatch.setattr(commit, "MERGE_AT_ONCE", 0)
    monkeypatch.setattr(merge_policy, "TIER", 2)


def test_large_merges_are_made_behind_the_commits(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    merging_behind(monkeypatch)
    go, merging = Event(), Event()
    written = writer.written

    def slow(*arguments: Any) -> Any:
        merging.set()
        assert go.wait(30)
        return written(*arguments)

    monkeypatch.setattr(writer, "written", slow)
    kb.add(chunks(0, 4), parents=[Chunk("p1", "parent"), Chunk("p2", "parent")])
    kb.add(chunks(4, 8))
    assert merging.wait(30)
    reader = opened(kb.path)
    assert [entry.count for entry in kb.manifest.segments] == [4, 4]
    kb.delete(["00001", "00004"])
    kb.add(chunks(20, 23))
    kb.add([Chunk("00005", "the dog")])
    assert "seg-000003" in {path.name for path in kb.path.iterdir()} or len(kb.manifest.segments) >= 3
    go.set()
    kb.close()
    expected = ["00000", "00002", "00003", "00005", "00006", "00007", "00020", "00021", "00022"]
    for base in (kb, opened(kb.path)):
        assert base.ids() == expected
        assert base.bm25().search("dog").ids == ("00005",)
        assert base.parents(["p1", "p2"]).keys() == {"p2"}
        assert base.verify() == []
    assert reader.ids() == [f"{i:05}" for i in range(8)]
    assert len(kb.manifest.segments) < 4
    assert {path.name for path in kb.path.iterdir()} == {*kb.manifest.names, "manifest.json", "lock"}


def test_a_commit_right_after_a_merge_leaves_nothing_of_it(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    merging_behind(monkeypatch)
    sweep, merged, go = writer.sweep, Event(), Event()

    class Pausing(Mutex):
        """When a merge has been committed, holds its thread before it does anything else."""

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            if current_thread() is kb._writer._tending and merged.is_set():
                assert go.wait(30)

    def swept(*arguments: Any) -> None:
        sweep(*arguments)
        if current_thread() is kb._writer._tending:
            merged.set()

    monkeypatch.setattr(writer, "sweep", swept)
    kb._writer._mutex = Pausing()
    kb.add(chunks(0, 4))
    kb.add(chunks(4, 8))
    assert merged.wait(30)
    assert [entry.name for entry in kb.manifest.segments] == ["seg-000003"]
    kb.delete([f"{i:05}" for i in range(8)])
    assert kb.manifest.segments == ()
    go.set()
    kb.close()
    assert {path.name for path in kb.path.iterdir()} == {*kb.manifest.names, "manifest.json", "lock"}


def test_a_merge_that_the_disk_refuses_is_told_and_loses_nothing(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    merging_behind(monkeypatch)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "written", refuse)
    kb.add(chunks(0, 4))
    kb.add(chunks(4, 8))
    kb.close()
    assert "could not be tended" in caplog.text
    assert "No space left" in caplog.text
    monkeypatch.undo()
    assert (len(opened(kb.path)), kb.verify()) == (8, [])


def test_compacting_leaves_one_segment_and_nothing_of_what_is_gone(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commit, "SEAL_AT", 3)
        kb.add(chunks(0, 10))
        kb.add(chunks(10, 15))
        kb.delete(["00001"])
    kb.add(chunks(20, 21))
    before = kb.bm25().search("fox number20", 20)
    kb.compact()
    assert [(entry.count, entry.deleted) for entry in kb.manifest.segments] == [(15, 0)]
    assert kb.bm25().search("fox number20", 20) == before
    name = kb.manifest.segments[0].name
    kb.compact()
    assert kb.manifest.segments[0].name == name
    kb.clear()
    kb.compact()
    assert (kb.manifest.segments, kb.verify()) == ((), [])


def test_the_same_chunk_written_again_and_again_does_not_fill_the_log(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 20)
    for at in range(50):
        kb.add([Chunk("same", f"fox {at}")])
    assert kb.manifest.generation >= 2
    monkeypatch.setattr(commit, "SEAL_AT", 4096)
    monkeypatch.setattr(commit, "LOG_BYTES", 5000)
    sizes = []
    for at in range(50):
        kb.add([Chunk("same", "fox " * 100 + str(at))])
        sizes.append((kb.path / kb.manifest.log).stat().st_size)
    assert 2000 < max(sizes) <= 5000


def test_a_text_that_is_here_is_not_embedded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kb = KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder())
    for seal in (4096, 1):
        monkeypatch.setattr(commit, "SEAL_AT", seal)
        kb.add([Chunk("a", "the fox", metadata={"page": seal})])
        with monkeypatch.context() as patch:
            patch.setattr(embedding, "embed", None)
            assert kb.add([Chunk("a", "the fox", metadata={"page": -seal})]) == Changes(replaced=1)
        assert kb.dense().search("the fox").hits[0].score == pytest.approx(1.0)


def test_a_base_that_is_gone_or_another_is_told(kb: KnowledgeBase, tmp_path: Path) -> None:
    kb.add(chunks(0, 1))
    shutil.rmtree(kb.path)
    with pytest.raises(IndexDamagedError, match=r"manifest\.json is missing"):
        kb.add(chunks(1, 2))
    KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder(8))
    with pytest.raises(IncompatibleIndexError, match="another knowledge base, with another embedder"):
        kb.add(chunks(1, 2), HashEmbedder().embed_documents(["x"]))
    with pytest.raises(IncompatibleIndexError, match="hash/8"):
        kb.add(chunks(1, 2))
    assert opened(kb.path, embedder=HashEmbedder(8)).ids() == []


def test_a_copy_is_opened_anew_and_does_not_write_beside_the_first(kb: KnowledgeBase) -> None:
    kb.add(chunks(0, 2))
    kb.compact()
    kb.add(chunks(2, 3))
    for copy in (deepcopy(kb), pickle.loads(pickle.dumps(kb))):
        assert (copy.ids(), copy.path) == (kb.ids(), kb.path)
        with pytest.raises(LockedError):
            copy.add(chunks(3, 4))


class Waits:
    """The clock of a writer that waits for a lock: each pause lasts until its step was made, the last ends the time."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.steps.pop(0)()
        if not self.steps:
            self.now += 1.0


def test_a_writer_that_waited_for_a_base_that_was_remade_waits_for_the_new_one(
    kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add(chunks(0, 1))
    made: list[KnowledgeBase] = []

    def remake() -> None:
        made.append(KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()))
        made[0].add(chunks(2, 3))

    second = opened(kb.path, wait=1.0)
    monkeypatch.setattr(lock, "time", Waits(lambda: shutil.rmtree(kb.path), remake, kb.close))
    with pytest.raises(LockedError):
        second.add(chunks(1, 2))
    assert opened(made[0].path).ids() == ["00002"]
    made[0].close()


def test_a_writer_that_waited_for_a_base_that_was_removed_says_so(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add(chunks(0, 1))
    second = opened(kb.path, wait=1.0)
    monkeypatch.setattr(lock, "time", Waits(lambda: shutil.rmtree(kb.path), lambda: None))
    with pytest.raises(IndexDamagedError, match="was removed while its lock was waited for: create it anew"):
        second.add(chunks(1, 2))


def test_an_edit_that_its_caller_gave_up_is_carried_out_by_nobody(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            pass

    kb.add(chunks(0, 5))
    with monkeypatch.context() as patch:
        patch.setattr(kb._writer, "_mutex", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            kb.delete(["00000"])
    kb.add(chunks(5, 6))
    assert len(kb) == 6


def test_what_is_handed_out_is_not_what_is_kept(kb: KnowledgeBase) -> None:
    kb.add([Chunk("a", "the fox", metadata={"tags": ["x"]})], parents=[Chunk("p", "p", metadata={"tags": ["x"]})])
    held = [kb.get(["a"])["a"], kb.bm25().search("fox").hits[0].chunk, next(iter(kb)), kb.parents(["p"])["p"]]
    for chunk in held:
        chunk.metadata["tags"].append("harm")
    kb.compact()
    assert kb.get(["a"])["a"].metadata == kb.parents(["p"])["p"].metadata == {"tags": ["x"]}


def test_many_deletes_are_one_step_for_the_counts(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    together = DeletedTermCounts.and_documents

    def counted(self: DeletedTermCounts, numbers: Any, length: int) -> DeletedTermCounts:
        steps.append(len(numbers))
        return together(self, numbers, length)

    kb.add(chunks(0, 300))
    kb.compact()
    monkeypatch.setattr(DeletedTermCounts, "and_documents", counted)
    assert kb.delete(source="a.md") == 300
    assert steps == [300]


def test_a_large_segment_that_is_half_dead_is_written_again_behind_the_commits(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb.add(chunks(0, 20))
    kb.compact()
    monkeypatch.setattr(commit, "SEAL_AT", 4)
    monkeypatch.setattr(commit, "MERGE_AT_ONCE", 4)
    with monkeypatch.context() as patch:
        patch.setattr(writer.CommitWriter, "_tend_soon", lambda _: None)
        kb.delete([f"{i:05}" for i in range(15)])
        assert [(entry.count, entry.deleted) for entry in kb.manifest.segments] == [(20, 15)]
    kb.delete(["00015", "00016", "00017", "00018"])
    kb.close()
    assert [(entry.count, entry.deleted) for entry in kb.manifest.segments] == [(1, 0)]


def test_where_no_thread_can_be_had_segments_are_merged_later(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    merging_behind(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        kb.add(chunks(0, 4))
        kb.add(chunks(4, 8))
        kb.add(chunks(8, 9))
        kb.close()
    assert "can't start new thread" in caplog.text
    assert len(kb.manifest.segments) == 2
    kb.add(chunks(9, 10))
    kb.close()
    assert (len(kb.manifest.segments), kb.ids()) == (1, [f"{i:05}" for i in range(10)])


def test_two_that_open_or_create_at_once_have_one_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = KnowledgeBase.open_or_create("both", root=tmp_path)
    answers = [True]
    vacant = knowledge_base.vacant
    monkeypatch.setattr(knowledge_base, "vacant", lambda folder: answers.pop() if answers else vacant(folder))
    second = KnowledgeBase.open_or_create("both", root=tmp_path)
    assert first.manifest.id == second.manifest.id


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (Chunk("i" * 1025), "the id .* has 1025 bytes, more than 1024"),
        (Chunk("a", parent_id="é" * 513), "the parent_id .* has 1026 bytes"),
        (Chunk("a", "x" * 1_000_001), "1000001 characters, more than 1000000: split it"),
        (Chunk("a", metadata={"x": "y" * 65536}), "has 65545 bytes as JSON, more than 65536"),
        (Chunk("a", metadata={"a\x00b": 1}), "characters that do not print"),
        (Chunk("a", metadata={"x": set()}), "cannot be kept as JSON"),
        (Chunk("a", metadata={1: "column", "1": "other"}), "the metadata key 1 of chunk 'a' is not a string"),
        (Chunk("a", metadata={"of": [{"b": {None: 1}}]}), "the metadata key None of chunk 'a' is not a string"),
        (Chunk("a", metadata={f"{i}": i for i in range(257)}), "has 257 keys, more than 256"),
        (Chunk("a", parent_id=5), "parent_id of chunk 'a' is a string or None"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_a_chunk_beyond_the_limits_is_refused(kb: KnowledgeBase, chunk: Chunk, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kb.add([Chunk("fine", "fox"), chunk])
    with pytest.raises(ConfigError, match=said):
        kb.add([], parents=[chunk])
    assert len(kb) == 0


def test_nesting_has_a_limit_and_limits_are_the_callers(kb: KnowledgeBase, tmp_path: Path) -> None:
    def nested(depth: int) -> Chunk:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return Chunk("a", metadata={"x": value})

    kb.add([nested(16)])
    for depth in (17, 5000):
        with pytest.raises(ConfigError, match="nests deeper than 16"):
            kb.add([nested(depth)])
    kb.close()
    narrow = opened(kb.path, limits=Limits(text=10))
    with pytest.raises(ConfigError, match="11 characters, more than 10"):
        narrow.add([Chunk("b", "x" * 11)])
    assert narrow.add([Chunk("b", "x" * 10)]) == Changes(added=1)
    with pytest.raises(ConfigError, match=r"Limits\(text=\.\.\.\) is a whole number"):
        Limits(text=0)
