"""Damage on disk and killed writers: the last commit, or an error that says so; never a wrong answer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.dense import int8
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    IndexDamagedError,
    LockedError,
    StorageError,
)
from voicevault_retrievers.store import Bases, KnowledgeBase, Source, commit, disk, files, table, wal
from voicevault_retrievers.store.manifest import VectorSearch
from voicevault_retrievers.store.repair import problems

ROOT = Path(__file__).parents[2]
QUERIES = ("dog", "quick fox", "cat")


def sample(n: int) -> list[Chunk]:
    return [Chunk(f"{i:04}", f"{('fox', 'dog', 'cat')[i % 3]} quick number{i}", metadata={"page": i}) for i in range(n)]


def opened(root: Path) -> KnowledgeBase:
    return KnowledgeBase.open("kb", root=root, embedder=HashEmbedder())


def answers(kb: KnowledgeBase) -> list[object]:
    found = [
        [(hit.chunk, hit.score) for hit in channel.search(Query(query, where=where), 20)]
        for channel in (kb.bm25(), kb.dense())
        for query in QUERIES
        for where in (None, {"page": {"$gte": 3}})
    ]
    return [*found, kb.parents(["one", "many"]), kb.sources]


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """A base with three commits in its log."""
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as kb:
        kb.add(sample(3))
        kb.delete(["0001"])
        kb.add([Chunk("last", "the last fox")])
    return tmp_path


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base with a segment, tombstones of a chunk and of its parent, sources and a log."""
    chunks = [replace(chunk, parent_id="one" if chunk.id == "0003" else "many") for chunk in sample(12)]
    parents = [Chunk("one", "the story of a fox"), Chunk("many", "the story of a dog")]
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as kb:
        monkeypatch.setattr(commit, "SEAL_AT", 1)
        kb.add(
            [replace(chunk, metadata={**chunk.metadata, "source_file": "a.md"}) for chunk in chunks],
            parents=parents,
            sources=[Source("a.md", "1")],
        )
        kb.delete(["0003"])
        monkeypatch.undo()
        kb.add([Chunk("last", "the last fox")])
    return tmp_path


def test_a_log_cut_anywhere_in_its_last_record_opens_with_the_commit_before(logged: Path) -> None:
    path = logged / "kb" / "log-000000"
    whole = path.read_bytes()
    last = whole.rindex(b"\x00vvr")
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        kb = opened(logged)
        assert kb.ids() == ["0000", "0002"]
        assert kb.verify() == []
        with kb:
            kb.add([Chunk("new", "new fox")])
        assert opened(logged).ids() == ["0000", "0002", "new"]
        assert kb.verify() == []


def test_a_byte_changed_in_a_log_is_damage_or_the_end(logged: Path) -> None:
    path = logged / "kb" / "log-000000"
    whole = path.read_bytes()
    last = whole.rindex(b"\x00vvr")
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if at < last:
            with pytest.raises(IndexDamagedError, match="log-000000"):
                opened(logged)
        else:
            kb = opened(logged)
            assert kb.ids() == ["0000", "0002"]
            assert len(kb.verify()) == 1


def test_a_damaged_last_record_is_told_at_open_and_in_results_and_a_torn_one_is_not(
    logged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = logged / "kb" / "log-000000"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    reader = opened(logged)
    assert (reader.notes, caplog.records) == ((), [])
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    kb, bases = opened(logged), Bases(["kb"], root=logged, embedder=HashEmbedder())
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert f"{path} has changed in its last record" in caplog.text
    for base in (kb, kb.view(), bases):
        (note,) = base.notes
        assert (note.stage, note.kind, note.degrades) == ("kb", "damaged", True)
        assert "index again" in note.message
        assert str(logged) not in note.message
    caplog.clear()
    assert reader.reload()
    assert reader.notes == kb.notes
    assert not kb.reload()
    assert len(caplog.records) == 1
    with kb:
        kb.delete(["none"])
        assert kb.notes
        kb.add([Chunk("new", "new fox")])
    assert (kb.notes, opened(logged).notes, bases.reload(), bases.notes) == ((), (), True, ())


def test_a_byte_changed_in_a_file_is_never_a_wrong_answer(sealed: Path) -> None:
    right = answers(opened(sealed))
    folder = sealed / "kb"
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock" and "log" not in path.name]
    dead = "seg-000001.dead-000002"
    kinds = {"manifest.json", dead, f"{dead}.terms", f"{dead}.parents", "sources-000002", "vectors.npy", "crc32.json"}
    assert kinds | {"columns.bin", *table.PARENTS, *table.CHUNKS} < {path.name for path in paths}
    for path in paths:
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            if not whole[at : at + 1].isspace():  # in the manifest it says nothing
                path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
                with pytest.raises(IndexDamagedError, match=path.name):
                    opened(sealed)
                assert problems(folder)
        path.write_bytes(whole)
    assert answers(opened(sealed)) == right


def test_a_change_deep_in_a_large_file_is_found(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the first block of a large file, text is checked when it is read, and an array by `verify`."""
    monkeypatch.setattr(files, "SMALL", 0)
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    with opened(sealed) as kb:
        kb.add([Chunk(f"x{i:05}", f"fox number {i}") for i in range(4000)])
        folder = kb.path / kb.manifest.segments[-1].name
    for name in ("chunks.jsonl", "vectors.npy"):
        path = folder / name
        whole = path.read_bytes()
        assert len(whole) > 2 * files.BLOCK
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        kb = opened(sealed)
        assert name in " ".join(kb.verify())
        if name == "chunks.jsonl":
            assert kb.get(["x00000"])
            with pytest.raises(IndexDamagedError, match=name):
                kb.get(["x03999"])
        path.write_bytes(whole)
    assert opened(sealed).verify() == []


@pytest.mark.parametrize("vectors", ["exact", "int8"])
def test_a_bit_that_flips_in_any_block_is_an_error_and_never_a_wrong_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: VectorSearch
) -> None:
    """As in files so large that opening does not read them."""
    monkeypatch.setattr(files, "SMALL", 0)
    monkeypatch.setattr(files, "BLOCK", 512)
    monkeypatch.setattr(int8, "PAYS_FROM", 1)
    monkeypatch.setattr(int8, "LIMIT", 1.0)
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder(), vectors=vectors) as kb:
        kb.add([Chunk(c.id, c.text, "p", c.metadata) for c in sample(150)], parents=[Chunk("p", "parent " * 300)])
        kb.compact()
    right, folder = _everything(tmp_path), kb.path / kb.manifest.segments[0].name
    met: Counter[str] = Counter()
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for at in range(200, len(whole), files.BLOCK):
            _replace(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            said = ""
            try:
                assert _everything(tmp_path) == right, (path.name, at)
            except IndexDamagedError as error:
                said = str(error)
                met[path.name] += 1
            assert path.name in said or not said
            assert problems(kb.path) != []
        _replace(path, whole)
    for name in ("low.npy", "frequencies.npy", "vectors.npy", "ids.npy", "id_ends.npy", "chunks.jsonl", "columns.bin"):
        assert met[name], name


def _replace(path: Path, content: bytes) -> None:
    """Put another file in the place of one that a thread, such as that which compiles, may still have mapped."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


def _everything(root: Path) -> list[object]:
    """What every way to ask a base gives."""
    kb = opened(root)
    words = [f"number{i}" for i in range(0, 150, 7)] + ["fox", "dog", "cat", "quick"]
    asked: list[str | Query] = [*words, Query("fox", where={"page": {"$lt": 50}})]
    channels = kb.bm25(), kb.dense()
    found = [[(hit.chunk, hit.score) for hit in c.search(query, 7)] for c in channels for query in asked]
    scores = [channel.scores(Query("fox"), ["0003", "0101"]) for channel in channels]
    return [found, scores, list(kb), kb.get(["0077"]), kb.parents(["p"])]


def test_a_file_that_is_missing_or_cut_is_named(sealed: Path) -> None:
    for path in [path for path in (sealed / "kb").rglob("*") if path.is_file() and path.name != "lock"]:
        whole = path.read_bytes()
        cuts = () if path.name.startswith("log-") else {0, len(whole) // 2, len(whole) - 1}
        for harm in (path.unlink, *(partial(path.write_bytes, whole[:cut]) for cut in cuts)):
            harm()
            for use in (lambda: opened(sealed), lambda: Bases(["kb", "none"], root=sealed)):
                with pytest.raises(IndexDamagedError, match=path.name):
                    use()
            assert any(path.name in problem for problem in problems(sealed / "kb"))
        path.write_bytes(whole)
    assert opened(sealed).verify() == []


def test_what_is_derived_is_made_again_and_the_rest_is_named(sealed: Path, tmp_path: Path) -> None:
    right = answers(opened(sealed))
    whole = shutil.copytree(sealed / "kb", tmp_path / "whole")
    remedied = set()
    for file in [path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.name != "lock"]:
        path = sealed / "kb" / file
        for harm in (
            path.unlink,
            lambda path=path: path.write_bytes(b"\x93NUMPY" + bytes(200)),
            partial(_folder, path),
        ):
            harm()
            if files.original(file.name):
                held = _files(sealed / "kb")
                with pytest.raises((IndexDamagedError, StorageError), match=re.escape(file.name)) as raised:
                    KnowledgeBase.repair("kb", root=sealed, embedder=HashEmbedder())
                assert path.is_dir() or "restore the folder from a copy" in str(raised.value)
                assert _files(sealed / "kb") == held
            else:
                with pytest.raises((IndexDamagedError, StorageError), match=re.escape(file.name)) as raised:
                    opened(sealed)
                remedy = r"KnowledgeBase\.repair.*voicevault kb repair"
                assert path.is_dir() or re.search(remedy, str(raised.value))
                kb = KnowledgeBase.repair("kb", root=sealed, embedder=HashEmbedder())
                assert (answers(kb), kb.verify()) == (right, [])
                remedied.add(file.name)
            shutil.rmtree(sealed / "kb")
            shutil.copytree(whole, sealed / "kb")
    assert {"crc32.json", "columns.bin", "terms.npy", "parent_ids.npy", "seg-000001.dead-000002.terms"} < remedied


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_a_link_is_read_and_what_is_no_file_is_named(sealed: Path, tmp_path: Path) -> None:
    right = answers(opened(sealed))
    for path in [path for path in (sealed / "kb").rglob("*") if path.is_file() and path.name != "lock"]:
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        assert (answers(opened(sealed)), opened(sealed).verify()) == (right, [])
        path.unlink()
        path.symlink_to(tmp_path / "none")
        with pytest.raises(IndexDamagedError, match=f"{path.name} is missing"):
            opened(sealed)
        path.unlink()
        path.mkdir()
        with pytest.raises((IndexDamagedError, StorageError), match=path.name):
            opened(sealed)
        assert any(path.name in problem for problem in problems(sealed / "kb"))
        path.rmdir()
        (tmp_path / "moved").rename(path)
    assert opened(sealed).verify() == []


def test_a_folder_with_a_lock_alone_is_no_base_and_an_empty_one_becomes_one(tmp_path: Path) -> None:
    folder = tmp_path / "kb"
    folder.mkdir()
    with pytest.raises(ConfigError, match="there is no knowledge base 'kb'"):
        opened(tmp_path)
    (folder / "lock").write_text("1\n")
    for use in (opened, lambda root: KnowledgeBase.repair("kb", root=root)):
        with pytest.raises(IndexDamagedError, match=r"manifest\.json is missing"):
            use(tmp_path)
    with pytest.raises(ConfigError, match="is there already"):
        KnowledgeBase.create("kb", root=tmp_path)
    (folder / "lock").unlink()
    assert KnowledgeBase.create("kb", root=tmp_path).verify() == []


def test_a_newer_format_is_told_from_damage(sealed: Path) -> None:
    path = sealed / "kb" / "manifest.json"
    body = json.loads(path.read_bytes())
    del body["checksum"]
    body = {**body, "format": 2, "something": "new"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"checksum": checksum, **body}))
    with pytest.raises(IncompatibleIndexError, match="update voicevault-retrievers"):
        opened(sealed)


def test_a_writer_that_fails_while_sealing_leaves_the_last_commit(
    logged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = answers(opened(logged))
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    for name in ("make_folder", "write", "rename", "flush_folder"):
        kb = opened(logged)
        with monkeypatch.context() as patch:
            patch.setattr(disk, name, _fail)
            with pytest.raises(StorageError, match=r"'kb' cannot be written \(no space left\)"):
                kb.add([Chunk("new", "new fox")])
        assert answers(kb) == answers(opened(logged)) == before
    with opened(logged) as kb:
        kb.add([Chunk("new", "new fox")])
    assert opened(logged).ids() == ["0000", "0002", "last", "new"]
    assert {path.name for path in kb.path.iterdir()} == {*kb.manifest.names, "manifest.json", "lock"}


def _fail(*_: object) -> None:
    raise OSError("no space left")


def test_a_commit_whose_end_failed_is_read_again_before_the_next_write(
    logged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    kb = opened(logged)
    assert kb.delete(["none"]) == 0  # takes the lock
    with monkeypatch.context() as patch:
        patch.setattr("voicevault_retrievers.store.commit.Snapshot.open", _fail)
        with pytest.raises(StorageError, match="no space"):
            kb.add([Chunk("new", "new fox")])
    assert kb.ids() == ["0000", "0002", "last"]
    with kb:
        kb.add([Chunk("newer", "newer fox")])
    assert kb.ids() == opened(logged).ids() == ["0000", "0002", "last", "new", "newer"]


def test_a_reader_that_comes_while_another_seals_reads_again(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Callable[..., object] = wal.read
    writer = opened(logged)

    def late(path: Path, kb: str, start: int = 0) -> object:
        monkeypatch.setattr(wal, "read", read)
        monkeypatch.setattr(commit, "SEAL_AT", 1)
        with writer:
            writer.add([Chunk("new", "new fox")])
        assert not path.exists()
        return read(path, kb, start)

    monkeypatch.setattr(wal, "read", late)
    assert opened(logged).ids() == ["0000", "0002", "last", "new"]


WRITER = """
import sys
from pathlib import Path
from tests.helpers import HashEmbedder
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.core.types import Chunk, Query

kb = KnowledgeBase.open("kb", root=sys.argv[1], embedder=HashEmbedder())
kb.add([Chunk("mine", "my fox")])
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.program
def test_a_second_writer_is_refused_until_the_first_is_dead(logged: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(logged)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        kb = opened(logged)
        assert "mine" in kb.ids()
        with pytest.raises(LockedError, match=f"process {writer.pid}"):
            kb.add([Chunk("other", "other fox")])
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    with kb:
        kb.add([Chunk("other", "other fox")])
    assert {"mine", "other"} < set(opened(logged).ids())


def test_a_base_put_in_the_place_of_another_is_seen(logged: Path) -> None:
    kb = opened(logged)
    shutil.rmtree(logged / "kb")
    with pytest.raises(IndexDamagedError, match=r"manifest\.json is missing"):
        kb.reload()
    with KnowledgeBase.create("kb", root=logged, embedder=HashEmbedder()) as other:
        other.add([Chunk("other", "other fox")])
    assert kb.reload()
    assert kb.ids() == ["other"]
