"""Daemon threads for calls that may hang.

`ThreadPoolExecutor` and asyncio's default executor join their threads at exit, so one hung call keeps the process
alive. These threads are never joined: a call past its deadline is abandoned, and its late answer is dropped.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_THREADS = 64
RESERVED = 4
"""Threads that each group of calls has where all others are taken, so that what hangs elsewhere does not stop it."""
IDLE_SECONDS = 30.0

_inside: ContextVar[bool] = ContextVar("voicevault_inside_worker", default=False)


@dataclass(eq=False)
class Task:
    """One call handed to a worker."""

    function: Callable[[], Any]
    done: Callable[[Any], None]
    nested: bool
    group: Hashable = None
    reserved: bool = False
    state: Literal["waiting", "running", "ended"] = "waiting"
    abandoned: bool = False
    release: Callable[[], None] = lambda: None
    context: Any = field(default_factory=copy_context)

    def execute(self) -> None:
        """Run in the caller's context and hand over the value, or the exception."""
        try:
            value = self.context.run(self._inside)
        except BaseException as error:  # noqa: BLE001 - handed to the driver, which raises it in the caller's thread
            value = error
        self.done(value)

    def _inside(self) -> Any:
        _inside.set(True)
        return self.function()


class Workers:
    """At most `limit` threads, not counting abandoned ones, those of calls made from inside a call, and reserved ones.

    Calls of a group (a channel, a stage) that find all threads taken get up to `reserved` more.
    """

    def __init__(self, limit: int = MAX_THREADS, reserved: int = RESERVED) -> None:
        self.limit = limit
        self.reserved = reserved
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._idle = 0
        self._counted = 0
        self._running: Counter[Hashable] = Counter()

    def submit(self, function: Callable[[], Any], done: Callable[[Any], None], group: Hashable = None) -> Task:
        """Run `function` soon and call `done` with its value or exception.

        `done` is called even for an abandoned task: dropping a late answer is the receiver's part.
        """
        task = Task(function, done, nested=_inside.get(), group=group)
        with self._changed:
            if task.nested:
                task.state = "running"
                self._thread(task)
            else:
                self._waiting.append(task)
                try:
                    self._staff()
                except RuntimeError:  # no further thread can be started
                    self._waiting.remove(task)
                    raise
        return task

    def abandon(self, task: Task, release: Callable[[], None]) -> bool:
        """Stop counting on a task; true when it runs on all the same, and then `release` is called at its end.

        One not yet started never starts; a running one frees its place.
        """
        with self._changed:
            if task.state == "running" and not task.abandoned:
                task.abandoned = True
                task.release = release
                if not task.nested:
                    self._left(task)
                    self._counted -= not task.reserved
                    self._staff()
                return True
        self.drop(task)
        return False

    def drop(self, task: Task) -> None:
        """See that a task not yet started never starts; a running one ends in its place."""
        with self._changed:
            if task.state == "waiting":
                self._waiting.remove(task)
                task.state = "ended"

    def _staff(self) -> None:
        """See that somebody takes what waits (the lock is held)."""
        if self._idle >= len(self._waiting):
            self._changed.notify(len(self._waiting))
        elif self._counted < self.limit:
            self._thread(None)
            self._counted += 1
        elif (task := self._reserve()) is not None:
            self._thread(task)

    def _reserve(self) -> Task | None:
        """The first task that waits of a group with fewer than `reserved` running, taken (the lock is held)."""
        task = self._entitled()
        if task is not None:
            task.reserved = True
            self._begin(task)
        return task

    def _entitled(self) -> Task | None:
        return next((task for task in self._waiting if self._running[task.group] < self.reserved), None)

    def _begin(self, task: Task) -> None:
        self._waiting.remove(task)
        task.state = "running"
        self._running[task.group] += 1

    def _left(self, task: Task) -> None:
        """Note that a task of a group runs no more, or is not counted on (the lock is held)."""
        self._running[task.group] -= 1
        if not self._running[task.group]:
            del self._running[task.group]

    def _thread(self, first: Task | None) -> None:
        threading.Thread(target=self._work, args=(first,), name="voicevault-worker", daemon=True).start()

    def _work(self, first: Task | None) -> None:
        """Run one nested task, reserved ones as long as there are any, or whatever comes until nothing comes."""
        if first is not None:
            while first is not None:
                self._run(first)
                with self._changed:
                    first = None if first.nested or first.abandoned else self._reserve()
            return
        while (task := self._take()) is not None:
            self._run(task)
            if task.abandoned:
                return
            del task  # or an idle worker would keep what it gave

    def _run(self, task: Task) -> None:
        task.execute()
        with self._changed:
            task.state = "ended"
            if not task.nested and not task.abandoned:
                self._left(task)
        task.release()

    def _take(self) -> Task | None:
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: self._waiting, timeout=IDLE_SECONDS)
            self._idle -= 1
            if not found:
                self._counted -= 1
                return None
            task = self._entitled() or self._waiting[0]
            self._begin(task)
            return task


WORKERS = Workers()
COMPUTING = Workers(limit=os.cpu_count() or 1, reserved=0)
"""For calls that do nothing but compute: more threads than cores would only keep an event loop from its turn."""
if hasattr(os, "register_at_fork"):
    for workers in (WORKERS, COMPUTING):
        os.register_at_fork(after_in_child=workers._reset)
