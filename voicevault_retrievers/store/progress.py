"""How far a long update has come, for those who watch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from voicevault_retrievers.documents import File, Skipped
from voicevault_retrievers.store.embedding import Progress


@dataclass(frozen=True)
class ReadingProgress:
    """`done` of `files` are read; `file` is being read, empty while none is.

    `chunks` were made of them, and of `embedded` the vectors; what is here already needs none. `skipped` files could
    not be read, the last of them `latest`. `share` (0 to 1) of the files' bytes is embedded, or needs nothing.
    """

    files: int = 0
    done: int = 0
    file: str = ""
    chunks: int = 0
    embedded: int = 0
    skipped: int = 0
    latest: Skipped | None = None
    share: float = 0.0


Observer: TypeAlias = Callable[[ReadingProgress], None]


class Watched:
    """Tells an observer of each step; without one it does nothing but tell `embedding`, of each commit's texts."""

    def __init__(
        self, found: Sequence[File], skipped: Sequence[Skipped], embedding: Progress | None, observe: Observer | None
    ) -> None:
        self._embedding = embedding
        self._observe = observe
        self._now = ReadingProgress(len(found), skipped=len(skipped), latest=skipped[-1] if skipped else None)
        self._whole = sum(map(_size, found)) if observe else 0
        self._size = self._settled = self._pending = self._embedded = 0

    def begins(self, file: File) -> None:
        """A file is about to be read."""
        self._size = _size(file) if self._observe else 0
        self._tell(file=file.name)

    def ended(self, chunks: int) -> None:
        """It was read, and so many chunks of it wait for a commit; of one that has not changed, none."""
        if chunks:
            self._pending += self._size
        else:
            self._settled += self._size
        self._tell(file="", done=self._now.done + 1, chunks=self._now.chunks + chunks, share=self._share(0.0))

    def skipped(self, file: Skipped) -> None:
        """It could not be read."""
        self._now = replace(self._now, skipped=self._now.skipped + 1, latest=file)
        self.ended(0)

    def embeds(self, done: int, total: int) -> None:
        """Of the texts of a commit that have no vectors yet, so many have them now."""
        if self._embedding:
            self._embedding(done, total)
        self._tell(embedded=self._embedded + done, share=self._share(done / total))

    def committed(self) -> None:
        """What waited is in the knowledge base."""
        self._settled += self._pending
        self._pending, self._embedded = 0, self._now.embedded
        self._tell(share=self._share(0.0))

    def _share(self, pending: float) -> float:
        """With `pending` (0 to 1) of what waits."""
        return min(1.0, (self._settled + self._pending * pending) / self._whole) if self._whole else 0.0

    def _tell(self, **changes: Any) -> None:
        if self._observe:
            self._now = replace(self._now, **changes)
            self._observe(self._now)


def _size(file: File) -> int:
    with suppress(OSError):  # that it cannot be read is said where it is read
        return file.path.stat().st_size
    return 0
