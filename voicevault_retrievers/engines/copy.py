"""Copying of a knowledge base, or of an engine's collection, into another engine, with verification."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from voicevault_retrievers._support.checks import number, whole
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.engine import BATCH, Engine
from voicevault_retrievers.engines.server import WriteCounts
from voicevault_retrievers.errors import SearchNotAvailableError, SearchTimeoutError
from voicevault_retrievers.store import KnowledgeBase, embedding
from voicevault_retrievers.store.manifest import EmbedderEntry
from voicevault_retrievers.store.questions import has_questions, question_index

Source: TypeAlias = KnowledgeBase | Engine
Progress: TypeAlias = Callable[[int, int], None]

_SPACE = 1 << 128
_FIRST_WAIT = 0.2


class Check(NamedTuple):
    """A count of chunks, and the order-independent sum of their digests."""

    chunks: int = 0
    total: int = 0

    def with_digest(self, digest: str) -> Check:
        """The check with one more chunk."""
        return Check(self.chunks + 1, (self.total + int(digest, 16)) % _SPACE)

    @property
    def checksum(self) -> str:
        """The sum as 32 hexadecimal digits."""
        return f"{self.total:032x}"


@dataclass(frozen=True)
class Copied:
    """The result of a copy.

    `written` and `unchanged` count chunks, `extra` those of the target that the source does not have, which `prune`
    removes. `source` and `target` are the checks of both. `seconds` is the time of writing. `questions` is the result
    for the questions that the chunks answer, None without questions.
    """

    written: int
    unchanged: int
    parents: int
    extra: int
    pruned: bool
    source: Check
    target: Check
    seconds: float
    questions: Copied | None = None

    @property
    def verified(self) -> bool:
        """Whether target and source are equal, by count and checksum, with their questions."""
        return self.source == self.target and (self.questions is None or self.questions.verified)


def copy(
    source: Source,
    target: Engine,
    *,
    prune: bool = False,
    batch: int = BATCH,
    patience: float = 60.0,
    progress: Progress | None = None,
) -> Copied:
    """Copy all chunks, their vectors, parents and questions; unchanged chunks of the target are not written.

    A copy that was broken off resumes when it is made again. Vectors are copied where one embedder made both
    collections, else the target's embedder embeds the texts. While the target is unavailable, the copy retries for
    `patience` seconds. At the end the target is read back and compared. From an engine, only parents that chunks name
    are copied. Raises what reading the source and `Engine.upsert` raise.
    """
    size, wait = whole("batch", batch), number("patience", patience)
    own = _copied(source, target, prune, size, wait, progress)
    asked = _questions(source)
    if asked is not None:
        return replace(own, questions=_copied(asked, target.asked, prune, size, wait, None))
    if prune:
        _patiently(target.asked.clear, wait)
    return own


def _copied(source: Source, target: Engine, prune: bool, size: int, wait: float, progress: Progress | None) -> Copied:
    begun, total = time.monotonic(), len(source)
    writing = _Writing(source, target, wait)
    held = Check()
    for chunks, vectors in _batches(source, size):
        writing.write(chunks, vectors)
        for chunk in chunks:
            held = held.with_digest(target.digest(chunk))
        if progress is not None:
            progress(held.chunks, total)
    writing.write_rest()
    seconds = time.monotonic() - begun
    listed = partial(_listed, source, target)
    present, extra = _patiently(listed, wait)
    if extra and prune:
        _patiently(partial(target.delete, extra), wait)
        present, _ = _patiently(listed, wait)
    done = writing.done
    return Copied(
        written=done.added + done.replaced,
        unchanged=done.unchanged,
        parents=len(writing.sent),
        extra=len(extra),
        pruned=prune,
        source=held,
        target=present,
        seconds=seconds,
    )


def _questions(source: Source) -> Source | None:
    """The store of the questions that the chunks answer; None where there are none."""
    if isinstance(source, Engine):
        return source.asked if source.run(source.asked.exists()) else None
    if not has_questions(source):
        return None
    questions: Any = question_index(source).questions
    base: KnowledgeBase = questions.base
    return base


class _Writing:
    """Writes batches, each parent with the first chunk that names it."""

    def __init__(self, source: Source, target: Engine, patience: float) -> None:
        self._source = source
        self._target = target
        self._patience = patience
        self._entry = _entry(source)
        self.done = WriteCounts()
        self.sent: set[str] = set()

    def write(self, chunks: list[Chunk], vectors: Any) -> None:
        parents = list(self._above(chunks))
        given = vectors if _patiently(self._fits, self._patience) else None
        new = _patiently(partial(self._target.upsert, chunks, given, parents=parents), self._patience)
        self.done = WriteCounts(*(before + more for before, more in zip(self.done, new, strict=True)))

    def write_rest(self) -> None:
        """Write the parents that no chunk names, such as headers in metadata; an engine cannot list its parents."""
        if isinstance(self._source, KnowledgeBase):
            rest = (parent for parent in self._source.iter_parents() if parent.id not in self.sent)
            while some := list(islice(rest, BATCH)):
                _patiently(partial(self._target.upsert, (), parents=some), self._patience)
                self.sent.update(parent.id for parent in some)

    def _fits(self) -> bool:
        own = self._target.embedder
        return own is not None and self._entry is not None and embedding.made_by(self._entry, own)

    def _above(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The parents of chunks, and their ancestors, that were not sent yet."""
        wanted = {chunk.parent_id for chunk in chunks if chunk.parent_id is not None} - self.sent
        while wanted:
            found = self._source.parents(wanted)
            self.sent |= found.keys()
            yield from found.values()
            wanted = {parent.parent_id for parent in found.values() if parent.parent_id is not None} - self.sent


def _batches(source: Source, size: int) -> Iterator[tuple[list[Chunk], Any]]:
    if isinstance(source, KnowledgeBase):
        yield from source.batches(size)
        return
    ids: list[str] = []
    for entry in source.stored(size):
        ids.append(entry.id)
        if len(ids) == size:
            yield _read(source, ids)
            ids = []
    if ids:
        yield _read(source, ids)


def _read(source: Engine, ids: list[str]) -> tuple[list[Chunk], Any]:
    chunks = list(source.get(ids).values())
    rows = source.vectors(ids)
    return chunks, [rows[chunk.id] for chunk in chunks] if rows else None


def _entry(source: Source) -> EmbedderEntry | None:
    if isinstance(source, KnowledgeBase):
        return source.manifest.embedder
    return None if source.embedder is None else embedding.describe(source.embedder)


def _listed(source: Source, target: Engine) -> tuple[Check, list[str]]:
    """The check of the target, and the ids of its chunks that the source does not have."""
    present, extra, some = Check(), list[str](), list[str]()
    for entry in target.stored():
        present = present.with_digest(entry.digest)
        some.append(entry.id)
        if len(some) == BATCH:
            extra += _lacking(source, some)
            some = []
    return present, extra + (_lacking(source, some) if some else [])


def _lacking(source: Source, ids: list[str]) -> list[str]:
    """The ids that the source does not have."""
    held = source.get(ids)
    return [one for one in ids if one not in held]


def _patiently(function: Callable[[], Any], patience: float) -> Any:
    """The function's result; retried with growing pauses while its server is unavailable, for `patience` seconds."""
    end, wait = time.monotonic() + patience, _FIRST_WAIT
    while True:
        try:
            return function()
        except (SearchNotAvailableError, SearchTimeoutError):
            if time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        wait = min(2 * wait, 5.0)
