"""Which questions are not of what the chunks are now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.structure.questions.kept import (
    KeepsChunks,
    QuestionsAtCommit,
    asks_of,
    same_metadata,
    source_of,
)

MARK = "commit"
"""The id of the note that says of which commit of the chunks the questions are."""
_AT_ONCE = 1024


class Stale:
    """The ids of the chunks whose questions, in a view, are of another text or other metadata, or which are gone.

    All are compared, unless the questions are marked as those of the present `commit`; what was found for one is kept.
    """

    def __init__(self, view: QuestionsAtCommit, chunks: KeepsChunks, commit: Callable[[], str] | None) -> None:
        self._view = view
        self._chunks = chunks
        self._commit = commit
        self._known: tuple[str | None, frozenset[str]] = (None, frozenset())
        self._mutex = Mutex()

    def __call__(self) -> frozenset[str]:
        with self._mutex:
            present = self._commit and self._commit()
            if present is None or self._known[0] != present:
                fresh = present is not None and marked(self._view) == present
                self._known = present, frozenset() if fresh else frozenset(self._compared())
            return self._known[1]

    def _compared(self) -> Iterator[str]:
        firsts = (one for one in self._view.ids() if one.endswith("?1"))
        for some in _blocks(firsts):
            questions = self._view.get(some)
            chunks = self._chunks.get([source_of(one) for one in some])
            for question in questions.values():
                chunk = chunks.get(source_of(question.id))
                if chunk is None or not asks_of(question, chunk) or not same_metadata(question, chunk):
                    yield source_of(question.id)


def marked(view: QuestionsAtCommit) -> str | None:
    """The commit of the chunks that the questions are of; None where that is not known."""
    note = view.parents([MARK]).get(MARK)
    return None if note is None else str(note.metadata["commit"])


def _blocks(ids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
