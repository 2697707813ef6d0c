"""Daemon threads for calls that may hang.

`ThreadPoolExecutor` and asyncio's default executor join their threads at exit, so one hung call keeps the process
alive. These threads are never joined: a call past its deadline is abandoned, and its late answer is dropped.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_THREADS = 64
IDLE_SECONDS = 30.0

_inside: ContextVar[bool] = ContextVar("voicevault_inside_worker", default=False)


@dataclass(eq=False)
class Task:
    """One call handed to a worker."""

    function: Callable[[], Any]
    done: Callable[[Any], None]
    nested: bool
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
    """At most `limit` threads, not counting abandoned ones and those of calls made from inside a call."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self.limit = limit
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._idle = 0
        self._counted = 0

    def submit(self, function: Callable[[], Any], done: Callable[[Any], None]) -> Task:
        """Run `function` soon and call `done` with its value or exception.

        `done` is called even for an abandoned task: dropping a late answer is the receiver's part.
        """
        task = Task(function, done, nested=_inside.get())
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
                    self._counted -= 1
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

    def _thread(self, first: Task | None) -> None:
        threading.Thread(target=self._work, args=(first,), name="voicevault-worker", daemon=True).start()

    def _work(self, nested: Task | None) -> None:
        """Run one nested task, or whatever comes until nothing has come for a while."""
        if nested is not None:
            self._run(nested)
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
        task.release()

    def _take(self) -> Task | None:
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: self._waiting, timeout=IDLE_SECONDS)
            self._idle -= 1
            if not found:
                self._counted -= 1
                return None
            task = self._waiting.popleft()
            task.state = "running"
            return task


WORKERS = Workers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS._reset)
