"""Reads files in child processes with limits on time, memory and output.

Children are started as they are needed, one for each thread that reads, and kept for further files. A child that
exceeds a limit or crashes is killed, and the next file gets another. Answers are JSON whose fields are checked: nothing
that a child sends is run.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from voicevault_retrievers._support.checks import seconds_or_none, whole
from voicevault_retrievers._support.forks import reset_in_child
from voicevault_retrievers.documents import _reader_child
from voicevault_retrievers.documents._load import name_below, read_file
from voicevault_retrievers.documents._model import Document, Part
from voicevault_retrievers.errors import ConfigError, DocumentError, MissingExtraError

START_SECONDS = 60.0
"""How long a child may take to start and import the package."""

ANSWER_BYTES, MESSAGE_CHARS = 1 << 16, 4000
"""The most bytes of an answer without parts, where the limit of the output is lower, and characters of its message."""

POLLS = hasattr(select, "poll")
"""Whether a wait for a pipe can end by itself (not on Windows, where a thread kills the child)."""

_LONGEST_POLL = 2**31 - 1
_PROGRAM = _reader_child.__file__
_ERRORS = {kind.__name__: kind for kind in (ConfigError, DocumentError, MissingExtraError)}
_FIELDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "page_number": (int, type(None)),
    "section": (str, type(None)),
    "above": (list,),
    "body": (int,),
    "metadata": (dict,),
    "notes": (list,),
}
"""The types of the fields of a part."""


@dataclass(frozen=True)
class ReadingLimits:
    """Limits for the child process that reads a file; a file that exceeds one raises DocumentError.

    `seconds` is wall-clock time. `memory_bytes` is address space beyond what the child has before the file, and limited
    on Linux only. `output_bytes` is the text with its structure, as UTF-8. Raises ConfigError for a limit that is not
    positive.
    """

    seconds: float = 120.0
    memory_bytes: int = 2 << 30
    output_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        if seconds_or_none("seconds", self.seconds) is None:
            raise ConfigError("seconds is a number above 0, not None: limits=None reads without limits")
        whole("memory_bytes", self.memory_bytes)
        whole("output_bytes", self.output_bytes)


LIMITS = ReadingLimits()
"""The limits where none are given."""


class _Child:
    """A child process, for one thread at a time. `usable` is whether it can read another file."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise _unstarted("this program has no Python interpreter to start")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a file of this package
                [sys.executable, "-I", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True,  # Ctrl-C is for the parent
            )  # fmt: skip
        except OSError as error:
            raise _unstarted(str(error)) from error
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._killing = threading.Lock()
        self._deadline, self._expired = 0.0, False
        self._served = 0
        self.usable = True

    def answer(self, asked: Mapping[str, Any], limits: ReadingLimits) -> dict[str, Any] | None:
        """What the child says of a file; None where it has ended by itself before. Raises ConfigError like `load`."""
        self.usable = False
        if not self._served:
            self._start()
        request = {**asked, **asdict(limits)}
        with self._killed_after(limits.seconds):
            answer = self._asked(request, limits.output_bytes)
        if answer == {"end": True} and self._served:
            return None
        self._served += 1
        if answer is None:
            return self._death()
        self.usable = not self._expired and answer.keys() in ({"parts", "notes"}, {"error", "message", "quoted"})
        return answer

    def _start(self) -> None:
        with self._killed_after(START_SECONDS):
            answer = self._asked([os.path.abspath(one) for one in sys.path], ANSWER_BYTES) or {}
        if answer != {"ready": True}:
            self.end()
            raise _unstarted(str(answer.get("message", f"it ended with {self._process.returncode}")))

    def _asked(self, request: object, most: int) -> dict[str, Any] | None:
        """The answer to a request; None where the child dies."""
        data = json.dumps(request).encode()
        try:
            self._requests.write(struct.pack(">Q", len(data)) + data)
        except OSError:  # it died before
            return None
        head = self._read(8)
        size = struct.unpack(">Q", head)[0] if head else 0
        if size > max(most, ANSWER_BYTES):
            return {"limit": "output_bytes"}
        try:
            answer = json.loads(self._read(size).decode("utf-8", "surrogatepass")) if size else None
        except (ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else None

    def _read(self, size: int) -> bytes:
        """That many bytes; none where the child closes its answers before, or the time is over."""
        data = bytearray()
        while len(data) < size:
            if POLLS and not self._answers_in_time():
                self._expire()
            more = self._answers.read(min(size - len(data), 1 << 20))
            if not more:
                return b""
            data += more
        return bytes(data)

    def _answers_in_time(self) -> bool:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        left = max(0.0, self._deadline - time.monotonic())
        return bool(poll.poll(min(left * 1000, _LONGEST_POLL)))

    def _death(self) -> dict[str, Any]:
        """Why the child died during a file."""
        expired = self._expired
        self.end()
        code = self._process.returncode
        if expired or -code == getattr(signal, "SIGALRM", None):
            return {"limit": "seconds"}
        return {"died": next((one.name for one in signal.Signals if one == -code), f"exit code {code}")}

    @contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        self._deadline = time.monotonic() + seconds
        if POLLS:
            yield
            return
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        self._kill()

    def _kill(self) -> None:
        with self._killing:
            if self._process.poll() is not None:
                return
            if hasattr(os, "killpg"):  # with the processes that it may have started
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the process."""
        self.usable = False
        self._kill()
        self._process.wait()
        self._requests.close()
        self._answers.close()

    def disown(self) -> None:
        """In a fork of the parent: close the pipes, so that the child ends with its parent."""
        self._process.returncode = 0
        self._requests.close()
        self._answers.close()


class _Pool:
    """The children of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()

    def answer(self, asked: Mapping[str, Any], limits: ReadingLimits) -> dict[str, Any]:
        """What a child says of a file."""
        while True:
            child = self._take()
            try:
                answer = child.answer(asked, limits)
            finally:
                self._give_back(child)
            if answer is not None:
                return answer

    def _take(self) -> _Child:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                child = _Child()
                with self._lock:
                    self._all.add(child)
                return child
            if child.alive():
                return child
            self._give_back(child, usable=False)

    def _give_back(self, child: _Child, *, usable: bool = True) -> None:
        usable = usable and child.usable
        with self._lock:
            if usable:
                self._idle.append(child)
            else:
                self._all.discard(child)
        if not usable:
            child.end()

    def close(self) -> None:
        """End every child."""
        with self._lock:
            children, self._idle, self._all = self._all, [], set()
        for child in children:
            child.end()

    def forked(self) -> None:
        """In a fork: leave the children to the parent."""
        for child in self._all:
            child.disown()
        self._idle, self._all = [], set()
        self._lock = threading.Lock()  # another thread may have held the former one


_POOL = _Pool()
atexit.register(_POOL.close)
reset_in_child(_POOL, _Pool.forked)


def load(
    path: str | Path,
    *,
    root: str | Path | None = None,
    text_field: str | None = None,
    limits: ReadingLimits | None = LIMITS,
) -> Document:
    """Read a file by its suffix. `source_file` is its path below `root`, else its name. Parts without text are dropped.

    A part that is only a heading is joined to the next one. `text_field` is the field or column that is the text of a
    record in JSON and tables; without it, all fields are. A child process reads the file within `limits`, so that a
    hostile file harms nothing else; with None, this process reads it, which is for trusted files only.

    Raises DocumentError, with a remedy, for a file that cannot be read, exceeds a limit or has no text,
    MissingExtraError where its library is not installed, and ConfigError where the file is not below `root` or no child
    process starts.
    """
    path = Path(path)
    source_file = name_below(path, path.parent if root is None else Path(root))
    if limits is None:
        return read_file(path, source_file, text_field)
    asked = {"path": os.path.abspath(path), "source_file": source_file, "text_field": text_field}
    answer = _POOL.answer(asked, limits)
    try:
        if "parts" in answer:
            return Document(source_file, tuple(map(_part, answer["parts"])), _texts(answer["notes"]))
    except (TypeError, ValueError):
        answer = {}
    if "error" in answer:
        quoted = str(answer.get("quoted", ""))
        error = _ERRORS.get(str(answer["error"]), DocumentError)
        raise error(str(answer.get("message"))[:MESSAGE_CHARS]) from (RuntimeError(quoted) if quoted else None)
    raise DocumentError(f"{path.name} {_reason(answer, limits)}")


def _reason(answer: dict[str, Any], limits: ReadingLimits) -> str:
    said = {
        "seconds": f"is not read within {limits.seconds:g} s",
        "memory_bytes": f"takes more than {limits.memory_bytes / 2**20:g} MiB of memory to read",
        "output_bytes": f"has more than {limits.output_bytes / 2**20:g} MiB of text",
    }
    limit = str(answer.get("limit"))
    if limit in said:
        return f"{said[limit]}: divide it, or raise ReadingLimits.{limit} where you trust it"
    ended = answer.get("died", "its answer is none")
    return f"ended the process that read it ({ended}): it is damaged or made to do harm; get a copy from its source"


def _part(fields: Any) -> Part:
    """The part with these fields; TypeError or ValueError where they are not those of a part."""
    if not isinstance(fields, dict) or fields.keys() != _FIELDS.keys():
        raise ValueError(f"no part: {fields!r:.100}")
    wrong = [name for name, kinds in _FIELDS.items() if not isinstance(fields[name], kinds)]
    if wrong or not all(isinstance(value, str | int) for value in fields["metadata"].values()):
        raise ValueError(f"types of {wrong or 'metadata'}")
    return Part(**{**fields, "above": _texts(fields["above"]), "notes": _texts(fields["notes"])})


def _texts(values: Any) -> tuple[str, ...]:
    """The texts of a list; ValueError where it is no list of texts."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"no texts: {values!r:.100}")
    return tuple(values)


def _unstarted(reason: str) -> ConfigError:
    return ConfigError(
        f"the process that reads documents does not start ({reason}): limits=None reads files that you trust without it"
    )
