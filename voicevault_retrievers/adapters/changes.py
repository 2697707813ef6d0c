"""Adding chunks to and deleting them from all channels of a pipeline together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from voicevault_retrievers.adapters.keyword_copy import KeywordCopy
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import MemoryVectors
from voicevault_retrievers.engines.chroma import ChromaVectors
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25

Commit: TypeAlias = Callable[[], object]
"""Makes a prepared change. Errors that can be foreseen were raised when it was prepared."""


@runtime_checkable
class StoreChanges(Protocol):
    """A channel over an external store that can be changed; both methods raise ConfigError where it cannot."""

    store: Any

    @abstractmethod
    def adding(self, chunks: Sequence[Chunk]) -> Commit:
        """A function that adds chunks, which replace chunks with the same ids."""

    @abstractmethod
    def deleting(self, ids: Sequence[str]) -> Commit:
        """A function that deletes chunks; unknown ids are ignored."""


def add(channel: Channel, chunks: Sequence[Chunk]) -> None:
    """Add chunks to every channel below a channel; a chunk replaces the one with the same id.

    Everything is checked, analysed and embedded before anything is changed. Raises ConfigError, naming the channel,
    where a channel cannot be changed, or where two channels are over external stores, which cannot be changed
    atomically.
    """
    _change(channel, [chunk.id for chunk in chunks], lambda part: _adding(part, chunks))


def delete(channel: Channel, ids: Sequence[str]) -> None:
    """Delete chunks from every channel below a channel; raises as `add`."""
    _change(channel, ids, lambda part: _deleting(part, ids))


def of_bases(changed_with: str) -> ConfigError:
    """The error for channels of knowledge bases."""
    return ConfigError(
        f"channels 'bm25' and 'dense' are of knowledge bases: change those with {changed_with}, or KnowledgeBase.add "
        "and delete, and then reload()"
    )


def _change(channel: Channel, ids: Sequence[str], prepare: Callable[[Channel], Commit]) -> None:
    leaves = {_held_by(leaf): leaf for leaf in channel.leaves()}.values()
    copies = [leaf for leaf in leaves if isinstance(leaf, KeywordCopy)]
    outside = [leaf for leaf in leaves if _is_outside(leaf)]
    if len(outside) > 1:
        raise ConfigError(
            f"{' and '.join(repr(leaf.name) for leaf in outside)} are stores outside memory, which cannot be changed "
            "as one: change each of them itself"
        )
    for copy in copies:
        if not any(copy.source.held is getattr(leaf, "store", None) for leaf in outside):
            raise ConfigError(
                f"channel {copy.name!r} is a copy of a {copy.source.name} that this retriever does not search: change "
                "that, and the copy follows it"
            )
    inside = [leaf for leaf in leaves if leaf not in outside and leaf not in copies]
    commits = [prepare(leaf) for leaf in (*outside, *inside)]  # an external store may still fail, so it goes first
    for commit in commits:
        commit()
    for copy in copies:
        copy.read(ids)


def _adding(leaf: Channel, chunks: Sequence[Chunk]) -> Commit:
    if isinstance(leaf, StoreChanges):
        return leaf.adding([chunk for chunk in chunks if not chunk.is_parent])
    if isinstance(leaf, VectorChannel) and isinstance(leaf.index, MemoryVectors):
        return leaf.index.adding(chunks, leaf.embedder)
    if isinstance(leaf, VectorChannel) and isinstance(leaf.index, ChromaVectors):
        return partial(leaf.index.add, chunks, leaf.embedder)
    if isinstance(leaf, BM25):
        return leaf.adding(chunks)
    raise _unchangeable(leaf)


def _deleting(leaf: Channel, ids: Sequence[str]) -> Commit:
    if isinstance(leaf, StoreChanges):
        return leaf.deleting(ids)
    if isinstance(leaf, VectorChannel) and isinstance(leaf.index, MemoryVectors | ChromaVectors):
        return partial(leaf.index.delete, ids)
    if isinstance(leaf, BM25):
        return partial(leaf.delete, ids)
    raise _unchangeable(leaf)


def _is_outside(leaf: Channel) -> bool:
    return isinstance(leaf, StoreChanges) or (isinstance(leaf, VectorChannel) and isinstance(leaf.index, ChromaVectors))


def _held_by(leaf: Channel) -> Hashable:
    """The identity of what a channel searches: two channels over one index are changed once."""
    held = leaf.held if isinstance(leaf, BM25) else leaf.index if isinstance(leaf, VectorChannel) else leaf
    return id(held.store if isinstance(held, StoreChanges) else held)


def _unchangeable(leaf: Channel) -> ConfigError:
    return ConfigError(
        f"channel {leaf.name!r} is a {type(leaf).__name__}, which cannot be added to or deleted from here: change what "
        "it searches itself"
    )
