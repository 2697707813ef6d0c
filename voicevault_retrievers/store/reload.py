"""Knowledge bases and objects derived from them, kept up to date for long-running servers."""

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
    """The knowledge base in a folder, opened at first use and shared by threads.

    Where another base has replaced it, that one is opened; a base that was passed in is only reloaded.
    """

    def __init__(self, given: Path | KnowledgeBase) -> None:
        self._given = given if isinstance(given, KnowledgeBase) else None
        self._folder = given if isinstance(given, Path) else given.path
        self._base = self._given
        self._mutex = Mutex()

    def base(self) -> KnowledgeBase | None:
        """The base at its last commit, None where there is none; raises what opening it raises."""
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
    """A cached value, made again when the state it was made from changes; shared by threads."""

    def __init__(self) -> None:
        self._kept: tuple[object, T] | None = None
        self._mutex = Mutex()

    def now(self, state: object, make: Callable[[], T]) -> T:
        """The cached value where `state` is unchanged; else a new one from `make`."""
        with self._mutex:
            if self._kept is None or self._kept[0] != state:
                self._kept = state, make()
            return self._kept[1]


def state_of(base: KnowledgeBase | None) -> object:
    """The state that channels over a base depend on: its commit, and the files of its questions."""
    if base is None:
        return None
    asked = base.path / COLLECTION
    try:
        with os.scandir(asked) as files:
            told = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    except FileNotFoundError:  # no questions, or just being written: then the next state differs
        told = []
    return base.view().snapshot, told
