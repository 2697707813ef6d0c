"""Relevance judgements by people: an append-only file of JSON Lines, and its export as questions and qrels."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.errors import ConfigError, StorageError
from voicevault_retrievers.store import disk

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judgment:
    """A judgement of a chunk as a hit for a query: grade 1 is relevant, 0 is not, None withdraws the judgement.

    `id` is the chunk's own in its base `kb`.
    """

    query: str
    kb: str
    id: str
    grade: int | None

    def __post_init__(self) -> None:
        for name in ("query", "kb", "id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"a judgement's {name} is a text that is not empty, not {value!r}")
        if self.grade not in (0, 1, None) or isinstance(self.grade, bool | float):
            raise ConfigError(f"a judgement's grade is 1, 0 or null, not {self.grade!r}")
        object.__setattr__(self, "query", self.query.strip())


class Judgments:
    """The judgements in a file, which need not exist yet; each is on disk when `put` returns.

    Lines are never rewritten: of two lines about the same hit the later counts. Lines that another process appends are
    read too. Incomplete lines, such as a crash leaves at the end, are left out, and listed in `skipped`. Threads share
    one object. Raises StorageError where the file cannot be read or written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.skipped: list[int] = []
        """The numbers of invalid lines, from 1."""
        self._mutex = Mutex()
        self._forget()
        self._read()

    def grade(self, query: str, kb: str, chunk_id: str) -> int | None:
        """The present grade of a chunk as a hit for a query; None where there is none, or it was withdrawn."""
        with self._mutex:
            self._read()
            return self._grades.get((query.strip(), kb, chunk_id))

    def of(self, *, query: str | None = None, kb: str | None = None) -> list[Judgment]:
        """The present judgements, optionally of one query or base, in the order in which they were made."""
        with self._mutex:
            self._read()
            standing = [Judgment(*key, grade) for key, grade in self._grades.items()]
        wanted = None if query is None else query.strip()
        return [one for one in standing if wanted in (None, one.query) and kb in (None, one.kb)]

    def put(self, judgment: Judgment) -> int:
        """Store a judgement; returns the number of present judgements."""
        line = json.dumps(asdict(judgment)).encode() + b"\n"
        with self._mutex:
            self._read()
            try:
                self._append(line)
            except OSError as error:
                raise StorageError(error.errno, f"the judgement cannot be kept: {error.strerror}", self.path) from error
            self._read()
            return len(self._grades)

    def _append(self, line: bytes) -> None:
        disk.make_folders(self.path.parent)
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # Starts a new line after an incomplete one; a single call, so that no other process writes in between.
            whole = b"\n" + line if self._torn else line
            if os.write(descriptor, whole) != len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            disk.flush_folder(self.path.parent)

    def _forget(self) -> None:
        self._grades: dict[tuple[str, str, str], int] = {}
        self._end = self._lines = 0
        self._file: int | None = None
        self._torn = False
        self.skipped.clear()

    def _read(self) -> None:
        """Read the lines appended since the last read."""
        try:
            now = self.path.stat()
            if now.st_ino != self._file or now.st_size < self._end:  # the file was replaced
                self._forget()
            if now.st_size == self._end:
                return
            with self.path.open("rb") as file:
                self._file = os.fstat(file.fileno()).st_ino
                file.seek(self._end)
                text = file.read()
        except FileNotFoundError:
            self._forget()
            return
        except OSError as error:
            raise StorageError(error.errno, f"judgements cannot be read: {error.strerror}", self.path) from error
        *lines, rest = text.split(b"\n")
        self._torn = bool(rest)
        self._end += len(text) - len(rest)
        for line in lines:
            self._lines += 1
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            one = Judgment(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            if line.strip():
                self.skipped.append(self._lines)
                _logger.warning("%s: line %d is no judgement, and is left out", self.path, self._lines)
            return
        key = one.query, one.kb, one.id
        self._grades.pop(key, None)
        if one.grade is not None:
            self._grades[key] = one.grade


def queries_file(judgments: Iterable[Judgment]) -> str:
    """The judged queries, each once, in the format of `load_questions`: JSON Lines of `_id` and `text`."""
    texts = dict.fromkeys(one.query for one in judgments)
    lines = [json.dumps({"_id": query_id(text), "text": text}, ensure_ascii=False) for text in texts]
    return "".join(f"{line}\n" for line in lines)


def qrels_file(judgments: Iterable[Judgment]) -> str:
    """The grades in the format of `load_qrels`: BEIR's TSV. ConfigError for an id that the format cannot hold."""
    rows = ["query-id\tcorpus-id\tscore"]
    for one in judgments:
        if one.id != one.id.strip() or any(mark in one.id for mark in "\t\n"):
            raise ConfigError(
                f"qrels cannot hold the chunk id {one.id!r}: it has a tab, a line's end or space around it"
            )
        rows.append(f"{query_id(one.query)}\t{one.id}\t{one.grade}")
    return "".join(f"{row}\n" for row in rows)


def query_id(text: str) -> str:
    """The id of a query in an export, computed from its text alone, so that exports are compatible."""
    return f"q-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
