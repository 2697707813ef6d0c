"""`voicevault search --interactive`: its settings, and Ctrl-C and Ctrl-D on a terminal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model_server import Handler, model_server, says
from tests.unit.cli.parts import ran
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase

PATIENCE = 60.0

# The terminal is made the one that sends the process its signals.
_RUN = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from voicevault_retrievers.cli import main
main()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with KnowledgeBase.create("plant", root=tmp_path) as kb:
        kb.add(Chunk(f"c{at}", f"pump {at} hums", None, {"source_file": f"{at % 2}.md"}) for at in range(8))
    (tmp_path / "words.yaml").write_text("version: 1\nchannels: {bm25: {}}\nk: 2\n")
    (tmp_path / "other.yaml").write_text("version: 1\nchannels: {bm25: {}}\nk: 3\n")
    return tmp_path


@pytest.fixture
def talk(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(root)

    def talk(*lines: str, words: tuple[str, ...] = ()) -> str:
        options = ["search", "--interactive", "--kb", "plant", "--root", root, "--preset", "words.yaml", *words]
        return ran(*options, given="".join(f"{line}\n" for line in lines)).stdout

    return talk


def test_queries_are_answered_until_the_input_ends(talk: Callable[..., str]) -> None:
    said = talk("pump", "", "pump 3")
    assert said.startswith("plant: ask, or :help. Ctrl-D ends.\n")
    assert said.count("\n   pump ") == 4
    assert "Nothing found." not in said
    assert talk(":quit", "pump").count("hums") == 0


def test_settings_hold_from_then_on(talk: Callable[..., str]) -> None:
    said = talk(":k", ":k 5", "pump", ":k preset", ":preset other.yaml", "pump", ":where {\"source_file\": \"1.md\"}",
                ":k 8", "pump", ":where", ":where none")  # fmt: skip
    assert "k is 2\n" in said
    assert "k is 5\n" in said
    assert "preset is other.yaml\n" in said
    assert 'where is {"source_file": "1.md"}\n' in said
    assert "where is none\n" in said
    by_answer = [part.count("hums") for part in said.split("voicevault> ")]
    assert [count for count in by_answer if count] == [5, 3, 4]
    told = talk(":json", "pump", words=("--explain",))
    assert json.loads(told[told.index("{") : told.rindex("}") + 1])["version"] == 1
    said = talk(":explain", "pump", ":explain", "pump", ":help")
    assert said.count("words pump") == 2
    assert ":where JSON" in said
    said = talk(":explain off", ":explain on", ":explain on", "pump", ":json on", ":json off", ":explain maybe")
    assert [line[-3:].strip() for line in said.splitlines() if "explain is " in line] == ["off", "on", "on"]
    assert said.count("words pump") == 2
    assert "error: that is on or off, not 'maybe'" in said


def test_what_is_wrong_is_said_and_the_session_goes_on(talk: Callable[..., str]) -> None:
    said = talk(":presett x", ":preset nowsroom", ":k many", ":where {", ':where {"a": {"$no": 1}}', ":where", "pump")
    assert "error: unknown setting 'presett'. Did you mean 'preset'?" in said
    assert "Did you mean 'newsroom'?" in said
    assert "error: :k takes a number of results" in said
    assert "error: :where is not JSON" in said
    assert "unknown filter operator '$no'" in said
    assert "where is none" in said
    assert said.count("hums") == 2


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        import pty

        self.master, theirs = pty.openpty()
        command = [sys.executable, "-c", _RUN, *words]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, text: str) -> str:
        """What is shown up to a text, which must come; what comes behind it is left for the next time."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.seen!r}"
            self.seen += os.read(self.master, 4096).decode("utf-8", "replace")
        shown, _, self.seen = self.seen.partition(text)
        return shown

    def sleeps(self) -> None:
        """Wait until it waits for a key."""
        psutil = pytest.importorskip("psutil")
        end = time.monotonic() + PATIENCE
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < end
            time.sleep(0.001)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.master)


def held(handler: Handler) -> None:
    """Holds the first answer back until the test is over."""
    if len(handler.server.requests) == 1:
        handler.server.ended.wait(PATIENCE)
    says('["c1"]')(handler)


@pytest.mark.program
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_on_a_terminal_ctrl_c_ends_the_query_and_ctrl_d_the_session(root: Path) -> None:
    pytest.importorskip("readline")
    with model_server(held) as server:
        (root / "model.yaml").write_text(
            "version: 1\nchannels: {bm25: {}}\nk: 2\n"
            f"stages: [llm_rerank: {{ollama: m, base_url: '{server.url}', timeout: {PATIENCE}}}]\n"
        )
        words = ("search", "--interactive", "--kb", "plant", "--root", str(root), "--preset", "model.yaml")
        terminal = Terminal(root, *words)
        try:
            terminal.until("voicevault> ")
            terminal.type("pump 1\n")
            end = time.monotonic() + PATIENCE
            while not server.requests and time.monotonic() < end:
                time.sleep(0.02)
            terminal.type("\x03")
            terminal.until("query aborted")
            terminal.until("voicevault> ")
            terminal.type("half a query")
            terminal.until("half a query")
            terminal.sleeps()  # a signal that comes between two keys is seen by readline with the next key only
            terminal.type("\x03")
            terminal.until("voicevault> ")
            terminal.type("pump 2\n")
            assert "hums" in terminal.until("voicevault> ")
            terminal.type("\x1b[A\x1b[A\n")  # the line before the last one
            terminal.until("pump 1")
            assert "hums" in terminal.until("voicevault> ")
            terminal.type("\x04")
            assert terminal.process.wait(PATIENCE) == 0
        finally:
            terminal.close()
