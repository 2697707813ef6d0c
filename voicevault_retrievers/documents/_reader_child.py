"""Reads documents in a separate process, so that a hostile file can only hang, exhaust or crash that process.

The file is run by its path, so that it starts without importing the package. Requests come on the standard input and
answers go to the standard output, each as a length of 8 bytes (big-endian) and JSON. The first request is the import
path of the parent, and its answer `{"ready": true}`. Each further request names a file and its limits (`path`,
`source_file`, `text_field`, `seconds`, `memory_bytes`, `output_bytes`). Its answer has the `parts` and `notes`, or an
`error` by its class and `message`, or the `limit` that was exceeded. `{"end": true}` says that the process ends by
itself; it also ends with its parent.

Memory is limited on Linux only. Where the system has no interval timers (Windows), only the parent limits the time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

Answer: TypeAlias = dict[str, Any]

PACKAGE = "voicevault_retrievers"
IDLE_SECONDS = 60.0
"""How long the process waits for another file before it ends."""

GROWTH = 512 << 20
"""The process ends after a file that leaves its address space this many bytes larger than at the start."""

FILE_BYTES, OPEN_FILES = 16 << 20, 64
"""The most bytes in a file that a library writes (such as compiled code), and the most open files."""

GRACE_SECONDS = 5.0
"""How long after the time limit, which the parent watches, the process ends itself where it is still running."""

REQUESTS, POSIX = 0, os.name == "posix"

_NO_MEMORY = (MemoryError, SystemError)
"""What Python raises where memory has run out: also SystemError, for an exception that there was no memory for."""


def main() -> None:
    """Answer the parent until it closes the requests."""
    answers = os.dup(1)
    with open(os.devnull, "wb") as nowhere:  # what a library prints is no answer
        os.dup2(nowhere.fileno(), 1)
    modules = _receive()
    if modules is None:
        return
    sys.path[:] = modules
    try:
        read_file = _loaders()
    except Exception as error:  # noqa: BLE001 - whatever keeps the package from being imported, the parent says it
        _send(answers, {"error": "ConfigError", "message": f"no child process can import {PACKAGE}: {error!r}"})
        return
    _limit_process()
    size = _address_space()
    _send(answers, {"ready": True})
    while _waited() and (asked := _receive()) is not None:
        _send(answers, _answer(read_file, asked))
        if _address_space() > size + GROWTH:
            break
    with suppress(OSError):  # the parent may be gone
        _send(answers, {"end": True})


def _loaders() -> Callable[..., Any]:
    """The function that reads a file, without the modules of `documents` that need numpy, as loading it takes long."""
    package = ModuleType(f"{PACKAGE}.documents")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules[package.__name__] = package
    read_file: Callable[..., Any] = import_module(f"{PACKAGE}.documents._load").read_file
    return read_file


def _answer(read_file: Callable[..., Any], asked: dict[str, Any]) -> Answer | bytes:
    lift = _limit_memory(asked["memory_bytes"])
    try:
        try:
            with _limited(asked["seconds"] + GRACE_SECONDS):
                document = read_file(Path(asked["path"]), asked["source_file"], asked["text_field"])
                return _packed(document, asked["output_bytes"])
        finally:
            lift()
    except _NO_MEMORY:
        return {"limit": "memory_bytes"}
    except Exception as error:  # noqa: BLE001 - the parent raises it
        if isinstance(error.__cause__, _NO_MEMORY):
            return {"limit": "memory_bytes"}
        return {"error": type(error).__name__, "message": str(error), "quoted": _quoted(error)}


def _packed(document: Any, output_bytes: int) -> Answer | bytes:
    """The answer with the parts and notes of a document, in bytes."""
    if sum(len(part.text) for part in document.parts) <= output_bytes:
        data = _json({"parts": [vars(part) for part in document.parts], "notes": document.notes})
        if len(data) <= output_bytes:
            return data
    return {"limit": "output_bytes"}


def _quoted(error: BaseException) -> str:
    """What the message of an error quotes of an exception that caused it, which may be of the document."""
    cause = error.__cause__
    return next((said for said in (repr(cause), str(cause)) if cause and said in str(error)), "")


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _send(answers: int, answer: Answer | bytes) -> None:
    data = answer if isinstance(answer, bytes) else _json(answer)
    left = memoryview(struct.pack(">Q", len(data)) + data)
    while left:
        left = left[os.write(answers, left) :]


def _receive() -> Any:
    """The next request; None where the parent has closed them."""
    head = _read(8)
    return json.loads(_read(*struct.unpack(">Q", head))) if head else None


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(REQUESTS, size - len(data))
        if not more:
            return b""
        data += more
    return data


def _waited() -> bool:
    """Wait for a request; False after `IDLE_SECONDS`. On Windows, wait without a limit."""
    return not POSIX or bool(select.select([REQUESTS], [], [], IDLE_SECONDS)[0])


def _limit_process() -> None:
    """Limits for as long as the process runs, where the system has them."""
    with suppress(ImportError):
        import resource

        for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, FILE_BYTES),
                            (resource.RLIMIT_NOFILE, OPEN_FILES)):  # fmt: skip
            _, hard = resource.getrlimit(limit)
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (least, least))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """In the block, the process is ended after that time and with its parent."""
    if POSIX:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with _ending_with_parent():
            yield
    finally:
        if POSIX:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _ending_with_parent() -> Iterator[None]:
    """In the block, Linux ends the process when the requests are closed, even in native code that never returns."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import fcntl

    flags = fcntl.fcntl(REQUESTS, fcntl.F_GETFL)
    fcntl.fcntl(REQUESTS, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(REQUESTS, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(REQUESTS, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        if select.select([REQUESTS], [], [], 0)[0]:  # closed before; the parent sends nothing now
            os._exit(1)
        yield
    finally:
        fcntl.fcntl(REQUESTS, fcntl.F_SETFL, flags)


def _limit_memory(memory: int) -> Callable[[], object]:
    """Allow as many bytes as there are now and `memory` more, on Linux only. Returns what lifts it, without memory."""
    if not (size := _address_space()):
        return bool
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    lift = partial(resource.setrlimit, resource.RLIMIT_AS, (hard, hard))
    soft = size + memory
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    return lift


def _address_space() -> int:
    """The size of the address space in bytes; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    main()
