"""Removal of a knowledge base, refusing folders that are not one."""

from __future__ import annotations

import uuid
from pathlib import Path

from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.store import disk, manifest, wal
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.names import existing
from voicevault_retrievers.store.writer import reporting


def remove(base: str | Path, *, root: Path | str | None = None, wait: float = 0.0) -> None:
    """Remove a knowledge base with all that is in its folder, even a damaged one.

    Readers go on with what they have opened; nobody sees a partly removed base. `wait` is how many seconds to wait
    while another process writes. Raises ConfigError where nothing is there, and for a folder that is not a knowledge
    base or is a link; LockedError while another process writes, StorageError where the disk refuses.
    """
    folder = existing(base, root)
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link to {folder.resolve()}: remove the knowledge base there, and the link")
    if not _is_base(folder):
        raise ConfigError(f"{folder} is not a knowledge base, and nothing was removed: see what is in it")
    with reporting(folder, "removed"):
        lock = Lock(folder / "lock", wait)
        gone = folder.with_name(f".removed-{uuid.uuid4().hex}")
        try:
            disk.rename(folder, gone)
            disk.flush_folder(folder.parent)
        finally:
            lock.release()
        disk.remove(gone)


def _is_base(folder: Path) -> bool:
    """Whether the folder holds a manifest of this or another version, or a log."""
    try:
        manifest.read(folder)
    except IncompatibleIndexError:
        return True
    except (IndexDamagedError, OSError):
        return any(_begins(path) for path in folder.glob("log-*") if path.is_file())
    return True


def _begins(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(wal.MAGIC)) == wal.MAGIC
