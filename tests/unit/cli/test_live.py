"""What a long `voicevault index` shows, and how Ctrl-C ends it."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.helpers import HashEmbedder
from voicevault_retrievers.cli import live
from voicevault_retrievers.cli.live import Lines, Pace, ProgressView, following, interruptible, on_disk, tail
from voicevault_retrievers.cli.progress import shown
from voicevault_retrievers.documents import Skipped
from voicevault_retrievers.store import KnowledgeBase, indexing, update
from voicevault_retrievers.store.indexing import ReadingProgress

HOSTILE = "\x1b[31m\x1b]0;title\x07[bold]a\r\nb\u202egpj.\udcff[/]/end.txt"
SAFE = r"\x1b[31m\x1b]0;title\x07[bold]a\r\nb\u202egpj.\udcff[/]/end.txt"


class Clock:
    """Shows the time that it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def drawn(view: ProgressView, width: int = 80, **options: Any) -> list[str]:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=width, color_system="truecolor", soft_wrap=True, **options).print(view)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()


def test_a_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace(10.0)
    assert pace.rate(0.0) == 0.0
    for second in range(100):
        pace.add(second, second * 5)
    pace.add(100.0, 495)
    assert pace.rate(100.0) == (495 - 450) / 10
    assert pace.rate(110.0) == (495 - 450) / 20
    assert len(pace._points) < 13


def test_the_view_says_how_far_it_is_in_few_lines(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0" * 1500)
    view = ProgressView(tmp_path, clock)
    clock.now += 20
    view(ReadingProgress(400, 100, "manuals/pump.pdf", 1832, 1600, 2, Skipped("a.pdf", "has no text"), 0.25))
    lines = drawn(view)
    assert lines == [
        f"done      {'━' * 6}{'─' * 18} 25%",
        "files     100 of 400",
        "reading   manuals/pump.pdf",
        "chunks    1,832 made, 1,600 embedded, 80 a second",
        "time      0:00:20, about 0:01:00 left",
        "on disk   1.5 kB",
        "skipped   2, last a.pdf: has no text",
    ]
    assert view.line() == (
        "25%: 100 of 400 files, 2 skipped; 1,832 made, 1,600 embedded, 80 a second; 1.5 kB; 0:00:20, about 0:01:00 left"
    )


def test_how_long_the_rest_takes_is_not_said_before_there_is_a_sign_of_it(clock: Clock, tmp_path: Path) -> None:
    view = ProgressView(tmp_path, clock)
    clock.now += 5
    for share in (0.0, 0.0001, 1.0):
        view(ReadingProgress(3, share=share))
        assert "left" not in view.line()


def test_the_size_on_disk_is_looked_up_now_and_then(clock: Clock, tmp_path: Path) -> None:
    view = ProgressView(tmp_path, clock)
    assert "0 bytes" in view.line()
    (tmp_path / "log").write_bytes(b"0" * 10)
    clock.now += live.SIZED / 2
    assert "0 bytes" in view.line()
    clock.now += live.SIZED / 2
    assert "10 bytes" in view.line()
    assert on_disk(tmp_path / "never") == 0


def test_names_and_reasons_are_text_whatever_is_in_them(clock: Clock, tmp_path: Path) -> None:
    assert shown(HOSTILE) == SAFE
    assert shown("Übersicht 水泵.pdf") == "Übersicht 水泵.pdf"
    view = ProgressView(tmp_path, clock)
    view(ReadingProgress(1, 0, HOSTILE, skipped=1, latest=Skipped(HOSTILE, "of \x1b[2J\nthat")))
    lines = drawn(view, width=200)
    assert lines[2] == f"reading   {SAFE}"
    assert lines[6] == f"skipped   1, last {SAFE}: of \\x1b[2J\\nthat"


@pytest.mark.parametrize("width", [20, 33, 80])
def test_no_line_is_wider_than_the_terminal(clock: Clock, tmp_path: Path, width: int) -> None:
    view = ProgressView(tmp_path, clock)
    view(ReadingProgress(1, 0, f"{'水泵/' * 60}end.pdf", latest=Skipped("b.txt", "long " * 80)))
    lines = drawn(view, width=width)
    assert len(lines) == 7
    assert max(map(cell_len, lines)) <= width
    assert lines[2].endswith("end.pdf")


def test_the_end_of_a_name_is_what_is_kept() -> None:
    assert [tail("manuals/pump.pdf", room) for room in (16, 9, 1, 0)] == ["manuals/pump.pdf", "…pump.pdf", "…", "…"]
    assert tail("水泵", 3) == "…泵"


def test_without_a_terminal_there_is_a_line_every_ten_seconds(clock: Clock, tmp_path: Path) -> None:
    said: list[str] = []
    lines = Lines(said.append, ProgressView(tmp_path, clock), clock)
    for done in range(1, 31):
        clock.now += 1
        lines(ReadingProgress(30, done))
    assert [line.split(" files")[0] for line in said] == ["0%: 10 of 30", "0%: 20 of 30", "0%: 30 of 30"]


def test_who_is_shown_what(tmp_path: Path) -> None:
    def told(*, quiet: bool = False, **options: Any) -> tuple[Any, str]:
        out = io.StringIO()
        with following(Console(file=out, **options), tmp_path, quiet=quiet) as observe:
            if observe:
                observe(ReadingProgress(5, 1, "a.txt"))
        return type(observe), out.getvalue()

    kind, text = told(force_terminal=True)
    assert kind is ProgressView
    assert "1 of 5" in text
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert told(force_terminal=True, quiet=True) == (type(None), "")
    assert told(force_terminal=False) == (Lines, "")
    assert told(force_terminal=True, _environ={"TERM": "dumb"}) == (Lines, "")


@pytest.mark.program
def test_an_observer_is_told_of_files_chunks_and_what_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "COMMIT_AT", 2)
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("a", "b", "d"):
        (docs / f"{name}.txt").write_text(f"the pump {name}")
    (docs / "c.txt").write_bytes(b"\0" * 10)
    told: list[ReadingProgress] = []
    counts: list[tuple[int, int]] = []
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as base:
        update(base, docs, observe=told.append, embedding=lambda *count: counts.append(count))
        steps = [(one.done, one.file, one.chunks, one.embedded, one.skipped, round(one.share, 2)) for one in told]
        assert steps == [
            (0, "a.txt", 0, 0, 0, 0.0), (1, "", 1, 0, 0, 0.0), (1, "b.txt", 1, 0, 0, 0.0), (2, "", 2, 0, 0, 0.0),
            (2, "", 2, 2, 0, 0.5), (2, "", 2, 2, 0, 0.5), (2, "c.txt", 2, 2, 0, 0.5), (3, "", 2, 2, 1, 0.75),
            (3, "d.txt", 2, 2, 1, 0.75), (4, "", 3, 2, 1, 0.75), (4, "", 3, 3, 1, 1.0), (4, "", 3, 3, 1, 1.0),
        ]  # fmt: skip
        assert counts == [(2, 2), (1, 1)]
        assert told[-1].latest is not None
        assert told[-1].latest.source_file == "c.txt"
        told.clear()
        update(base, docs, observe=told.append)
        assert (told[-1].done, told[-1].embedded, told[-1].share) == (4, 0, 1.0)


# Ctrl-C


def test_ctrl_c_interrupts_and_the_handler_is_left_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.program
@pytest.mark.skipif(sys.platform == "win32", reason="signals do not end processes there")
def test_a_second_ctrl_c_ends_the_process_at_once() -> None:
    program = """
import signal
from voicevault_retrievers.cli.live import interruptible
with interruptible():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        print("in good order", flush=True)
        signal.raise_signal(signal.SIGINT)
        print("never")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("in good order\n", "", -signal.SIGINT)
