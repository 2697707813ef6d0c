"""A knowledge base whose vectors a real Chroma searches: in step, behind, damaged, gone, in other processes."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import ConfigError, StorageError
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.store import Bases, KnowledgeBase, chroma, commit
from voicevault_retrievers.store.chroma import ChromaCopy, CopyProgress

pytest.importorskip("chromadb")

ROOT = Path(__file__).parents[2]
EMBEDDER = HashEmbedder(16)
WORDS = ("fox", "dog", "cat", "bird", "tree", "river", "stone", "cloud", "wind")


def sample(first: int, last: int) -> list[Chunk]:
    return [
        Chunk(
            f"{i:05}",
            f"{WORDS[i % 9]} {WORDS[i // 9 % 9]} {WORDS[i // 81 % 9]} number{i}",
            metadata={"page": i % 2, "rare": i % 500},
        )
        for i in range(first, last)
    ]


QUERIES = (
    "fox tree number7",
    "a stone in the river",
    Query("dog wind", where={"page": 1}),
    Query("bird cloud", require={"page": 0}),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 500)
    monkeypatch.setattr(chroma, "EXACT_UP_TO", 50)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows Chroma was asked for, each time."""
    seen: list[int] = []
    nearest: Callable[..., list[str]] = ChromaCopy.nearest

    def counting(self: ChromaCopy, vector: Any, count: int, marker: CopyProgress) -> list[str]:
        seen.append(count)
        return nearest(self, vector, count, marker)

    monkeypatch.setattr(ChromaCopy, "nearest", counting)
    return seen


@pytest.fixture
def bases(tmp_path: Path) -> tuple[KnowledgeBase, KnowledgeBase]:
    """The same chunks, their vectors in Chroma and not."""
    made = []
    for vectors in ("chroma", "exact"):
        kb = KnowledgeBase.create("kb", root=tmp_path / vectors, embedder=EMBEDDER, vectors=vectors)  # type: ignore[arg-type]  # both are
        kb.add(sample(0, 1200))
        kb.delete(["00003", "00004"])
        kb.add([*sample(1200, 1210), Chunk("00005", "another fox tree", metadata={"page": 0})])
        made.append(kb)
        kb.close()
    return made[0], made[1]


def opened(kb: KnowledgeBase) -> KnowledgeBase:
    return KnowledgeBase.open(kb.path, embedder=EMBEDDER)


def check(kb: KnowledgeBase, exact: KnowledgeBase, least: float = 0.95) -> None:
    """All that is found is right, in its order, and nearly all that is right is found."""
    found = right = 0
    for query in QUERIES:
        hits, every = kb.dense().search(query, 10).hits, exact.dense().search(query, 3000).hits
        scores = {hit.chunk.id: hit.score for hit in every}
        assert all(scores[hit.chunk.id] == hit.score for hit in hits)
        assert [hit.chunk.id for hit in hits] == sorted((h.chunk.id for h in hits), key=lambda i: (-scores[i], i))
        found += len({hit.chunk.id for hit in hits} & {hit.chunk.id for hit in every[:10]})
        right += min(10, len(every))
    assert found >= least * right


def test_chroma_finds_and_the_segments_say_what(bases: tuple[KnowledgeBase, KnowledgeBase], asked: list[int]) -> None:
    kb, exact = bases
    for base in (kb, opened(kb)):
        asked.clear()
        check(base, exact)
        assert len(asked) >= len(QUERIES)
        assert (base.verify(), base.stats().vectors) == ([], "chroma")
    asked.clear()
    narrow = Query("fox", where={"rare": 7})
    assert kb.dense().search(narrow, 10) == exact.dense().search(narrow, 10)
    assert kb.dense().scores(Query("fox"), ["00007", "01205", "none"]) == exact.dense().scores(
        Query("fox"), ["00007", "01205", "none"]
    )
    assert asked == []  # few rows are compared one by one


def test_a_row_of_chroma_is_an_id_and_a_vector_and_no_text(bases: tuple[KnowledgeBase, KnowledgeBase]) -> None:
    known = ChromaCopy.at(bases[0].path)
    row = known._open(known.marker).get(limit=1, include=["documents", "metadatas", "embeddings"])
    assert row["documents"] in ([None], None)
    assert set(row["metadatas"][0]) == {"v"}
    found = b"".join(path.read_bytes() for path in (bases[0].path / "chroma").rglob("*") if path.is_file())
    assert (b"number7" in found, b"00007" in found) == (False, True)


def test_what_has_changed_since_chroma_was_is_searched_exactly(
    bases: tuple[KnowledgeBase, KnowledgeBase], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kb, exact = bases
    old = opened(kb)
    before = [old.dense().search(query, 10) for query in QUERIES]
    with kb, exact, monkeypatch.context() as patch:
        patch.setattr(ChromaCopy, "follow", lambda *_: None)  # Chroma stays behind
        patch.setattr(ChromaCopy, "in_step", lambda *_: True)
        for base in (kb, exact):
            base.add([Chunk(f"{i:05}", f"river stone number{i}", metadata={"page": 1}) for i in range(600, 1200)])
            base.delete([f"{i:05}" for i in range(100)])
    check(kb, exact)
    check(opened(kb), exact)
    assert [old.dense().search(query, 10) for query in QUERIES] == before
    with kb:
        kb.add([Chunk("new", "the next write reconciles")])
    exact.add([Chunk("new", "the next write reconciles")])
    marker = ChromaCopy.at(kb.path).marker
    assert marker is not None
    assert marker.holds == marker.changed == kb.manifest.generation
    asked.clear()
    check(opened(kb), exact)
    assert asked
    asked.clear()
    assert [old.dense().search(query, 10) for query in QUERIES] != []
    assert asked == []  # Chroma has other vectors by now than the old snapshot has


def test_a_crash_between_anything_leaves_right_answers(
    bases: tuple[KnowledgeBase, KnowledgeBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    kb, exact = bases
    steps = 0

    class Crash(BaseException):
        """The end of a process."""

    def crash_at(step: int) -> None:
        def stop(name: str) -> Callable[..., Any]:
            real = getattr(ChromaCopy, name)

            def counted(*arguments: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps > step:
                    raise Crash
                return real(*arguments)

            return counted

        for name in ("_mark", "_put", "_purged"):
            monkeypatch.setattr(ChromaCopy, name, stop(name))

    changed = [Chunk(f"{i:05}", f"wind cloud number{i}", metadata={"page": 0}) for i in range(700)]
    exact.add(changed)
    with monkeypatch.context() as patch:
        patch.setattr("voicevault_retrievers.store.writer.CommitWriter._tend_soon", lambda *_: None)
        kb.add(changed)
    for step in range(20):
        with monkeypatch.context():
            crash_at(step)
            steps = 0
            with suppress(Crash):
                kb._writer.follow()
            monkeypatch.undo()
        monkeypatch.setattr(chroma, "EXACT_UP_TO", 50)
        check(kb, exact)
        check(opened(kb), exact)
        if steps <= step:
            break
    assert 3 <= step < 19
    assert not kb._writer.follow()


def test_a_view_from_before_a_deletion_in_the_log_misses_nothing(
    bases: tuple[KnowledgeBase, KnowledgeBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    kb, _ = bases
    ChromaCopy.at(kb.path).remove()
    old = opened(kb)
    wanted = sample(7, 8)[0]
    with kb:
        kb.delete([wanted.id])
    marker = ChromaCopy.at(kb.path).marker
    assert marker is not None
    assert marker.holds == old.manifest.generation
    assert old.dense().search(wanted.text, 3).hits[0].chunk.id == wanted.id
    assert opened(kb).dense().search(wanted.text, 3).hits[0].chunk.id != wanted.id


def test_a_base_put_back_from_a_copy_is_found_whole(bases: tuple[KnowledgeBase, KnowledgeBase], tmp_path: Path) -> None:
    kb, exact = bases
    shutil.copytree(kb.path, tmp_path / "copy", ignore=shutil.ignore_patterns("chroma", "chroma.json"))
    with kb:
        kb.add(sample(5000, 6200))
        kb.compact()
    ChromaCopy.at(kb.path)._shut()
    for path in kb.path.iterdir():
        if path.name not in ("chroma", "chroma.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "copy", kb.path, dirs_exist_ok=True)
    check(opened(kb), exact)
    with opened(kb) as again:
        for base in (again, exact):
            base.add(sample(7000, 7600))
    check(opened(kb), exact)


@pytest.mark.parametrize("harm", ["garbage", "gone", "marker", "rows"])
def test_a_damaged_chroma_costs_time_and_is_made_again(
    bases: tuple[KnowledgeBase, KnowledgeBase], harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    kb, exact = bases
    path = kb.path
    if harm == "rows":
        ChromaCopy.at(path)._open(ChromaCopy.at(path).marker).delete(ids=[f"{i:05}" for i in range(10, 1000)])
    ChromaCopy.at(path)._shut()
    if harm == "garbage":
        for file in (path / "chroma").rglob("*"):
            if file.is_file():
                file.write_bytes(b"garbage" * 1000)
    elif harm == "gone":
        shutil.rmtree(path / "chroma")
    elif harm == "marker":
        (path / "chroma.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        fresh = KnowledgeBase.open(path, embedder=EMBEDDER)
        check(fresh, exact)
        with fresh:
            for base in (fresh, exact):
                base.add(sample(2000, 2600))
    assert ("is made again" in caplog.text) == (harm != "marker")
    check(fresh, exact)
    check(opened(fresh), exact)
    assert fresh.verify() == []


def test_chroma_that_cannot_be_made_does_not_stop_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no Chroma today")

    monkeypatch.setattr(ChromaCopy, "_open", fail)
    with KnowledgeBase.create("kb", root=tmp_path, embedder=EMBEDDER, vectors="chroma") as kb:
        kb.add(sample(0, 600))
        assert len(kb.dense().search("fox", 10).hits) == 10
    assert "no Chroma today" in caplog.text
    with pytest.raises(StorageError, match="all vectors are compared"):
        ChromaCopy.at(kb.path).follow(kb._snapshot, lambda: True)


def test_what_is_gone_leaves_chroma_where_it_is_much(bases: tuple[KnowledgeBase, KnowledgeBase]) -> None:
    kb, _ = bases
    with kb:
        kb.delete([f"{i:05}" for i in range(900)])
        kb.compact()
    assert ChromaCopy.at(kb.path)._open(ChromaCopy.at(kb.path).marker).count() == len(kb)


READER = """
import sys
from pathlib import Path
from tests.helpers import HashEmbedder
from voicevault_retrievers.store import KnowledgeBase, chroma

chroma.EXACT_UP_TO = 50
kb = KnowledgeBase.open(Path(sys.argv[1]), embedder=HashEmbedder(16))
twin = KnowledgeBase.open(Path(sys.argv[1]), embedder=HashEmbedder(16))
for line in sys.stdin:
    for base in (kb, twin):
        base.reload()
        found = base.dense().search(line, 5).hits
        print([hit.chunk.id for hit in found if hit.score > 0.999], flush=True)
"""


def test_a_reader_in_another_process_sees_what_came_since(bases: tuple[KnowledgeBase, KnowledgeBase]) -> None:
    kb, _ = bases
    command = [sys.executable, "-W", "ignore", "-c", READER, str(kb.path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for first in (0, 3000, 6000, 9000):
            with kb:
                kb.add(sample(first, first + 2000))
            for number in (first + 7, first + 1999):
                wanted = sample(number, number + 1)[0]
                reader.stdin.write(wanted.text + "\n")
                reader.stdin.flush()
                assert wanted.id in reader.stdout.readline()
                assert wanted.id in reader.stdout.readline()


def test_merges_and_several_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_policy, "TIER", 2)
    monkeypatch.setattr(commit, "MERGE_AT_ONCE", 0)
    made = {
        name: KnowledgeBase.create(name, root=tmp_path, embedder=EMBEDDER, vectors=vectors)  # type: ignore[arg-type]  # both are
        for name, vectors in (("a", "chroma"), ("b", "exact"), ("c", "chroma"))
    }
    for place, kb in enumerate(made.values()):
        for start in range(0, 1500, 500):
            kb.add(sample(start + 5000 * place, start + 500 + 5000 * place))
        kb.close()
    whole = KnowledgeBase.create("whole", root=tmp_path, embedder=EMBEDDER)
    whole.add([Chunk(f"{kb.name}:{c.id}", c.text, None, c.metadata) for kb in made.values() for c in kb])
    found = Bases(list(made), root=tmp_path, embedder=EMBEDDER).dense()
    scores = {hit.chunk.id: hit.score for hit in whole.dense().search("fox tree", 5000).hits}
    hits = found.search("fox tree", 10).hits
    assert [hit.score for hit in hits] == [scores[hit.chunk.id] for hit in hits]
    assert len(hits) == 10


def test_ids_that_chroma_does_not_take(tmp_path: Path) -> None:
    strange = ["\ud800\n\x00", "hex:00", "", "a b"]
    with KnowledgeBase.create("kb", root=tmp_path, embedder=EMBEDDER, vectors="chroma") as kb:
        kb.add([*sample(0, 600), *(Chunk(i, f"tiger {n}") for n, i in enumerate(strange) if i)])
    found = opened(kb).dense().search("tiger 0", 3).hits
    assert found[0].chunk.id == strange[0]


def test_vectors_want_an_embedder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an embedder"):
        KnowledgeBase.create("kb", root=tmp_path, vectors="chroma")
    with pytest.raises(ConfigError, match="unknown vectors 'qdrant'"):
        KnowledgeBase.create("kb", root=tmp_path, vectors="qdrant")  # type: ignore[arg-type]  # wrong on purpose
    KnowledgeBase.create("kb", root=tmp_path, embedder=EMBEDDER)
    with pytest.raises(ConfigError, match="made with vectors='exact', not 'chroma'"):
        KnowledgeBase.open_or_create("kb", root=tmp_path, embedder=EMBEDDER, vectors="chroma")
