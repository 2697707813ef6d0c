"""Knowledge bases as they are at the time, for what serves them as long as it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.names import vacant
from voicevault_retrievers.structure.questions import COLLECTION

T = TypeVar("T")


class Present:
    """The knowledge base of a folder, opened when it is first asked for; threads share one.

    Where it was removed and another made in its place, that one is opened; a base that is given is only reloaded.
    """

    def __init__(self, given: Path | KnowledgeBase) -> None:
        self._given = given if isinstance(given, KnowledgeBase) else None
        self._folder = given if isinstance(given, Path) else given.path
        self._base = self._given
        self._mutex = Mutex()

    def base(self) -> KnowledgeBase | None:
        """The base with what was committed by now, None where there is none; raises what opening it does."""
        with self._mutex:
            if vacant(self._folder):
                self._base = self._given
                return None
            if self._base is not None:
                made = self._base.manifest.id
                self._base.reload()
                if self._base is self._given or self._base.manifest.id == made:
                    return self._base
            self._base = None
            self._base = KnowledgeBase.open(self._folder)
            return self._base


class Remade(Generic[T]):
    """What is made of things that change, and made anew when they have; threads share one."""

    def __init__(self) -> None:
        self._kept: tuple[object, T] | None = None
        self._mutex = Mutex()

    def now(self, state: object, make: Callable[[], T]) -> T:
        """What was made last, where the `state` is equal to that of then; else what `make` makes, or raises."""
        with self._mutex:
            if self._kept is None or self._kept[0] != state:
                self._kept = state, make()
            return self._kept[1]


def state_of(base: KnowledgeBase | None) -> object:
    """What is another when channels over a base have to be made anew: its commit, and that of its questions."""
    if base is None:
        return None
    asked = base.path / COLLECTION  # a base in the base's folder
    try:
        with os.scandir(asked) as files:
            told = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    except FileNotFoundError:  # there are none, or they are just being written: then the next look differs
        told = []
    return base.view().snapshot, told
