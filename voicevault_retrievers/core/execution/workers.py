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

from voicevault_retrievers._support.forks import reset_in_child

MAX_THREADS = 64
RESERVED = 4
"""The threads reserved for each group of calls, so that hanging calls of other groups do not stop it."""
IDLE_SECONDS = 30.0

_inside: ContextVar[bool] = ContextVar("voicevault_inside_worker", default=False)


@dataclass(eq=False)
class Task:
    """One call that a worker runs."""

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
        """Run in the caller's context, and deliver the value or the exception."""
        try:
            value = self.context.run(self._inside)
        except BaseException as error:  # noqa: BLE001 - delivered to the driver, which raises it in the caller's thread
            value = error
        self.done(value)

    def _inside(self) -> Any:
        _inside.set(True)
        return self.function()


class Workers:
    """A pool of at most `limit` threads, plus those of abandoned calls, nested calls and reservations.

    Where all threads are busy, each group of calls (a channel, a stage) may use up to `reserved` more.
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

        `done` is called even for an abandoned task; the receiver drops a late outcome.
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
        """Abandon a task. True where the task keeps running; `release` is then called when it ends.

        A task that has not started never starts; a running task frees its place in the pool.
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
        """Cancel a task that has not started. A running task keeps its place in the pool."""
        with self._changed:
            if task.state == "waiting":
                self._waiting.remove(task)
                task.state = "ended"

    def _staff(self) -> None:
        """Ensure that a thread takes the waiting tasks. Requires the lock."""
        if self._idle >= len(self._waiting):
            self._changed.notify(len(self._waiting))
        elif self._counted < self.limit:
            self._thread(None)
            self._counted += 1
        elif (task := self._reserve()) is not None:
            self._thread(task)

    def _reserve(self) -> Task | None:
        """Take the first waiting task of a group with fewer than `reserved` running tasks. Requires the lock."""
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
        """Record that a task of a group has ended or was abandoned. Requires the lock."""
        self._running[task.group] -= 1
        if not self._running[task.group]:
            del self._running[task.group]

    def _thread(self, first: Task | None) -> None:
        threading.Thread(target=self._work, args=(first,), name="voicevault-worker", daemon=True).start()

    def _work(self, first: Task | None) -> None:
        """Run one nested task, or reserved tasks while there are any, or any tasks until the thread idles too long."""
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
            del task  # an idle worker would keep the task's outcome alive

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
"""Workers for calls that only compute. More threads than cores would delay the event loop."""
for workers in (WORKERS, COMPUTING):
    reset_in_child(workers, Workers._reset)
