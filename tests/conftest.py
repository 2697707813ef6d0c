"""No test depends on how fast the machine is, on other tests or on their order; a CI run draws the same examples."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from hypothesis import HealthCheck, settings

from tests.docs.shared_runs import runs
from voicevault_retrievers.documents._reader import _POOL
from voicevault_retrievers.models.graph_model import GraphModel, LoadedGraph

for _profile, _examples in (("inner", 10), ("tests", 40), ("nightly", 1000)):
    settings.register_profile(
        _profile,
        deadline=None,
        max_examples=_examples,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize="CI" in os.environ,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))

# A thread that has never run an event loop gets one from `asyncio.get_event_loop`, which LlamaIndex calls and nobody
# closes: the first such test of a process would leave it to be found when another one runs.
asyncio.run(asyncio.sleep(0))

# A thread makes machine code beside the tests: numba's loggers would appear while pytest looks through all there are.
if find_spec("numba"):
    import_module("numba")

# Bases and engines sync their files after each change: they are in memory, where the system has enough of it.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own in it
ROOM = 4 << 30
"""Bytes that have to be free."""

if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Their first import starts programs: fc-list once on a machine, and before NumPy 2 lscpu.
import_module("numpy.testing")
if find_spec("matplotlib"):
    import_module("matplotlib.font_manager")

# Tests of Ctrl-C start programs, which would ignore it as well where this process was started in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

STARTING = ("browser", "program", "server", "weights")
"""The marks of what a test may start."""

SLOW = {
    **{"browser": "browser", "engines": "server", "docs": "program", "end_to_end": "program", "packaging": "program"},
    **{"faults": "thorough", "oracles": "thorough"},
}
"""The mark of a folder's tests, which `make test-fast` leaves out."""

THRESHOLD = 10_000
"""The garbage collector looks when so many objects are new, not hundreds: that took a tenth of the tests' time."""

SETTLED = 100
"""After so many tests, what has been loaded is left out of all that the garbage collector looks through."""
_TESTS = count()


def pytest_configure() -> None:
    """Before workers start: what a model's graph gave in one of them, no other computes."""
    runs()
    gc.disable()  # what is imported stays


def pytest_collection_finish() -> None:
    """From here on there is something to collect."""
    gc.set_threshold(THRESHOLD)
    gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """With TESTS_FAST, do not import the files of a folder none of whose tests would run."""
    ignored = "TESTS_FAST" in os.environ and collection_path.parent == Path(__file__).parent
    return True if ignored and collection_path.name in SLOW else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the folders that are slow."""
    for item in items:
        folder = item.path.relative_to(item.config.rootpath).parts[1]
        if folder in SLOW:
            item.add_marker(SLOW[folder])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Each test loads its own models; unmarked, it starts no program, server or browser and runs no model."""
    if next(_TESTS) % SETTLED == 0:
        gc.collect()
        gc.freeze()
    LoadedGraph._known = WeakValueDictionary()
    LoadedGraph._recent.clear()
    if any(map(item.get_closest_marker, STARTING)):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _refuse)
        patch.setattr(subprocess.Popen, "__del__", lambda _: None)
        patch.setattr(GraphModel, "_computed", _refuse)
        patch.setattr(_POOL, "answer", _refuse)  # of a child process that an earlier test may have started
        return (yield)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("this test starts a program or runs a model: mark it `program`, `server` or `weights`")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was skipped, for want of what."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", ())
    )
    said = "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"Skipped: {said or 'nothing'}")


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no application records searches: an earlier test of this process may have set up what does."""
    monkeypatch.setattr("voicevault_retrievers.core.telemetry.records", lambda: False)
