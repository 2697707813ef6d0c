"""The questions that an engine's chunks answer, in a collection of their own beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.channels import EngineBM25, EngineDense
from voicevault_retrievers.structure.questions import COLLECTION, QuestionChannel, QuestionIndex

QUESTIONS = f"_{COLLECTION}"
"""What stands behind the name of a collection in that of its questions."""


class QuestionEngine(Protocol):
    """What is asked of an engine; see `engines.engine.Engine`."""

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
    """Questions in a collection of an engine, as `QuestionIndex` keeps them.

    An engine has no lock for them: one process updates at a time.
    """

    def __init__(self, engine: QuestionEngine) -> None:
        self.engine = engine

    @property
    def embedded(self) -> bool:
        return self.engine.embedder is not None

    def view(self) -> EngineQuestionView:
        """The questions, as they are whenever they are asked for."""
        return EngineQuestionView(self.engine)

    def add(self, chunks: Sequence[Chunk], *, parents: Sequence[Chunk] = ()) -> None:
        """Put in questions and notes."""
        self.engine.upsert(chunks, parents=parents)

    def delete(self, ids: Collection[str]) -> int:
        """Remove questions."""
        return self.engine.delete(ids)

    def hold(self) -> None:
        """Nothing: an engine has no lock."""

    def close(self) -> None:
        """Nothing: an engine has no lock."""

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

    They are in the collection of the engine's name and `QUESTIONS`, each with its chunk's metadata and the
    chunk's id under `source_chunk_id`. Under access rights all are compared with their chunks at each search.
    """
    return QuestionIndex(EngineQuestions(engine.asked), engine)


def question_channel(engine: QuestionEngine, **options: Any) -> QuestionChannel:
    """The channel over the questions about an engine's chunks; `options` are those of `QuestionIndex.channel`.

    Without `by` the collection is asked whether it has vectors. Where there are no questions, it finds nothing.
    """
    return engine_questions(engine).channel(**options)
