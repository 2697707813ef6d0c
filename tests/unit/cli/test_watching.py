"""`voicevault index --watch`: changes are indexed as they come, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from tests.helpers import HashEmbedder
from tests.unit.cli.parts import ran
from voicevault_retrievers.cli import index
from voicevault_retrievers.store import KnowledgeBase

pytestmark = pytest.mark.program  # a child process reads files

Turn = Callable[[], object]

REPOSITORY = Path(__file__).parents[3]
_RUN = """
from tests.helpers import HashEmbedder
from voicevault_retrievers.cli import index, main
index.load_embedder = lambda *_: HashEmbedder()
main()
"""


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("the pump")
    return tmp_path / "docs"


def _texts(tmp_path: Path) -> list[str]:
    base = KnowledgeBase.open("kb", root=tmp_path / "kbs", embedder=HashEmbedder())
    return sorted(chunk.text for chunk in base)


def _watched(monkeypatch: pytest.MonkeyPatch, *turns: Turn) -> None:
    """The system tells of a change after each turn."""

    def watch(*_: Path, stop_event: threading.Event, **options: Any) -> Iterator[set[Any]]:
        yield set()
        for turn in turns:
            turn()
            yield {turn}
            if stop_event.is_set():
                return

    monkeypatch.setattr(watchfiles, "watch", watch)
    monkeypatch.setattr(index, "load_embedder", lambda *_: HashEmbedder())


def test_each_change_is_indexed_and_only_news_are_told(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _watched(
        monkeypatch,
        lambda: None,
        lambda: (docs / "b.png").touch(),
        lambda: (docs / "b.txt").write_text("the valve"),
        lambda: (docs / "a.txt").unlink(),
    )
    said = ran("index", docs, "--kb", "kb", "--root", tmp_path / "kbs", "--model", "hash", "--watch", "--prune").output
    assert [line.partition(";")[0] for line in said.splitlines()] == [
        "kb: 1 files read, 0 unchanged",
        "not read 1: unknown type .png (b.png)",
        "kb: 0 files read, 1 unchanged",
        "not read 1: unknown type .png (b.png)",
        "kb: 1 files read, 1 unchanged",
        "not read 1: unknown type .png (b.png)",
        "kb: 0 files read, 1 unchanged",
    ]
    assert _texts(tmp_path) == ["the valve"]


def test_the_model_is_loaded_before_the_first_change(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(HashEmbedder, "embed_queries", lambda _, texts: asked.append(texts))
    _watched(monkeypatch, lambda: asked.append(["a change"]))
    ran("index", docs, "--kb", "kb", "--root", tmp_path / "kbs", "--model", "hash", "--watch")
    assert asked == [["warm up"], ["a change"]]


def test_ctrl_c_ends_it_behind_a_last_turn(docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        (docs / "b.txt").write_text("the valve")

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    _watched(monkeypatch, interrupt, lambda: pytest.fail("it went on"))
    ran("index", docs, "--kb", "kb", "--root", tmp_path / "kbs", "--model", "hash", "--watch")
    assert _texts(tmp_path) == ["the pump", "the valve"]
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_an_empty_folder_can_be_watched_and_a_missing_one_cannot(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (docs / "a.txt").unlink()
    _watched(monkeypatch, lambda: (docs / "b.txt").write_text("the valve"))
    words = ("--kb", "kb", "--root", tmp_path / "kbs", "--model", "hash", "--watch")
    ran("index", docs, *words)
    assert _texts(tmp_path) == ["the valve"]
    assert "does not exist" in ran("index", tmp_path / "none", *words, code=1).output


@pytest.mark.program
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C alone")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_follows_a_folder_until_it_is_told_to_end(docs: Path, tmp_path: Path, number: int) -> None:
    words = ["index", str(docs), "--kb", "kb", "--root", str(tmp_path / "kbs"), "--model", "hash", "--watch"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", _RUN, *words]
    with subprocess.Popen(command, cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert "1 files read" in process.stderr.readline()
            (docs / "b.txt").write_text("the valve")
            assert "1 files read, 1 unchanged" in process.stderr.readline()
            process.send_signal(number)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    assert _texts(tmp_path) == ["the pump", "the valve"]
