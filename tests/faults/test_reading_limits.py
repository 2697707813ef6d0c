"""Documents are read in child processes: what a hostile one can do, and what becomes of the child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.helpers import HashEmbedder, until
from voicevault_retrievers.documents import LIMITS, Part, ReadingLimits, _html, _reader, load, read
from voicevault_retrievers.errors import ConfigError, DocumentError, MissingExtraError, safe_message
from voicevault_retrievers.store import KnowledgeBase, update

pytestmark = pytest.mark.program


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_reader._Pool]:
    """Children of this test alone; it runs in a folder of its own."""
    own = _reader._Pool()
    monkeypatch.setattr(_reader, "_POOL", own)
    monkeypatch.chdir(tmp_path)
    yield own
    own.close()


def written(name: str, content: str | bytes) -> Path:
    path = Path(name)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pids(pool: _reader._Pool) -> list[int]:
    return [child._process.pid for child in pool._idle]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


STANDIN = """
import json, os, signal, struct, sys, time
def receive():
    head = sys.stdin.buffer.read(8)
    return head and json.loads(sys.stdin.buffer.read(*struct.unpack(">Q", head)))
def send(data):
    sys.stdout.buffer.write(struct.pack(">Q", len(data)) + data)
    sys.stdout.buffer.flush()
receive()
send(b'{"ready": true}')
asked = receive()
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str, head: str = STANDIN) -> None:
    """Children run this program instead of the one that reads files, as one that was taken over could."""
    monkeypatch.setattr(_reader, "_PROGRAM", str(written("program.py", head + program).resolve()))


# What the parent does about a child that misbehaves


def test_a_child_that_exceeds_its_time_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, pool: _reader._Pool
) -> None:
    real = _reader._PROGRAM
    stand_in(monkeypatch, "open('pid', 'w').write(str(os.getpid()))\nwhile True: pass")
    with pytest.raises(DocumentError, match=r"a.txt is not read within 0.2 s: .*raise ReadingLimits.seconds"):
        load(written("a.txt", "text"), limits=ReadingLimits(seconds=0.2))
    assert pool._all == set()
    monkeypatch.setattr(_reader, "_PROGRAM", real)
    assert load("a.txt").parts == (Part("text"),)


ANSWERS = {
    "nothing": "",
    "exit": "sys.exit(3)",
    "crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "no json": "send(b'{')",
    "a pickle": "send(__import__('pickle').dumps([]))",
    "a number": "send(b'5')",
    "an empty message": "send(b'')",
    "half a message": "sys.stdout.buffer.write(struct.pack('>Q', 100) + b'{')",
    "deep": "send(b'[' * 60000)",
    "another object": "send(b'{\"a\": 1}')",
    "an end": "send(b'{\"end\": true}')",
    "an odd limit": "send(b'{\"limit\": []}')",
    "parts that are a number": "send(b'{\"parts\": 1}')",
    "a part that is a number": "send(b'{\"parts\": [1]}')",
    "a part without fields": "send(b'{\"parts\": [{}]}')",
    "a part of other types": """send(json.dumps({"parts": [dict(text=1, page_number=None, section=None, above=[],
                                                             body=0)]}).encode())""",
    "headings of other types": """send(json.dumps({"parts": [dict(text="", page_number=None, section=None, above=[1],
                                                               body=0)]}).encode())""",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_names_the_file_and_ends_the_child(
    monkeypatch: pytest.MonkeyPatch, pool: _reader._Pool, name: str
) -> None:
    stand_in(monkeypatch, ANSWERS[name])
    with pytest.raises(DocumentError, match=r"a.txt ended the process that read it \(.*get a copy from its source"):
        load(written("a.txt", "text"))
    assert pool._all == set() or name.startswith(("part", "a part", "headings"))


def test_the_signal_that_ended_a_child_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, ANSWERS["crash"])
    with pytest.raises(DocumentError, match="SIGSEGV"):
        load(written("a.txt", "text"))


def test_an_answer_over_the_limit_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "sys.stdout.buffer.write(struct.pack('>Q', 1 << 60) + b' ' * (1 << 20))")
    with pytest.raises(DocumentError, match=r"a.txt has more than 1 MiB of text: .*ReadingLimits.output_bytes"):
        load(written("a.txt", "text"), limits=ReadingLimits(output_bytes=1 << 20))


def test_an_error_is_rebuilt_from_a_table_and_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, 'send(b\'{"error": "SystemExit", "message": "x", "quoted": ""}\')')
    with pytest.raises(DocumentError, match=r"^x$"):
        load(written("a.txt", "text"))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit(7)", "ended with 7"),
        (STANDIN.replace("true", "false"), "ended with"),
    ],
)
def test_a_child_that_does_not_start_is_not_the_fault_of_a_file(
    monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    stand_in(monkeypatch, program, head="")
    written("a.txt", "text")
    with pytest.raises(ConfigError, match=rf"does not start \(.*{said}.*limits=None"):
        read(["a.txt"])
    assert read(["a.txt"], limits=None).files == 1


def test_a_program_without_an_interpreter_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigError, match=r"no Python interpreter to start.*limits=None"):
        load(written("a.txt", "text"))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ConfigError, match="No such file"):
        load("a.txt")


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"seconds": None}, {"memory_bytes": 0}, {"output_bytes": 1.5}])
def test_a_limit_is_positive(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ReadingLimits(**limits)


# What a child says is what this process would say


def test_the_fields_that_a_child_sends_are_those_of_a_part() -> None:
    assert set(_reader._FIELDS) == {field.name for field in fields(Part)}


def test_a_child_gives_what_this_process_gives(tmp_path: Path) -> None:
    page = "<title>T</title><h1>A</h1>one<h2>B</h2>\U0001f600 &amp; two"
    path = written("päge.html", page)
    assert load(path, root=tmp_path) == load(path, root=tmp_path, limits=None)


@pytest.mark.parametrize("limits", [LIMITS, None], ids=["child", "here"])
def test_a_parsers_message_is_quoted_and_known_as_a_quotation(limits: ReadingLimits | None) -> None:
    written("empty.docx", b"PK\x05\x06" + bytes(18))
    with pytest.raises(DocumentError, match=r"is damaged or cut short \(KeyError\(.*Content_Types") as raised:
        load("empty.docx", limits=limits)
    assert "Content_Types" not in safe_message(raised.value)


def test_a_library_that_is_not_installed_is_an_error_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("modules").mkdir()
    written("modules/bs4.py", "raise ModuleNotFoundError('no bs4', name='bs4')")
    monkeypatch.syspath_prepend(Path("modules").resolve())
    with pytest.raises(MissingExtraError, match=r"bs4 is needed here.*\[documents\]"):
        read([written("a.html", "<p>x")])


# Hostile files


def test_memory_is_limited_and_the_next_file_is_read(pool: _reader._Pool) -> None:
    written("much.html", "<p>" + "<b>x</b>" * 40_000)
    with pytest.raises(DocumentError, match=r"much.html takes more than 32 MiB of memory.*ReadingLimits.memory_bytes"):
        load("much.html", limits=ReadingLimits(memory_bytes=32 << 20))
    assert pool._all == set()
    assert load(written("a.txt", "text")).parts == (Part("text"),)


def test_output_is_limited_and_the_child_stays(pool: _reader._Pool) -> None:
    with pytest.raises(DocumentError, match=r"a.txt has more than 0.5 MiB of text"):
        load(written("a.txt", "word " * 200_000), limits=ReadingLimits(output_bytes=1 << 19))


def test_tags_inside_each_other_are_limited_by_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(written("deep.html", "<div>" * 20_000 + "deep")).parts == (Part("deep"),)
    written("slow.html", "<div>" * 15_000 + "x<br>" * 15_000)
    with pytest.raises(DocumentError, match=r"slow.html nests its tags too deeply \(150\d\d levels\)"):
        load("slow.html")
    monkeypatch.setattr(_html, "MAX_CLIMBED", 100)
    with pytest.raises(DocumentError, match="nests its tags too deeply"):
        load(written("few.html", "<b>" * 20 + "x<br>" * 20), limits=None)


def test_a_page_of_attributes_is_refused_unparsed() -> None:
    written("many.html", "<p " + "a " * 2_000_001 + ">x")
    with pytest.raises(DocumentError, match=r"many.html has too many attributes"):
        load("many.html")


@pytest.mark.parametrize("checksum", [False, True], ids=["wrong checksum", "checksum of what is declared"])
def test_a_docx_whose_directory_lies_is_refused_before_it_is_unpacked(checksum: bool) -> None:
    body = bytes(64 << 20)
    with zipfile.ZipFile("liar.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", body)
        info = archive.infolist()[0]
        info.file_size = 100
        if checksum:
            info.CRC = zipfile.crc32(bytes(100))
    with pytest.raises(DocumentError, match=r"liar.docx is damaged.*larger than the 100 bytes that it declares"):
        load("liar.docx", limits=ReadingLimits(memory_bytes=48 << 20))


def test_a_docx_packed_in_another_way_is_refused() -> None:
    with zipfile.ZipFile("odd.docx", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("word/document.xml", bytes(100))
    with pytest.raises(DocumentError, match=r"odd.docx packs word/document.xml in a way that no DOCX does"):
        load("odd.docx")


def test_of_many_files_the_bad_ones_are_named_and_the_others_indexed(tmp_path: Path, pool: _reader._Pool) -> None:
    Path("files").mkdir()
    for number in range(40):
        written(f"files/{number:02}.txt", f"the pump {number}")
    written("files/07.html", "<div>" * 15_000 + "x<br>" * 15_000)
    written("files/08.html", "<p>" + "<b>x</b>" * 40_000)
    limits = ReadingLimits(memory_bytes=32 << 20)
    with KnowledgeBase.create("kb", root=tmp_path / "kbs", embedder=HashEmbedder()) as base:
        done = update(base, ["files"], limits=limits)
    assert done.read == 40
    assert [file.source_file for file in done.skipped] == ["07.html", "08.html"]


# The life of a child


def test_a_child_is_kept_for_further_files_and_replaced_when_it_was_killed(pool: _reader._Pool) -> None:
    path = written("a.txt", "text")
    load(path)
    first = pids(pool)
    load(path)
    assert pids(pool) == first
    os.kill(first[0], signal.SIGKILL)
    until(lambda: ended(first[0]))
    assert load(path).parts == (Part("text"),)
    assert len(pids(pool)) == 1
    assert pids(pool) != first


def test_a_child_that_was_idle_has_ended_and_is_replaced(monkeypatch: pytest.MonkeyPatch, pool: _reader._Pool) -> None:
    answer = 'send(b\'{"error": "DocumentError", "message": "x", "quoted": ""}\'); receive(); send(b\'{"end": true}\')'
    real = _reader._PROGRAM
    stand_in(monkeypatch, answer)
    path = written("a.txt", "text")
    with pytest.raises(DocumentError, match=r"^x$"):
        load(path)
    monkeypatch.setattr(_reader, "_PROGRAM", real)
    assert load(path).parts == (Part("text"),)


def test_eight_threads_read_at_a_time_each_from_a_child(pool: _reader._Pool) -> None:
    for number in range(8):
        written(f"{number}.txt", f"text {number}")
    start = Barrier(8)

    def texts(number: int) -> set[str]:
        start.wait()
        return {load(f"{number}.txt").parts[0].text for _ in range(10)}

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(texts, range(8))) == [{f"text {number}"} for number in range(8)]
    assert 1 <= len(pids(pool)) <= 8
    assert len(pool._all) == len(pool._idle)


PARENT = """
import os, sys
from voicevault_retrievers.documents import _reader, load
open("a.txt", "w").write("text")
load("a.txt")
print(_reader._POOL._idle[0]._process.pid, flush=True)
"""


def parent(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("end", ["", "sys.stdin.read()", "os._exit(0)"])
def test_a_child_ends_with_its_parent(end: str) -> None:
    with parent(end) as process:
        pid = int(line(process))
        if "stdin" in end:
            process.kill()
        process.communicate()
    until(lambda: ended(pid))


BUSY = """
_reader._PROGRAM = {program!r}
_reader._POOL.close()
try:
    load("a.txt")
except KeyboardInterrupt:
    print("interrupted", len(_reader._POOL._all), flush=True)
"""
NEVER = """
import importlib.util, itertools, os
spec = importlib.util.spec_from_file_location("child", {child!r})
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
def parts_of(path):
    open("pid", "w").write(str(os.getpid()) + "\\n")
    any(itertools.repeat(False))  # native code that never returns
child._loaders = lambda: parts_of
child.main()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux signals that a pipe was closed")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_busy_child_ends_with_its_parent_and_at_its_ctrl_c(how: signal.Signals) -> None:
    program = written("never.py", NEVER.format(child=_reader._PROGRAM)).resolve()
    with parent(BUSY.format(program=str(program))) as process:
        line(process)
        until(lambda: Path("pid").is_file() and Path("pid").read_text().endswith("\n"))
        pid = int(Path("pid").read_text())
        process.send_signal(how)
        out, err = process.communicate()
    assert (out, err) == ("interrupted 0\n" if how is signal.SIGINT else "", "")
    until(lambda: ended(pid))


FORK = """
child = os.fork()
if child == 0:
    with open("forked", "w") as file:
        load("a.txt")
        file.write(str(_reader._POOL._idle[0]._process.pid))
    os._exit(0)
_, status = os.waitpid(child, 0)
load("a.txt")
print(status, _reader._POOL._idle[0]._process.pid, open("forked").read(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_reads_with_a_child_of_its_own() -> None:
    with parent(FORK) as process:
        first = line(process)
        status, kept, own = line(process).split()
        _, err = process.communicate()
    assert (status, kept, err) == ("0", first, "")
    assert own != first
    until(lambda: ended(int(own)))
