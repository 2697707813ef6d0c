"""Stands between `store.disk` and the operating system: records its calls, refuses one, or ends the process at one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from voicevault_retrievers.store import disk

CHANGES = frozenset(["open", "write", "ftruncate", "fsync", "replace", "mkdir", "unlink", "rmdir"])
CALLS = CHANGES | {"lseek", "close"}

REFUSED = frozenset(["write", "ftruncate", "fsync", "replace", "mkdir"])
"""What a disk may refuse that is full or broken."""

Site = tuple[str, ...]
"""The functions of the store that led to a call, innermost first: the one in `disk`, and two that called it."""


class Event(NamedTuple):
    """A call that was made."""

    call: str
    arguments: tuple[Any, ...]
    result: Any
    site: Site


class System:
    """Stands for the module `os`; the calls of `disk` go through `__call__`, and no other is known."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name in CALLS:
            return partial(self, name, real)
        if callable(real):
            raise NotImplementedError(f"disk calls os.{name}, which tests/faults/disks.py does not know")
        return real

    def __call__(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        return real(*arguments)


class Recorder(System):
    """Keeps what was called; raises `refusal`, once, instead of a flush. Nothing is flushed, which saves time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.refusal: BaseException | None = None

    def __call__(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if name == "fsync" and self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        result = None if name == "fsync" else real(*arguments)
        if name == "write":
            arguments = (arguments[0], bytes(arguments[1][:result]))
        self.events.append(Event(name, arguments, result, site()))
        return result


class Unflushed(System):
    """Flushes nothing."""

    def __call__(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        return None if name == "fsync" else real(*arguments)


class Failing(System):
    """At its call number `at` among those of some names, counted from 0, does `harm` in its stead."""

    def __init__(self, at: int, harm: Callable[..., Any], names: frozenset[str] = CHANGES) -> None:
        self.left = at
        self.harm = harm
        self.names = names

    def __call__(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if name in self.names:
            self.left -= 1
            if self.left == -1:
                return self.harm(name, real, *arguments)
        return real(*arguments)

    @property
    def came(self) -> bool:
        """Whether there were so many calls."""
        return self.left < 0


def refuse(name: str, real: Callable[..., Any], *arguments: Any) -> None:
    """A write goes half through; a flush tells of an error, and what was written may or may not be there."""
    if name == "write":
        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
    number = errno.EIO if name == "fsync" else errno.ENOSPC
    raise OSError(number, os.strerror(number))


@contextmanager
def through(system: System) -> Iterator[None]:
    """`disk` has this for `os`."""
    disk.os = system  # type: ignore[assignment]  # a module's stand-in
    try:
        yield
    finally:
        disk.os = os


def site() -> Site:
    """Who calls: the function of `disk` by which the store came there, and those two of the store that called it."""
    folder, found = Path(disk.__file__).parent, list[str]()
    frame = sys._getframe(1)
    while frame.f_back is not None and len(found) < 3:
        path = Path(frame.f_code.co_filename)
        name = f"{path.stem}.{frame.f_code.co_name}"
        outer = Path(frame.f_back.f_code.co_filename)
        if path.parent == folder and not (path.stem == outer.stem == "disk") and "<" not in name:
            found.append(name)
        frame = frame.f_back
    return tuple(found)
