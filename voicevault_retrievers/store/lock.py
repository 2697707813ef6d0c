"""One writer per knowledge base: a lock that the kernel frees when its process ends, however it ends."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from voicevault_retrievers.errors import ConfigError, LockedError


class Lock:
    """An exclusive lock on a file, held until `release`. The file stays, and holds the last writer's process id.

    Raises LockedError, naming the process, when it is held elsewhere, in this process too.
    """

    def __init__(self, path: Path) -> None:
        try:
            import fcntl
        except ImportError as error:
            raise ConfigError(
                "writing to a knowledge base needs the file locks of a POSIX system (the fcntl module), which is not "
                "here: write on Linux or macOS; reading works everywhere"
            ) from error
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise LockedError(
                f"{path.parent} is open for writing in process {holder}: close it there (KnowledgeBase.close), or "
                "wait; the lock ends with that process"
            ) from error
        self.release = weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
