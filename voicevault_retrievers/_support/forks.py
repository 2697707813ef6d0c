"""Forked children, which share their parent's sockets and lack its threads.

`multiprocessing` forks on Linux up to Python 3.13, and so do servers that load an application before their workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

OTHERWISE = "use it only after the fork, or start processes by 'spawn' or 'forkserver' (multiprocessing.get_context)"
"""What to do where a forked child cannot use what its parent used."""

_users: dict[str, int] = {}
_resets: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_left: list[object] = []


def reset_in_child(holder: T, reset: Callable[[T], object]) -> None:
    """Have `reset(holder)` called in each forked child while the object lives. `reset` does not refer to it."""
    _resets[holder] = reset


def leave_to_parent(thing: object) -> None:
    """Keep an object for good: its end would close the parent's connections, or wait for threads of the parent."""
    _left.append(thing)


def used_by_parent(library: str) -> bool:
    """Whether this process was forked from one that used a library; else the library is used from now on."""
    return _users.setdefault(library, os.getpid()) != os.getpid()


def _forked() -> None:
    for holder, reset in list(_resets.items()):
        reset(holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
