"""Chunks that a search never finds: those that the owner of a knowledge base has blocked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from voicevault_retrievers.core.pages import files_of


class ChunkLike(Protocol):
    """The part of a chunk that is compared."""

    @property
    def id(self) -> str: ...

    @property
    def kb(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...


class HasChunk(Protocol):
    """A match or a hit."""

    @property
    def chunk(self) -> Any: ...


H = TypeVar("H", bound=HasChunk)


@dataclass(frozen=True)
class BlockedInBase:
    """What is blocked for a query in the knowledge base `kb` in `folder`: chunks by id, documents by file.

    `parents` are the ids of the parents of blocked chunks, and `texts` the chunks' texts. For a base of questions,
    `id_key` is the metadata key of a question with the id of its chunk. Without `ids` and `files` nothing is blocked.
    """

    folder: str
    kb: str | None
    ids: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    id_key: str | None = None

    def has(self, chunk: ChunkLike) -> bool:
        """Whether a chunk is blocked. A chunk without a `kb` may be a copy of the base's, and is blocked like one."""
        if not self._is_of(chunk):
            return False
        own = chunk.id if self.id_key is None else str(chunk.metadata.get(self.id_key))
        return self._in(own, self.ids) or (bool(self.files) and not self.files.isdisjoint(files_of(chunk.metadata)))

    def shows(self, parent: ChunkLike) -> bool:
        """Whether the text of a parent contains what is blocked."""
        return self._is_of(parent) and (
            self.has(parent) or self._in(parent.id, self.parents) or self.is_in(parent.text)
        )

    def is_in(self, text: str) -> bool:
        """Whether a text contains the text of a blocked chunk."""
        return any(own in text for own in self.texts)

    def _is_of(self, chunk: ChunkLike) -> bool:
        return self.kb is None or chunk.kb in ("", self.kb)

    def _in(self, one: str, ids: frozenset[str]) -> bool:
        return bool(ids) and (one in ids or one.removeprefix(f"{self.kb}:") in ids)


@dataclass(frozen=True)
class Blocked:
    """What is blocked for a query, by knowledge base; see `BlockedInBase`."""

    parts: tuple[BlockedInBase, ...] = ()

    def __bool__(self) -> bool:
        return any(part.ids or part.files for part in self.parts)

    def has(self, chunk: ChunkLike) -> bool:
        """Whether a chunk is blocked."""
        return any(part.has(chunk) for part in self.parts)

    def shows(self, parent: ChunkLike) -> bool:
        """Whether the text of a parent contains what is blocked."""
        return any(part.shows(parent) for part in self.parts)

    def is_in(self, text: str) -> bool:
        """Whether a text contains the text of a blocked chunk."""
        return any(part.is_in(text) for part in self.parts)

    def left(self, found: Sequence[H]) -> Sequence[H]:
        """The matches or hits that are not blocked; the given sequence itself where none is."""
        if not self:
            return found
        kept = [one for one in found if not self.has(one.chunk)]
        return found if len(kept) == len(found) else kept

    def covers(self, folder: str) -> bool:
        """Whether it was said what is blocked in the knowledge base in this folder."""
        return any(part.folder == folder for part in self.parts)

    def with_parts(self, parts: Sequence[BlockedInBase]) -> Blocked:
        """What is blocked here, and in further knowledge bases."""
        return Blocked((*self.parts, *(part for part in parts if part not in self.parts)))

    def of_questions(self, kb: str, id_key: str) -> Blocked:
        """The same for the questions about the chunks of a knowledge base; "" stands for any base.

        Questions have the metadata of their chunks, and the chunk's id under `id_key`.
        """
        own = (part for part in self.parts if kb in ("", part.kb))
        return Blocked(tuple(replace(part, kb=None, parents=frozenset(), texts=(), id_key=id_key) for part in own))


def blocks(blocked: Blocked | None, chunk: ChunkLike) -> bool:
    """Whether a chunk is blocked; nothing is where `blocked` is None."""
    return blocked is not None and blocked.has(chunk)
