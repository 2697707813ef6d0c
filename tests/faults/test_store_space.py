"""Disks without room and folders without permission, as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.disks import REFUSED, Failing, Recorder, refuse, through
from tests.faults.states import EMBEDDER, State, chunks, opened, small, written
from tests.forking import ended, fork
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import StorageError
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.names import vacant

MOUNT = shutil.which("mount") or ""
NOBODY = 65534


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    mounted = subprocess.run(
        [MOUNT, "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a full disk needs the right to mount one: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run([MOUNT.replace("mount", "umount"), "--lazy", str(tmp_path)], check=True)


@pytest.mark.program
@pytest.mark.skipif(not MOUNT, reason="a full disk needs the command mount")
@pytest.mark.parametrize("size", [100, 40_000], ids=["sealing", "logging"])
def test_a_full_disk_loses_nothing(disk: Path, size: int) -> None:
    """Chunks are added until there is no room, with something else to be removed then."""
    (disk / "else").write_bytes(bytes(400_000))
    kb = KnowledgeBase.create(disk / "kb", embedder=EMBEDDER)
    with pytest.raises(StorageError, match=r"'kb' cannot be written .*No space left on device"):  # noqa: PT012
        for at in count():
            kb.add([Chunk(f"{at:05}", f"fox {at} " + "x" * size)])
    ids = [f"{number:05}" for number in range(at)]
    assert kb.ids() == opened(kb.path).ids() == ids
    assert kb.verify() == []
    (disk / "else").unlink()
    kb.add([Chunk(f"{at:05}", "fox")])
    assert kb.ids() == opened(kb.path).ids() == [*ids, f"{at:05}"]
    assert kb.verify() == []


@pytest.mark.program
@pytest.mark.skipif(not MOUNT, reason="a full disk needs the command mount")
def test_a_base_is_cleared_on_a_disk_without_any_room(disk: Path) -> None:
    """Whether or not what goes is enough for a new segment: a log with room in its last block takes it."""
    written(disk / "kb")
    kb = opened(disk / "kb")
    with (disk / "else").open("wb", buffering=0) as filler:
        for _ in range(256):
            with suppress(OSError):
                filler.write(bytes(4096))
    assert kb.delete(["03"]) == 1
    count = len(kb)
    with pytest.raises(StorageError, match="No space left"):
        kb.add(chunks(30, 39))
    assert kb.clear() == count
    assert kb.clear() == 0
    for base in (kb, opened(kb.path)):
        assert (base.ids(), list(base.iter_parents()), base.sources, base.verify()) == ([], [], {}, [])
    (disk / "else").unlink()
    kb.add(chunks(0, 9))
    assert kb.ids() == opened(kb.path).ids() == [chunk.id for chunk in chunks(0, 9)]
    assert kb.verify() == []


def test_a_base_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    with through(recorder):
        KnowledgeBase.create("kb", root=tmp_path / "one" / "kbs")
    for number in range(sum(event.call in REFUSED for event in recorder.events)):
        root = tmp_path / str(number) / "kbs"
        with through(Failing(number, refuse, REFUSED)), pytest.raises(StorageError, match="'kb' cannot be made"):
            KnowledgeBase.create("kb", root=root)
        assert vacant(root) or [path.name for path in root.iterdir()] == ["kb"]
        assert KnowledgeBase.open_or_create("kb", root=root).verify() == []


@pytest.fixture
def shared() -> Iterator[Path]:
    """A base that all may read; others may write the lock file."""
    with TemporaryDirectory() as root:
        path = Path(root, "kb")
        written(path)
        for inner in (*path.rglob("*"), path, path.parent):
            inner.chmod(0o555 if inner.is_dir() else 0o444)
        (path / "lock").chmod(0o666)
        yield path
        path.chmod(0o755)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda folder: None, "log-000002"),
        (lambda folder: (folder / "lock").chmod(0o444), "lock"),
        (lambda folder: (folder / "lock").unlink(), "lock"),
    ],
)
def test_who_may_only_read_reads(shared: Path, harm: Callable[[Path], object], named: str) -> None:
    state = State.of(opened(shared))
    harm(shared)

    def reads() -> None:
        kb = opened(shared)
        with pytest.raises(StorageError, match=f"'kb' cannot be written .*Permission denied: '.*/{named}'"):
            kb.add(chunks(21, 23))
        assert State.of(kb) == State.of(opened(shared)) == state
        assert kb.verify() == []

    without_rights(reads)


def test_who_may_not_read_is_told(shared: Path) -> None:
    file = next(shared.glob("seg-*/vectors.npy"))
    file.chmod(0)

    def reads() -> None:
        with pytest.raises(StorageError, match=r"'kb' cannot be read .*Permission denied: '.*/vectors\.npy'"):
            opened(shared)

    without_rights(reads)


def without_rights(run: Callable[[], object]) -> None:
    """Do something as nobody in particular."""
    if os.geteuid() != 0:
        run()
        return

    def child() -> int:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        run()
        return 0

    assert ended(fork(child)) == 0
