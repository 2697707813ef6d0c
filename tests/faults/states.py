"""Small knowledge bases, and all that is in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.lexical import merge_policy
from voicevault_retrievers.store import KnowledgeBase, Source, commit, disk, wal
from voicevault_retrievers.store.writer import CommitWriter

EMBEDDER = HashEmbedder(4)
WORDS = ("fox", "dog", "cat")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # a faster place, where there is one


class State(NamedTuple):
    """All that a base holds and finds."""

    chunks: list[Chunk]
    parents: list[Chunk]
    sources: dict[str, Source]
    found: list[object]

    @classmethod
    def of(cls, kb: KnowledgeBase) -> State:
        asked = [(channel, word) for channel in (kb.bm25(), kb.dense()) for word in ("quick fox", "dog")]
        return cls(
            list(kb),
            list(kb.parents(kb._snapshot.parent_ids()).values()),
            dict(kb.sources),
            [[(hit.chunk.id, hit.score) for hit in channel.search(word, 20)] for channel, word in asked],
        )

    def without(self, chunk_id: str) -> State:
        """What there would be besides one chunk that has no parent; not what is found, where it counts."""
        return self._replace(chunks=[chunk for chunk in self.chunks if chunk.id != chunk_id], found=[])


@contextmanager
def small(seal_at: int = 9) -> Iterator[None]:
    """Few chunks are many, and what the background would do is done when it is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "SEAL_AT", seal_at)
        patch.setattr(commit, "MERGE_AT_ONCE", 0)
        patch.setattr(merge_policy, "TIER", 2)
        patch.setattr(CommitWriter, "_tend_soon", lambda self: None)
        yield


def written(path: Path) -> None:
    """A base of two segments that are to be merged, tombstones, parents and sources, and a log with changes."""
    lone = Chunk("lone", "a lone dog", "px", {"source_file": "a.md"})
    parents = [Chunk(name, f"the whole story {name}") for name in ("p0", "px", "p1")]
    with KnowledgeBase.create(path, embedder=EMBEDDER) as kb:
        kb.add([*chunks(0, 9), lone], parents=parents[:2], sources=[Source("a.md", "1")])
        kb.delete(["01", "lone"])
        kb.add(chunks(10, 19), parents=parents[2:], sources=[Source("b.md", "1")])
        kb.delete(["12"])
        kb.add(chunks(20, 21))


WRITERS: dict[str, Callable[[KnowledgeBase], object]] = {
    "add": lambda kb: kb.add(chunks(21, 23)),
    "delete": lambda kb: kb.delete(["02", "20"]),
    "seal": lambda kb: kb.add(chunks(30, 39), sources=[Source("a.md", "2")]),
    "merge": lambda kb: merge(kb),
    "compact": lambda kb: kb.compact(),
    "repair": lambda kb: KnowledgeBase.repair(kb.path, embedder=EMBEDDER),
}
"""In which ways the base of `written` is written to."""


def opened(path: Path) -> KnowledgeBase:
    return KnowledgeBase.open(path, embedder=EMBEDDER)


def chunks(start: int, stop: int) -> list[Chunk]:
    """Those of a.md, whose parent is p0, up to 10, and behind those of b.md."""
    source, parent = ("a.md", "p0") if start < 10 else ("b.md", f"p{1 + start % 2}")
    return [
        Chunk(f"{at:02}", f"{WORDS[at % 3]} quick number{at}", parent, {"source_file": source, "page": at})
        for at in range(start, stop)
    ]


def together(kb: KnowledgeBase, *changes: Callable[[], object]) -> None:
    """Changes that threads make, and that are committed as one."""
    threads = [Thread(target=change) for change in changes]
    with kb._writer._mutex:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            while len(kb._writer._queue) < number:
                pass
    for thread in threads:
        thread.join()


def merge(kb: KnowledgeBase) -> bool:
    """Take the lock, and merge what is due; whether anything was."""
    kb.delete(["none"])
    return kb._writer.merge()


def harmed(kb: KnowledgeBase) -> bytes:
    """A record behind the last one that is all there, and is not what was written."""
    frame = wal.framed([wal.CommitRecord(deleted=("00",))])
    broken = frame[:-1] + bytes([frame[-1] ^ 1])
    path = kb.path / kb.manifest.log
    disk.append(path, path.stat().st_size, broken)
    return broken
