"""Ctrl-C while a command works: what is on disk is sound, the same command goes on, and the exit code says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.store import KnowledgeBase, export

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent Ctrl-C alone")

PATIENCE = 60.0
REPOSITORY = Path(__file__).parents[3]

# Commits every four chunks; once `{after}` texts are embedded it says so, and waits for what comes.
_RUN = """
import sys, time
from tests.helpers import HashEmbedder
from voicevault_retrievers.cli import index, main
from voicevault_retrievers.store import indexing

class Waiting(HashEmbedder):
    seen = 0

    def embed_documents(self, texts):
        self.seen += len(texts)
        if self.seen > {after}:
            print("embedding", flush=True)
            time.sleep({patience})
        return super().embed_documents(texts)

indexing.COMMIT_AT = 4
index.load_embedder = lambda *_: Waiting()
main()
"""


def _index(folder: Path, kb: str, after: int) -> subprocess.Popen[str]:
    code = _RUN.format(after=after, patience=PATIENCE)
    words = ["index", f"{folder}/docs", "--kb", kb, "--root", f"{folder}/kbs", "--model", "hash"]
    command = [sys.executable, "-c", code, *words]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.program
def test_ctrl_c_leaves_a_sound_base_that_the_same_command_completes(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for at in range(10):
        (tmp_path / "docs" / f"{at}.txt").write_text(f"The pump number {at} hums.")
    interrupted = _index(tmp_path, "plant", after=6)
    watchdog = threading.Timer(PATIENCE, interrupted.kill)
    watchdog.start()
    assert interrupted.stdout is not None
    assert interrupted.stdout.readline() == "embedding\n"
    interrupted.send_signal(signal.SIGINT)
    _, said = interrupted.communicate()
    watchdog.cancel()
    assert interrupted.returncode == 130, said
    assert "Traceback" not in said
    assert "the same command goes on from here" in said
    base = KnowledgeBase.open("plant", root=tmp_path / "kbs", embedder=HashEmbedder())
    assert base.verify() == []
    assert 0 < len(base) < 10
    assert base.dense().search("pump number 1").hits
    for kb in ("plant", "whole"):
        _, said = (done := _index(tmp_path, kb, after=1000)).communicate(timeout=PATIENCE)
        assert done.returncode == 0, said
    assert _exported(tmp_path, "plant") == _exported(tmp_path, "whole")


def _exported(folder: Path, kb: str) -> list[bytes]:
    """What is in a base, but for the header and the checksum at its end."""
    export(KnowledgeBase.open(kb, root=folder / "kbs", embedder=HashEmbedder()), folder / f"{kb}.jsonl")
    return (folder / f"{kb}.jsonl").read_bytes().splitlines()[1:-1]


@pytest.mark.program
def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    code = (
        "import builtins, sys, voicevault_retrievers.cli as cli\n"
        "sys.argv = ['voicevault', 'kb', 'list']\n"
        "real = builtins.__import__\n"
        "def broken(name, *given, **options):\n"
        "    if name == 'rich.table':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *given, **options)\n"
        "builtins.__import__ = broken\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Aborted!\n")


@pytest.mark.program
def test_what_nobody_foresaw_is_one_line_unless_the_traceback_is_asked_for() -> None:
    code = (
        "import sys, voicevault_retrievers.cli as cli\n"
        "from voicevault_retrievers.cli import kb\n"
        "kb.options.bases_in = lambda _: 1 / 0\n"
        "sys.argv = ['voicevault', 'kb', 'list']\n"
        "cli.main()\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "VOICEVAULT_TRACEBACK"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: unexpected ZeroDivisionError: division by zero", "VOICEVAULT_TRACEBACK=1 shows where.",
    ]  # fmt: skip
    env = {**plain, "VOICEVAULT_TRACEBACK": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert "Traceback" in done.stderr
