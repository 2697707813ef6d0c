"""One writer per knowledge base: a file lock that the kernel releases when the process ends."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from voicevault_retrievers._support.forks import reset_in_child
from voicevault_retrievers.errors import ConfigError, IndexDamagedError, LockedError

_PAUSE = 0.02
"""Seconds between two tries while waiting."""


class Lock:
    """An exclusive lock on a file, held until `release`. The file stays, and holds the last writer's process id.

    While the lock is held elsewhere, in this process too, waits up to `wait` seconds, then raises LockedError, naming
    the process. Raises IndexDamagedError where the folder is removed meanwhile and no other replaces it. A process
    forked from this one does not hold the lock, nor keep it alive. The lock is lost once its file is gone (see `held`).
    """

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        self._path = path
        self._pid = os.getpid()
        self._open()
        deadline = time.monotonic() + wait
        try:
            while not self._taken():
                if time.monotonic() >= deadline:
                    raise self._refusal(path.parent, wait)
                time.sleep(_PAUSE)
                if not self.held:  # another file has replaced it
                    self.release()
                    self._reopen(deadline)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{self._pid}\n".encode(), 0)
        except BaseException:
            self.release()
            raise
        reset_in_child(self, lambda lock: lock.release())  # which leaves the parent's lock held

    @property
    def held(self) -> bool:
        """Whether this process holds the lock, on the file that is at the path now."""
        if self._pid != os.getpid() or not self.release.alive:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except OSError:  # the file is gone, or another thread has just released it
            return False

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self.release = weakref.finalize(self, _let_go, self._descriptor, self._pid)
        self.release.atexit = False  # the kernel releases it, after the last write of any thread

    def _reopen(self, deadline: float) -> None:
        """Open the file that replaced a removed one; where the folder is gone too, wait for a new one."""
        while True:
            try:
                return self._open()
            except FileNotFoundError:
                if time.monotonic() >= deadline:
                    raise IndexDamagedError(
                        f"{self._path.parent} was removed while its lock was waited for: create it anew"
                    ) from None
                time.sleep(_PAUSE)

    def _taken(self) -> bool:
        try:
            import fcntl
        except ImportError as error:
            raise ConfigError(
                "writing to a knowledge base needs the file locks of a POSIX system (the fcntl module), which is not "
                "here: write on Linux or macOS; reading works everywhere"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return self.held

    def _refusal(self, folder: Path, wait: float) -> LockedError:
        holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        waited = f", and {wait:g} s were not enough" if wait else ""
        return LockedError(
            f"{folder} is open for writing in process {holder}{waited}: close it there (KnowledgeBase.close), or wait "
            "longer (wait=seconds); the lock ends with that process"
        )


@contextmanager
def locked(path: Path, wait: float) -> Iterator[None]:
    """A block that holds the `Lock` on a file, whose folder is created where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock(path, wait)
    try:
        yield
    finally:
        lock.release()


def _let_go(descriptor: int, pid: int) -> None:
    """Unlock, which also unlocks for forked children, unless this process is such a child; and close."""
    if pid == os.getpid():
        with suppress(ImportError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
