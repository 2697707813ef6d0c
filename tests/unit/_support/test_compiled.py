"""Machine code is made beside the program: no search waits for it, and what cannot be made is done without."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from voicevault_retrievers._support.compiled import Beside, installed, kind

FIRST = """
import sys
from voicevault_retrievers import BM25, Chunk
from voicevault_retrievers.lexical.index import COMPILED_FROM
chunks = [Chunk(f"c{at:06}", " ".join(f"w{(at * step) % 997}" for step in range(1, 41))) for at in range(6_000)]
words = BM25.from_chunks(chunks, backend="numpy")
index = type(words.index)(words.index.segments)  # "auto", as an opened knowledge base has it
assert index.postings >= COMPILED_FROM, index.postings
words = BM25(index)
found = words.search("w1 w2 w3")
assert "numba" not in sys.modules, "the first search has imported a compiler"
from voicevault_retrievers._support.compiled import BESIDE
while not BESIDE._ready:
    assert words.search("w1 w2 w3") == found
    BESIDE.wait(0.05)
assert words.search("w1 w2 w3") == found
print("done", "numba" in sys.modules)
"""

QUIET = """
import sys, types, warnings
import colorama, numba  # which marks its messages up by colorama, where it is installed
numba.njit(lambda number: number + 1)(1)  # imports what it needs: modules may change filters while they are imported
touched = []
class Watched(types.ModuleType):
    def __setattr__(self, name, value):
        if name in ("stdout", "stderr", "filters", "showwarning", "_showwarnmsg_impl"):
            touched.append((self.__name__, name))
        super().__setattr__(name, value)
sys.__class__ = warnings.__class__ = Watched
from voicevault_retrievers._support.compiled import Beside, compiled
def total(numbers):
    kept = [0]
    for number in numbers:
        kept.append(number)
    return sum(kept)
def make():
    assert compiled(total)(np.arange(4)) == 6
import numpy as np
beside = Beside()
beside.ready("total", [make], 0)
beside.wait(120)
assert beside.ready("total", [make], 0)
print(touched)
"""


@pytest.mark.program
@pytest.mark.skipif(not installed(), reason="numba is not installed")
def test_code_is_made_without_touching_the_streams_and_the_warning_filters_of_the_process(tmp_path: Path) -> None:
    """Both are one for all threads: an application's `redirect_stdout` and `catch_warnings` hold meanwhile."""
    tmp_path.joinpath("quiet.py").write_text(QUIET)
    command = [sys.executable, str(tmp_path / "quiet.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (ran.returncode, ran.stdout.split()) == (0, ["[]"]), ran.stdout + ran.stderr


@pytest.mark.program
@pytest.mark.skipif(not installed(), reason="numba is not installed")
def test_the_first_search_of_a_process_compiles_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False, timeout=300)
    assert (ran.returncode, ran.stdout.split()) == (0, ["done", "True"]), ran.stderr


def test_code_is_made_once_after_some_asks_in_another_thread() -> None:
    beside, made = Beside(), list[str]()
    steps = [lambda: made.append(threading.current_thread().name), lambda: made.append("second")]
    assert [beside.ready("loops", steps, 2) for _ in range(3)] == [False] * 3
    beside.wait(10)
    assert made == ["voicevault-compiler", "second"]
    assert beside.ready("loops", steps, 2)
    beside.wait(10)
    assert len(made) == 2
    assert not beside.ready("others", steps, 2)


def test_what_cannot_be_made_is_said_and_never_ready(caplog: pytest.LogCaptureFixture) -> None:
    beside = Beside()

    def broken() -> None:
        raise RuntimeError("no such instruction")

    with caplog.at_level(logging.WARNING):
        assert not beside.ready("loops", [broken], 0)
        beside.wait(10)
        assert [beside.ready("loops", [broken], 0) for _ in range(3)] == [False] * 3
        beside.wait(10)
    (record,) = caplog.records
    assert "numpy searches instead" in record.message
    assert "RuntimeError" in record.message
    assert not beside.ready("others", [int], 0)
    beside.wait(10)
    assert beside.ready("others", [int], 0)


def test_arrays_that_may_be_written_to_are_of_another_kind() -> None:
    own, held = np.zeros(3, np.uint16), np.zeros(3, np.uint16)
    held.setflags(write=False)
    assert kind([own]) == kind([np.ones(5, np.uint16)])
    assert len({kind([own]), kind([held]), kind([own.astype(np.uint32)]), kind([own[::2]])}) == 4
