"""The writer of a process: takes the lock, commits edits in groups, merges segments in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias, TypeVar

from voicevault_retrievers._support.forks import reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core import metrics
from voicevault_retrievers.errors import RetrievalError, StorageError
from voicevault_retrievers.store.chroma import ChromaCopy
from voicevault_retrievers.store.commit import checked, commit, pending, replaced, seal, sweep, written
from voicevault_retrievers.store.compaction import Merged
from voicevault_retrievers.store.lock import Lock
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.store.wal import CommitRecord, set_aside

R = TypeVar("R")
Edit: TypeAlias = Callable[[Snapshot], tuple[CommitRecord, R]]
"""An edit, worked out against the snapshot that it changes: returns the record, and the caller's result."""

_logger = logging.getLogger(__name__)


class _Ticket:
    """An edit waiting for its commit."""

    def __init__(self, edit: Edit[Any]) -> None:
        self.edit = edit
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class CommitWriter:
    """Holds the last snapshot of a knowledge base, and commits changes to it.

    Threads share it. Edits that arrive during a commit are committed together by the next thread, with one flush. The
    first edit takes the lock and reads what others have committed; an edit that the disk refuses releases the lock, so
    that the next one reads again. A background thread merges segments that are too large to merge within a commit, one
    merge at a time; `close` waits for it.
    """

    def __init__(self, snapshot: Snapshot, wait: float) -> None:
        self.snapshot = snapshot
        self.wait = wait
        self._begin()
        reset_in_child(self, CommitWriter._begin)  # it has neither the lock nor the threads

    def _begin(self) -> None:
        self._lock: Lock | None = None
        self._mutex = Mutex()
        self._queue_mutex = Mutex()
        self._tend_mutex = Mutex()
        self._queue: list[_Ticket] = []
        self._tending: Thread | None = None
        self._merging: Lock | None = None
        self._busy: frozenset[str] = frozenset()
        self._number = 0
        vectors = self.snapshot.manifest.vectors
        self.chroma = ChromaCopy.at(self.snapshot.folder) if vectors == "chroma" else None

    def commit(self, edit: Edit[R]) -> R:
        """Carry out an edit, and return its result when it is on disk.

        Raises LockedError while another process writes, StorageError where the disk refuses, and what the edit raises.
        """
        ticket = _Ticket(edit)
        with self._queue_mutex:
            self._queue.append(ticket)
        try:
            with metrics.IngestClock("commit"), self._mutex:
                if not ticket.done:
                    self._carry_out()
        except BaseException:
            with self._queue_mutex:  # an edit whose caller has given up must not be committed
                self._queue = [other for other in self._queue if other is not ticket]
            raise
        if ticket.error is not None:
            raise ticket.error
        value: R = ticket.value
        metrics.committed(value)
        return value

    @contextmanager
    def holding(self) -> Iterator[Snapshot]:
        """Take the lock, if not held, before long work; yields the snapshot to be changed.

        An exception in the block releases the lock.
        """
        if not self._holds:  # with the lock held, do not wait for a running commit
            with self._mutex, self._writing():
                pass
        try:
            yield self.snapshot
        except BaseException:
            with self._mutex:
                self._release()
            raise

    def hold(self) -> None:
        """Take the lock, where it is not held."""
        with self.holding():
            pass

    def reload(self) -> bool:
        """Load what others have committed; returns whether there was anything."""
        with self._mutex:
            before = self.snapshot
            if not self._holds:  # while the lock is held, only this writer commits
                with reporting(before.folder, "read"):
                    self.snapshot = Snapshot.open(before.folder, before)
            return self.snapshot is not before

    def compact(self) -> None:
        """Merge all into one segment, without deleted chunks."""
        self.settle()
        with self._mutex, self._writing():
            self.snapshot = seal(self.snapshot, self._next, whole=True)
        self._tend()

    def close(self) -> None:
        """Release the lock, after the running merge."""
        self.settle()
        with self._mutex:
            self._release()

    def settle(self) -> None:
        """Wait for background work."""
        tending = self._tending
        if tending is not None:
            tending.join()

    def merge(self) -> bool:
        """Merge or rewrite segments, if due; returns whether it did. Commits go on meanwhile."""
        with self._mutex:
            lock = self._lock
            group = pending(self.snapshot) if self._holds else []
            if lock is None or not group:
                return False
            snapshot, number = self.snapshot, self._next
            self._merging, self._number = lock, number
            names = [snapshot.segments[place].entry.name for place in group]
            self._busy = frozenset((*names, f"seg-{number:06d}"))
        try:
            with reporting(snapshot.folder, "written"):
                checked(snapshot, group)
                merged = Merged([snapshot.sealed[place] for place in group])
                entry = written(snapshot.manifest, snapshot.folder, number, merged)
                with self._mutex:
                    if self._lock is not lock or not self._holds:  # another process may have written since
                        return False
                    self.snapshot = replaced(self.snapshot, merged, names, entry)
                    self._busy = frozenset()  # a commit may now remove the merged segments
                    sweep(snapshot.folder, self.snapshot.manifest)
        except BaseException:
            with self._mutex:
                self._busy = frozenset()
                if self._lock is lock:  # the commit may have succeeded: the next write reads again
                    self._release()
            raise
        finally:
            with self._mutex:
                self._merging, self._busy = None, frozenset()
                if self._lock is not lock:  # the lock was given up meanwhile
                    lock.release()
        return True

    def _carry_out(self) -> None:
        with self._queue_mutex:
            tickets, self._queue = self._queue, []
        try:
            with self._writing():
                self._commit(tickets)
        except BaseException as error:
            said = error if isinstance(error, Exception) else RuntimeError(f"the thread that wrote ended: {error!r}")
            for ticket in tickets:
                ticket.error = ticket.error or said
            raise
        finally:
            for ticket in tickets:
                ticket.done = True

    def _commit(self, tickets: list[_Ticket]) -> None:
        before = after = self.snapshot
        records: list[CommitRecord] = []
        for ticket in tickets:
            try:
                record, ticket.value = ticket.edit(after)
            except Exception as error:  # noqa: BLE001  # raised to the edit's own caller; the other edits go on
                ticket.error = error
                continue
            if record:
                records.append(record)
                after = after.after([record])
        if records:
            self.snapshot = commit(before, after, records, self._next, self._busy)
            self._tend_soon()

    @property
    def _holds(self) -> bool:
        lock = self._lock
        return lock is not None and lock.held

    @property
    def _next(self) -> int:
        """An unused number for new files; `_number` is that of the last merge."""
        return max(self._number, self.snapshot.manifest.generation) + 1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        folder = self.snapshot.folder
        try:
            with reporting(folder, "written"):
                if not self._holds:
                    self._take(folder)
                yield
        except BaseException:
            self._release()
            raise

    def _take(self, folder: Path) -> None:
        self._release()
        self.snapshot = Snapshot.open(folder, self.snapshot)  # create no lock file where the base is gone
        self._lock = self._merging if self._merging and self._merging.held else Lock(folder / "lock", self.wait)
        self.snapshot = Snapshot.open(folder, self.snapshot)
        set_aside(folder / self.snapshot.manifest.log, self.snapshot.end)
        sweep(folder, self.snapshot.manifest, self._busy)
        self._tend_soon()

    def _release(self) -> None:
        """Release the lock; a running merge keeps it, so that no other process writes meanwhile, and releases it."""
        lock, self._lock = self._lock, None
        if lock is not None and lock is not self._merging:
            lock.release()

    def follow(self) -> bool:
        """Bring Chroma up to the present segments; returns whether there was anything to do."""
        with self._mutex:
            lock, snapshot = self._lock, self.snapshot
            if self.chroma is None or not self._holds or self.chroma.in_step(snapshot):
                return False
        with reporting(snapshot.folder, "written"):
            self.chroma.follow(snapshot, lambda: self._lock is lock and self._holds)
        return True

    def _tend_soon(self) -> None:
        tending = self._tending is not None and self._tending.is_alive()
        if not tending and (pending(self.snapshot) or (self.chroma and not self.chroma.in_step(self.snapshot))):
            thread = Thread(target=self._tend, name="voicevault-tend", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # interpreter exit, or too many threads: the next write tries again
                _logger.warning("segments of %s are not tended now: %s", self.snapshot.folder, error)
            else:
                self._tending = thread

    def _tend(self) -> None:
        try:
            with self._tend_mutex:
                while self.merge() or self.follow():
                    pass
        except (RetrievalError, OSError) as error:  # nothing is lost: segments and Chroma stay as they are
            _logger.warning("segments of %s could not be tended: %s", self.snapshot.folder, error)


@contextmanager
def reporting(folder: Path, done: str) -> Iterator[None]:
    """Turn OSError into a StorageError that says what to do."""
    try:
        yield
    except RetrievalError:
        raise
    except OSError as error:
        raise StorageError(
            f"knowledge base {folder.name!r} cannot be {done} ({error}): see to space and permissions in "
            f"{folder.parent}, and try again; what was committed before stands"
        ) from error
