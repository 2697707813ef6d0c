"""The store of the questions about a knowledge base's chunks: a knowledge base in its folder.

Questions are committed, checked and locked as any other knowledge base, are moved or removed with the folder, and are
analysed and embedded as the chunks are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.errors import NotIndexedError, RetrievalError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.store.live_curation import BaseGuard
from voicevault_retrievers.store.names import vacant
from voicevault_retrievers.store.reader import View, keywords_only
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.structure.questions import COLLECTION, QuestionChannel, QuestionIndex
from voicevault_retrievers.text import CustomAnalyzer

Base: TypeAlias = Any
"""A knowledge base; its class imports this module, so its type cannot be named here."""

LIMITS = Limits(text=1_000_000, metadata=1 << 24, keys=1 << 16, depth=256, id=1 << 16)
"""Wide limits: the knowledge base has checked its chunks already."""


class QuestionBase:
    """The store of a `QuestionIndex`, in a knowledge base of its own."""

    def __init__(self, base: Base) -> None:
        self.base = base

    @property
    def embedded(self) -> bool:
        return self.base.manifest.embedder is not None

    def view(self) -> QuestionView:
        """The questions at the present commit."""
        return QuestionView(self.base.view())

    def add(self, chunks: Sequence[Chunk], *, parents: Sequence[Chunk] = ()) -> None:
        """Add questions and notes in one commit."""
        self.base.add(chunks, parents=parents)

    def delete(self, ids: Collection[str]) -> int:
        """Delete questions in one commit; returns how many."""
        return int(self.base.delete(ids))

    def hold(self) -> None:
        """Take the lock, and load what others have committed."""
        self.base.hold()

    def close(self) -> None:
        """Release the lock."""
        self.base.close()

    def __repr__(self) -> str:
        return f"QuestionBase({self.base!r})"


class QuestionView:
    """Questions at one commit."""

    def __init__(self, view: View) -> None:
        self._view = view

    def bm25(self, **options: Any) -> BM25:
        return self._view.bm25(**options)

    def dense(self, **options: Any) -> VectorChannel:
        return self._view.dense(**options)

    def ids(self) -> Iterable[str]:
        return self._view.snapshot.ids()

    def get(self, ids: Iterable[str]) -> Mapping[str, Chunk]:
        found = ((one, self._view.snapshot.get(one)) for one in ids)
        return {one: chunk for one, chunk in found if chunk is not None}

    def parents(self, ids: Iterable[str]) -> Mapping[str, Chunk]:
        found = ((one, self._view.snapshot.parent(one)) for one in ids)
        return {one: note for one, note in found if note is not None}


def question_index(kb: Base, *, wait: float = 0.0) -> QuestionIndex:
    """The questions about a knowledge base's chunks; a base for them is created where there is none.

    `wait` is how many seconds an update waits while another process writes. Raises what creating and opening a
    knowledge base raises.
    """
    if not has_questions(kb):
        vectors: Any = kb.manifest.vectors
        type(kb).create(kb.path / COLLECTION, analyzer=kb.analyzer, embedder=kb.embedder, vectors=vectors)
    return _index(kb, wait)


def has_questions(kb: Base) -> bool:
    """Whether there is a base of questions about a knowledge base's chunks."""
    return not vacant(kb.path / COLLECTION)


def question_snapshot(kb: Base) -> Snapshot | None:
    """The snapshot of the questions about a knowledge base's chunks; None where there are none."""
    if not has_questions(kb):
        return None
    analyzer = kb.analyzer if isinstance(kb.analyzer, CustomAnalyzer) else None
    return Snapshot.open(kb.path / COLLECTION, analyzer=analyzer)


def question_channel(kb: Base, **options: Any) -> QuestionChannel:
    """The channel over the questions about a knowledge base's chunks; `options` are those of `QuestionIndex.channel`.

    Raises NotIndexedError where there are no questions, or none that the kind of search `by` can find.
    """
    if not has_questions(kb):
        raise NotIndexedError(
            f"there are no questions about the chunks of knowledge base {kb.name!r}: make them with "
            "question_index(kb).update(model)"
        )
    index = _index(kb, 0.0)
    if options.get("by") in ("both", "dense") and not index.questions.embedded:
        raise NotIndexedError(f"the questions have no vectors: {keywords_only(kb.name)}")
    channel = index.channel(**options)
    channel.kb = kb.name
    channel.guard = BaseGuard(tuple(kb.view(channel.prefix).curations()))
    return channel


def _index(kb: Base, wait: float) -> QuestionIndex:
    analyzer = kb.analyzer if isinstance(kb.analyzer, CustomAnalyzer) else None
    base = type(kb).open(kb.path / COLLECTION, analyzer=analyzer, embedder=_embedder(kb), wait=wait, limits=LIMITS)
    return QuestionIndex(QuestionBase(base), kb, lambda: _commit(kb))


def _embedder(kb: Base) -> Embedder | None:
    """The embedder of the base; None where it cannot be loaded: questions are then searched by keywords."""
    try:
        embedder: Embedder | None = kb.embedder
        return embedder
    except RetrievalError:
        return None


def _commit(kb: Base) -> str:
    """A string that identifies the present commit."""
    snapshot = kb.view().snapshot
    present = snapshot.manifest
    return f"{present.id}/{present.generation}/{snapshot.end}/{snapshot.head.hex()}"
