"""The questions that an engine's chunks answer, in a second collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.channels import EngineBM25, EngineDense
from voicevault_retrievers.structure.questions import COLLECTION, QuestionChannel, QuestionIndex

QUESTIONS = f"_{COLLECTION}"
"""The suffix of the name of the questions' collection."""


class QuestionEngine(Protocol):
    """The part of `engines.engine.Engine` that questions need."""

    @property
    def embedder(self) -> Embedder | None: ...

    def upsert(self, chunks: Iterable[Chunk], /, *, parents: Iterable[Chunk] = ()) -> Any: ...

    def delete(self, ids: Iterable[str], /) -> int: ...

    def get(self, ids: Iterable[str], /) -> dict[str, Chunk]: ...

    def parents(self, ids: Iterable[str], /) -> dict[str, Chunk]: ...

    def stored(self) -> Iterator[Any]: ...

    def __iter__(self) -> Iterator[Chunk]: ...

    def bm25(self, **options: Any) -> EngineBM25: ...

    def dense(self, **options: Any) -> EngineDense: ...

    @property
    def asked(self) -> QuestionEngine: ...


class EngineQuestions:
    """The store of a `QuestionIndex` in a collection of an engine.

    An engine has no lock for the questions: only one process may update them at a time.
    """

    def __init__(self, engine: QuestionEngine) -> None:
        self.engine = engine

    @property
    def embedded(self) -> bool:
        return self.engine.embedder is not None

    def view(self) -> EngineQuestionView:
        """The questions, read from the engine at each call."""
        return EngineQuestionView(self.engine)

    def add(self, chunks: Sequence[Chunk], *, parents: Sequence[Chunk] = ()) -> None:
        """Add questions and notes."""
        self.engine.upsert(chunks, parents=parents)

    def delete(self, ids: Collection[str]) -> int:
        """Delete questions; returns how many."""
        return self.engine.delete(ids)

    def hold(self) -> None:
        """Does nothing: an engine has no lock."""

    def close(self) -> None:
        """Does nothing: an engine has no lock."""

    def __repr__(self) -> str:
        return f"EngineQuestions({self.engine!r})"


class EngineQuestionView:
    """The questions of an engine."""

    def __init__(self, engine: QuestionEngine) -> None:
        self._engine = engine

    def bm25(self, **options: Any) -> EngineBM25:
        return self._engine.bm25(**options)

    def dense(self, **options: Any) -> EngineDense:
        return self._engine.dense(**options)

    def ids(self) -> Iterable[str]:
        return (entry.id for entry in self._engine.stored())

    def get(self, ids: Iterable[str]) -> Mapping[str, Chunk]:
        return self._engine.get(ids)

    def parents(self, ids: Iterable[str]) -> Mapping[str, Chunk]:
        return self._engine.parents(ids)


def engine_questions(engine: QuestionEngine) -> QuestionIndex:
    """The questions about an engine's chunks: `update` makes them, `channel` searches them.

    Their collection is named by the engine's name and `QUESTIONS`. Each question has its chunk's metadata, and the
    chunk's id under `source_chunk_id`. Under access rights every search checks the questions against their chunks.
    """
    return QuestionIndex(EngineQuestions(engine.asked), engine)


def question_channel(engine: QuestionEngine, **options: Any) -> QuestionChannel:
    """The channel over the questions about an engine's chunks; `options` are those of `QuestionIndex.channel`.

    Without `by`, the channel checks whether the collection has vectors. Where there are no questions, it finds nothing.
    """
    return engine_questions(engine).channel(**options)
