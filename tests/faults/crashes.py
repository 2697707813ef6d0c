"""What a power loss may leave of a folder, by a model of inodes: what was flushed is there, of all else any part.

A file that was written and not flushed holds what it held before, or all of what was written, or a part of it, or as
many bytes that are others. A name that was made, moved or removed, in a folder that was not flushed since, is as it
was or as it is, whatever became of other names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias, Union

from tests.faults.disks import Event

Node: TypeAlias = Union["File", "Folder"]
Names: TypeAlias = Mapping[str, Node | None]
Doubt: TypeAlias = tuple[Node, int]
"""A file, or the change of this number in a folder."""

DRAWN = 3
"""Crashes that are drawn at random at a moment that is looked at closely."""


class Tree(NamedTuple):
    """What is left: the content of each file and None for each folder, by path; and whether a file holds a part."""

    entries: frozenset[tuple[str, bytes | None]]
    torn: bool

    def build(self, root: Path) -> None:
        for path, content in sorted(self.entries, key=lambda entry: entry[0]):
            if content is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(content)


@dataclass(eq=False)
class File:
    """A content as it was flushed, and as it is."""

    safe: bytes = b""
    now: bytes = b""


@dataclass(eq=False)
class Folder:
    """Names as they were flushed, and what was changed in them since."""

    safe: Names = field(default_factory=dict)
    changes: list[Names] = field(default_factory=list)

    @property
    def now(self) -> Names:
        return self.left(lambda _: True)

    def left(self, there: Callable[[int], bool]) -> Names:
        """The names, where some of the changes are there."""
        names = dict(self.safe)
        for number, change in enumerate(self.changes):
            names.update(change if there(number) else {})
        return {name: node for name, node in names.items() if node is not None}


class Disk:
    """Follows calls, and says what a crash may leave after each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Folder()
        self.open: dict[int, tuple[Node, int]] = {}

    def follow(self, event: Event) -> None:
        """A call, as it was made; `fsync` is one whose flush is relied upon."""
        call, given = event.call, event.arguments
        if call == "open":
            self.open[event.result] = self._opened(*given[:2]), 0
        elif call in ("write", "ftruncate", "lseek", "fsync"):
            self._change(call, *given[:2])
        elif call == "close":
            del self.open[given[0]]
        elif call == "replace":
            old, new = given
            assert old.parent == new.parent
            self._rename(old.parent, {new.name: self._node(old), old.name: None})
        else:
            path = given[0]
            self._rename(path.parent, {path.name: Folder() if call == "mkdir" else None})

    @property
    def now(self) -> Tree:
        """What there is without a crash."""
        return self._tree({doubt: len(_outcomes(*doubt)) - 1 for doubt in self._doubts(self.top)})

    def crashes(self, draw: Random, *, closely: bool) -> Iterator[Tree]:
        """All is lost or all is there; looked at closely, each single thing besides either, and a few more.

        Some may be alike.
        """
        doubts = {doubt: len(_outcomes(*doubt)) for doubt in self._doubts(self.top)}
        lost, there = dict.fromkeys(doubts, 0), {doubt: number - 1 for doubt, number in doubts.items()}
        yield self._tree(lost)
        yield self._tree(there)
        for doubt in doubts if closely else ():
            for number in range(doubts[doubt]):
                yield self._tree({**lost, doubt: number})
                yield self._tree({**there, doubt: number})
        for _ in range(DRAWN if closely else 0):
            yield self._tree({doubt: draw.randrange(number) for doubt, number in doubts.items()})

    def _node(self, path: Path) -> Node:
        node: Node | None = self.top
        for part in path.relative_to(self.root).parts:
            assert isinstance(node, Folder)
            node = node.now[part]
        assert node is not None
        return node

    def _opened(self, path: Path, flags: int) -> Node:
        if flags & os.O_CREAT:
            parent = self._node(path.parent)
            assert isinstance(parent, Folder)
            if path.name not in parent.now:
                self._rename(path.parent, {path.name: File()})
        node = self._node(path)
        if flags & os.O_TRUNC:
            assert isinstance(node, File)
            node.now = b""
        return node

    def _change(self, call: str, descriptor: int, given: int | bytes = b"") -> None:
        node, at = self.open[descriptor]
        if isinstance(node, Folder):
            node.safe, node.changes = node.now, []
        elif call == "fsync":
            node.safe = node.now
        elif isinstance(given, bytes):
            node.now = node.now[:at] + given + node.now[at + len(given) :]
            self.open[descriptor] = node, at + len(given)
        elif call == "lseek":
            self.open[descriptor] = node, given
        else:
            node.now = node.now[:given].ljust(given, b"\0")

    def _rename(self, folder: Path, names: Names) -> None:
        parent = self._node(folder)
        assert isinstance(parent, Folder)
        parent.changes.append(names)

    def _doubts(self, folder: Folder) -> Iterator[Doubt]:
        nodes = dict.fromkeys(node for names in (folder.safe, *folder.changes) for node in names.values())
        for node in nodes:
            if isinstance(node, Folder):
                yield from self._doubts(node)
            elif node is not None and node.safe != node.now:
                yield node, 0
        yield from ((folder, number) for number in range(len(folder.changes)))

    def _tree(self, crash: Mapping[Doubt, int]) -> Tree:
        entries: list[tuple[str, bytes | None]] = []
        torn = False
        waiting = [("", self.top)]
        while waiting:
            prefix, folder = waiting.pop()
            for name, node in folder.left(lambda number, folder=folder: bool(crash[folder, number])).items():
                if isinstance(node, Folder):
                    entries.append((prefix + name, None))
                    waiting.append((f"{prefix}{name}/", node))
                elif node is not None:
                    at = crash.get((node, 0), 0)
                    torn = torn or 0 < at < len(_outcomes(node, 0)) - 1
                    entries.append((prefix + name, _contents(node.safe, node.now)[at]))
        return Tree(frozenset(entries), torn)


def _outcomes(node: Node, _: int) -> tuple[object, ...]:
    """What may become of a thing; what was there before first, what is there now last."""
    return (False, True) if isinstance(node, Folder) else _contents(node.safe, node.now)


@cache
def _contents(safe: bytes, now: bytes) -> tuple[bytes, ...]:
    if safe == now:
        return (now,)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(safe, now, strict=False)))
    new, half = now[same:], same + (len(now) - same) // 2
    other = bytes(byte ^ 0x55 for byte in new)
    parts = (now[:half], now[:same] + bytes(len(new)), now[:half] + bytes(len(now) - half),
             now[:same] + other[: half - same] + now[half:], now + safe[len(now) :])  # fmt: skip
    return (safe, *dict.fromkeys(part for part in parts if part not in (safe, now)), now)
