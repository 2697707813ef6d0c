"""The command where its standard streams are closed, or cannot say all that there is to say."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from voicevault_retrievers.cli.options import as_json
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase

PATIENCE = 60.0
TEXT = "浮标 – pump 😀"

_RUN = """
import os, sys
for number in map(int, filter(None, sys.argv.pop(1).split(","))):
    os.close(number)
os.execv(sys.executable, [sys.executable, "-c", "from voicevault_retrievers.cli import main; main()", *sys.argv[1:]])
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not closed for a child there")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kbs")
    with KnowledgeBase.create("plant", root=root) as kb:
        kb.add([Chunk("a", TEXT)])
    (root / "words.yaml").write_text("version: 1\nchannels: {bm25: {}}\n")
    return root


def _run(root: Path, *words: str, closed: str = "", **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", _RUN, closed, "search", *words, "--kb", "plant", "--root", str(root)]
    return subprocess.run(
        [*command, "--preset", str(root / "words.yaml")],
        env={**os.environ, **env},
        capture_output=True,
        timeout=PATIENCE,
    )


@pytest.mark.program
@posix
@pytest.mark.parametrize(
    ("closed", "words", "code", "said"),
    [
        ("0", ("--interactive",), 0, b""),
        ("0", ("--queries-file", "-"), 2, b"the standard input holds no queries"),
        ("1", ("pump",), 0, b""),
        ("0,1,2", ("pump", "--json"), 0, b""),
        ("2", ("pump", "--where", "{"), 2, b""),
    ],
)
def test_a_stream_that_is_closed_is_as_one_that_is_empty(
    root: Path, closed: str, words: tuple[str, ...], code: int, said: bytes
) -> None:
    done = _run(root, *words, closed=closed)
    assert (done.returncode, b"unexpected" in done.stderr) == (code, False), done.stderr
    assert said in done.stderr


@pytest.mark.program
def test_what_an_encoding_does_not_have_is_written_out(root: Path) -> None:
    done = _run(root, TEXT, "--json", PYTHONIOENCODING="cp1252")
    told = json.loads(done.stdout.decode("ascii"))
    assert (told["query"], told["hits"][0]["text"]) == (TEXT, TEXT)
    shown = _run(root, TEXT, "--explain", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert rb"\u6d6e" in shown.stdout


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", TEXT), ("cp1252", None), (None, None)])
def test_json_is_beyond_ascii_where_that_can_be_written(
    encoding: str | None, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = type("Stream", (io.StringIO,), {"encoding": encoding})
    monkeypatch.setattr("sys.stdout", stream())
    assert as_json([TEXT], None) == (f'["{shown}"]' if shown else json.dumps([TEXT]))
