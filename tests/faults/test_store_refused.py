"""A disk that refuses: the error says so, the last commit stands, the next write loses nothing and doubles nothing."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pytest

from tests.faults.disks import CHANGES, REFUSED, Failing, Recorder, Unflushed, refuse, through
from tests.faults.states import MEMORY, WRITERS, State, chunks, opened, small, written
from voicevault_retrievers.errors import LockedError, StorageError
from voicevault_retrievers.store import commit, writer


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        with through(Unflushed()):
            written(Path(folder, "whole", "kb"))
        yield Path(folder, "whole")


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base / "kb", tmp_path / "kb")


class Broken(Failing):
    """Refuses one call, and whatever is to be changed after it."""

    def __call__(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if self.came and name in CHANGES:
            return refuse(name, real, *arguments)
        return super().__call__(name, real, *arguments)


ALL = ("add", "seal", "merge")
"""What is refused at every call; other writers where the store calls from another place."""


@pytest.mark.parametrize(("name", "kind"), [*((n, Failing) for n in WRITERS), *((name, Broken) for name in ALL)])
def test_whatever_call_is_refused_the_last_commit_stands(name: str, kind: type[Failing], base: Path) -> None:
    write, recorder = WRITERS[name], Recorder()
    place = base.with_name("place")
    shutil.copytree(base, place)
    with through(recorder):
        write(opened(place / "kb"))
    before, after = (State.of(opened(path / "kb")) for path in (base, place))
    names = REFUSED if name in ALL else CHANGES
    calls = [event for event in recorder.events if event.call in names]
    last = {(event.call, event.site): number for number, event in enumerate(calls)}
    for number in range(len(calls)) if name in ALL else last.values():
        shutil.rmtree(place)
        shutil.copytree(base, place)
        kb = opened(place / "kb")
        with through(kind(number, refuse, names)), pytest.raises(StorageError, match=r"No space left|output error"):
            write(kb)
        assert State.of(kb) == before
        fresh = opened(kb.path)
        assert State.of(fresh) in (before, after)
        assert fresh.verify() == []
        with through(Unflushed()):
            write(kb)
        fresh = opened(kb.path)
        assert State.of(fresh) == after
        assert fresh.verify() == []
    shutil.rmtree(place)


def test_what_was_taken_back_is_seen_no_longer(copy: Path) -> None:
    """A reader may have seen it before the flush failed; something as long may come in its place."""
    kb, *readers = (opened(copy) for _ in range(3))
    before = State.of(kb)

    def seen(*_: Any) -> None:
        for reader in readers:
            assert reader.reload()
            assert len(reader.get(["21", "22"])) == 2
        raise OSError(errno.EIO, "Input/output error")

    with through(Failing(0, seen, frozenset(["fsync"]))), pytest.raises(StorageError, match="Input/output error"):
        kb.add(chunks(21, 23))
    assert readers[0].reload()
    assert State.of(readers[0]) == State.of(opened(copy)) == before
    kb.add(chunks(24, 26))
    for reader in readers:
        assert reader.reload()
        assert not reader.reload()
        assert State.of(reader) == State.of(kb) == State.of(opened(copy)) != before


@pytest.mark.parametrize("again", [True, False])
def test_nobody_else_writes_while_a_merge_goes_on(copy: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """Not even after a change that failed, which gives the lock back: both would write segments of one name."""
    kb, merging, go = opened(copy), Event(), Event()
    kb.delete(["none"])

    def slow(*arguments: Any) -> Any:
        merging.set()
        assert go.wait(30)
        return commit.written(*arguments)

    monkeypatch.setattr(writer, "written", slow)
    thread = Thread(target=kb._writer.merge)
    thread.start()
    assert merging.wait(30)
    with through(Failing(0, refuse)), pytest.raises(StorageError):
        kb.delete(["02"])
    with pytest.raises(LockedError):
        opened(copy).delete(["02"])
    if again:
        assert kb.delete(["02"]) == 1
    go.set()
    thread.join()
    assert len(opened(copy).manifest.segments) == (1 if again else 2)
    kb.close()
    with opened(copy) as other:
        assert other.delete(["02", "03"]) == (1 if again else 2)
    assert opened(copy).verify() == []
    assert {path.name for path in copy.iterdir()} == {*other.manifest.names, "manifest.json", "lock"}
