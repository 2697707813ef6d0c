"""The stores of questions and chunks, the link from a question to its chunk, and the detection of stale questions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import Condition, Filter, Node, Not, canonical, parse
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError

COLLECTION = "quim_questions"
"""The name of the folder of questions, and the suffix of an engine's collection of questions."""
SOURCE = "source_chunk_id"
"""The metadata key of a question that names the chunk which answers it."""
DIGEST = "source_digest"
"""The metadata key of a question with the digest of its chunk's text."""
RESERVED = (SOURCE, DIGEST)


@runtime_checkable
class KeepsChunks(Protocol):
    """The part of a knowledge base that its questions need."""

    def get(self, ids: Iterable[str], /) -> Mapping[str, Chunk]:
        """The given chunks that exist now, by id."""
        ...

    def __iter__(self) -> Iterator[Chunk]: ...


class QuestionsAtCommit(Protocol):
    """Questions at one commit, unaffected by later writes."""

    def bm25(self, **options: Any) -> Channel: ...

    def dense(self, **options: Any) -> Channel: ...

    def ids(self) -> Iterable[str]:
        """The ids of all questions."""
        ...

    def get(self, ids: Iterable[str], /) -> Mapping[str, Chunk]:
        """The given questions that exist, by id."""
        ...

    def parents(self, ids: Iterable[str], /) -> Mapping[str, Chunk]:
        """The given notes that exist, by id: chunks that are stored and not searched."""
        ...


class KeepsQuestions(Protocol):
    """The store of questions, as chunks in a knowledge base of their own.

    Each `add` and `delete` is one commit. `embedded` says whether there are vectors.
    """

    @property
    def embedded(self) -> bool: ...

    def view(self) -> QuestionsAtCommit:
        """The questions as they are now."""
        ...

    def add(self, chunks: Sequence[Chunk], *, parents: Sequence[Chunk] = ()) -> Any: ...

    def delete(self, ids: Collection[str], /) -> Any: ...

    def hold(self) -> None:
        """Take the lock for writing, and load what others have written."""
        ...

    def close(self) -> None:
        """Release the lock."""
        ...


Chunks: TypeAlias = KeepsChunks | Mapping[str, Chunk]


class HeldChunks:
    """Chunks in a mapping by id, with the interface of a knowledge base."""

    def __init__(self, chunks: Mapping[str, Chunk]) -> None:
        self._chunks = chunks

    def get(self, ids: Iterable[str]) -> dict[str, Chunk]:
        return {chunk_id: self._chunks[chunk_id] for chunk_id in ids if chunk_id in self._chunks}

    def __iter__(self) -> Iterator[Chunk]:
        return iter(list(self._chunks.values()))

    def __repr__(self) -> str:
        return f"{{...}} of {len(self._chunks)} chunks"


def keeping(chunks: Chunks) -> KeepsChunks:
    """The interface to chunks in a knowledge base, or in a mapping by id; ConfigError for anything else."""
    if isinstance(chunks, Mapping):
        return HeldChunks(chunks)
    if isinstance(chunks, KeepsChunks):
        return chunks
    raise ConfigError(
        f"chunks are in a knowledge base or in a mapping of their ids, which a {type(chunks).__name__} is not"
    )


def digest(text: str) -> str:
    """The digest of a text: 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def question_chunk(source: Chunk, number: int, text: str) -> Chunk:
    """The question with this number (from 1) that a chunk answers, with the chunk's metadata, for filters."""
    own = {SOURCE: source.id, DIGEST: digest(source.text)}
    return Chunk(f"{source.id}?{number}", text, None, {**source.metadata, **own})


def blank_note(source: Chunk) -> Chunk:
    """The note that a chunk's text has no questions."""
    return Chunk(f"{source.id}?0", metadata={DIGEST: digest(source.text)})


def known(view: QuestionsAtCommit, source: Chunk) -> bool:
    """Whether the questions of a chunk's present text, or the note that it has none, are stored."""
    first = view.get([f"{source.id}?1"]) or view.parents([f"{source.id}?0"])
    return any(asks_of(one, source) for one in first.values())


def source_of(question_id: str) -> str:
    """The id of the chunk that answers a question."""
    return question_id.rpartition("?")[0]


def by_source(ids: Iterable[str]) -> dict[str, list[str]]:
    """The ids of questions, by the chunk that answers them."""
    found: dict[str, list[str]] = {}
    for question_id in ids:
        found.setdefault(source_of(question_id), []).append(question_id)
    return found


def asks_of(question: Chunk, source: Chunk) -> bool:
    """Whether a question was made from a chunk's present text."""
    return question.metadata.get(DIGEST) == digest(source.text)


def questions_of(view: QuestionsAtCommit, source: str) -> list[Chunk]:
    """The questions of a chunk, in the order of their numbers, which are consecutive from 1."""
    found: list[Chunk] = []
    while True:
        ids = [f"{source}?{number}" for number in range(len(found) + 1, len(found) + 9)]
        known = view.get(ids)
        found += [known[one] for one in ids if one in known]
        if len(known) < len(ids):
            return found


def same_metadata(question: Chunk, source: Chunk) -> bool:
    """Whether a question's metadata equal its chunk's, for every filter."""
    copied = {key: value for key, value in question.metadata.items() if key not in RESERVED}
    return canonical(copied) == canonical(dict(source.metadata))


def speaks_of_questions(where: Filter | None) -> bool:
    """Whether a filter uses a key that only questions have."""
    return _keys(parse(where)).intersection(RESERVED) != set()


def _keys(node: Node) -> set[str]:
    if isinstance(node, Condition):
        return {node.key}
    parts = (node.part,) if isinstance(node, Not) else node.parts
    return {key for part in parts for key in _keys(part)}


MARK = "commit"
"""The id of the note with the commit of the chunks that the questions belong to."""
_AT_ONCE = 1024


class Stale:
    """The ids of chunks, in a view, whose questions have another text or other metadata, or which are deleted.

    All are compared, unless the questions are marked with the present `commit`; the result for a commit is cached.
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
    """The commit of the chunks that the questions belong to; None where unknown."""
    note = view.parents([MARK]).get(MARK)
    return None if note is None else str(note.metadata["commit"])


def _blocks(ids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
