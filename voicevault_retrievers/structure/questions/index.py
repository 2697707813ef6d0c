"""The index of questions: writing, keeping and removing them as chunks change, and the channel over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import unknown
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.structure.model_calls import BATCH, NOT_ASKED, Progress, all_hung
from voicevault_retrievers.structure.questions.channel import QUESTIONS, QuestionChannel
from voicevault_retrievers.structure.questions.records import (
    MARK,
    RESERVED,
    Chunks,
    KeepsQuestions,
    QuestionsAtCommit,
    Stale,
    blank_note,
    by_source,
    keeping,
    known,
    marked,
    question_chunk,
    questions_of,
    same_metadata,
)
from voicevault_retrievers.structure.questions.writers import ChunkQuestioner, Questioner

T = TypeVar("T")

By: TypeAlias = Literal["both", "bm25", "dense"]


@dataclass(frozen=True)
class QuestionUpdate:
    """The result of an update, in chunks, except for `questions`, the number of questions made.

    `asked` chunks got their questions now, if any; `moved` chunks have new metadata, which was copied to their
    questions; `unchanged` chunks were left alone; the questions of `removed` chunks were deleted. `failed` has the
    reason by chunk id: such chunks keep their old questions, and the next update asks again.
    """

    asked: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    questions: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)

    def further(self, made: Sequence[tuple[Chunk, Sequence[str]]], failed: Mapping[str, str]) -> QuestionUpdate:
        """This result with further chunks."""
        questions = self.questions + sum(len(texts) for _, texts in made)
        return replace(self, asked=self.asked + len(made), questions=questions, failed={**self.failed, **failed})


@dataclass
class _Due:
    """The work of an update: ids of chunks to ask for and to move, and of questions to delete; and what stays."""

    ask: list[str] = field(default_factory=list)
    move: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unchanged: int = 0
    removed: int = 0
    behind: bool = False
    """Whether outdated questions stay."""


class QuestionIndex:
    """Questions that chunks answer, kept beside the chunks and updated with them.

    `questions` is their store (`store.questions.question_index` makes one for a knowledge base), `chunks` a knowledge
    base or a mapping of ids to chunks. A question is found by keywords and, where there are vectors, by meaning.
    `commit` identifies the present commit of the chunks; without it, every search under access rights compares
    questions and chunks.
    """

    def __init__(self, questions: KeepsQuestions, chunks: Chunks, commit: Callable[[], str] | None = None) -> None:
        self.questions = questions
        self.chunks = keeping(chunks)
        self.commit = commit

    def update(
        self, questioner: Questioner, *, again: bool = False, at_once: int = 4, progress: Progress | None = None
    ) -> QuestionUpdate:
        """Ask for the questions of new and changed chunks, and remove those of deleted chunks.

        Each `BATCH` of chunks is one commit, so that a killed update resumes there. A chunk whose call fails does not
        stop the others. With `again` all chunks are asked for. A mapping sets the questions of the chunks that it
        names, and leaves others. `at_once` is the number of concurrent calls; `progress` is told (done, total) of the
        chunks to ask for. Raises ConfigError for an invalid questioner, and what the store raises, such as LockedError
        while another process writes.
        """
        return execute(self._updating(questioner, again, whole("at_once", at_once), progress))

    async def aupdate(
        self, questioner: Questioner, *, again: bool = False, at_once: int = 4, progress: Progress | None = None
    ) -> QuestionUpdate:
        """`update` on the running event loop; a model's `acomplete` is awaited."""
        return await aexecute(self._updating(questioner, again, whole("at_once", at_once), progress))

    def channel(
        self,
        *,
        by: By | None = None,
        questions: int = QUESTIONS,
        timeout: float | None = None,
        prefix: str = "",
        name: str = "questions",
    ) -> QuestionChannel:
        """The channel over the present questions.

        `by` "bm25" and "dense" find questions by keywords or by vectors, and "both", the default where there are
        vectors, by RRF of the two. The other options are those of `QuestionChannel`; the timeout also limits each
        search of questions.
        """
        by = by or ("both" if self.questions.embedded else "bm25")
        if by not in ("both", "bm25", "dense"):
            raise unknown("way to find questions", by, ("both", "bm25", "dense"))
        view = self.questions.view()
        parts = {one: getattr(view, one)(timeout=timeout) for one in (("bm25", "dense") if by == "both" else (by,))}
        # Named as this channel, so that a trace does not confuse it with the chunks' own channels.
        below: Channel = parts[by].named(name) if by != "both" else fuse(parts, method=RRF(), depth=questions)
        return QuestionChannel(
            below,
            self.chunks,
            stale=Stale(view, self.chunks, self.commit),
            ids=view.ids,
            questions=questions,
            timeout=timeout,
            prefix=prefix,
            name=name,
        )

    def _updating(
        self, questioner: Questioner, again: bool, at_once: int, progress: Progress | None
    ) -> Plan[QuestionUpdate]:
        asking, before = ChunkQuestioner.of(questioner), self.commit and self.commit()
        try:
            yield from _doing(self.questions.hold)  # before any call to a model, which may be slow or cost money
            due = yield from _doing(partial(self._due, asking, again))
            moved = yield from _doing(partial(self._tidy, due))
            done = QuestionUpdate(moved=moved, unchanged=due.unchanged, removed=due.removed, failed=dict(due.failed))
            done = yield from self._asked(asking, due.ask, at_once, progress, done)
            if before is not None and not done.failed and not due.behind:
                yield from _doing(partial(self._mark, before))
        except BaseException:
            self.questions.close()
            raise
        yield from _doing(self.questions.close)
        return done

    def _asked(
        self, asking: ChunkQuestioner, ids: Sequence[str], at_once: int, progress: Progress | None, done: QuestionUpdate
    ) -> Plan[QuestionUpdate]:
        """Ask for the questions of chunks, and store them batch by batch."""
        for start in range(0, len(ids), BATCH):
            chunks = yield from _doing(partial(self.chunks.get, ids[start : start + BATCH]))
            made, failed = yield from asking.made(list(chunks.values()), at_once)
            yield from _doing(partial(self._write, made))
            done = done.further(made, failed)
            if all_hung(made, failed):
                return done.further((), dict.fromkeys(ids[start + BATCH :], NOT_ASKED))
            if progress:
                progress(min(start + BATCH, len(ids)), len(ids))
        return done

    def _due(self, asking: ChunkQuestioner, again: bool) -> _Due:
        """Compare the present chunks with the stored questions."""
        view = self.questions.view()
        held = by_source(view.ids())
        due, seen = _Due(), set[str]()
        for chunk in self.chunks:
            if not chunk.text.strip():
                continue
            seen.add(chunk.id)
            is_known = known(view, chunk)
            if taken := [key for key in RESERVED if key in chunk.metadata]:
                due.failed[chunk.id] = f"ConfigError: its metadata has the key {taken[0]!r}, which questions have"
            elif asking.wants(chunk, view, again=again, is_known=is_known):
                due.ask.append(chunk.id)
            elif chunk.id in held and is_known and not _same_metadata(view, chunk):
                due.move.append(chunk.id)
            else:
                due.unchanged += 1
                due.behind = due.behind or not is_known
        due.failed.update(dict.fromkeys(asking.named - seen, "ConfigError: there is no chunk of this id with a text"))
        lost = sorted(held.keys() - seen)
        due.gone, due.removed = [question for source in lost for question in held[source]], len(lost)
        return due

    def _tidy(self, due: _Due) -> int:
        """Delete the questions of deleted chunks, and copy changed metadata; returns the number of chunks changed."""
        if due.gone:
            self.questions.delete(due.gone)
        view, moved = self.questions.view(), 0
        for start in range(0, len(due.move), BATCH):
            present = self.chunks.get(due.move[start : start + BATCH]).values()
            chunks = [chunk for chunk in present if known(view, chunk)]
            texts = [(chunk, [one.text for one in questions_of(view, chunk.id)]) for chunk in chunks]
            self.questions.add([one for chunk, own in texts for one in _numbered(chunk, own)])
            moved += len(chunks)
        return moved

    def _write(self, made: Sequence[tuple[Chunk, Sequence[str]]]) -> None:
        """Replace the questions of some chunks, and record the chunks that have none.

        Surplus questions are deleted first: if an update is killed after that, the next one asks again.
        """
        new = [one for chunk, texts in made for one in _numbered(chunk, texts)]
        view, kept = self.questions.view(), {one.id for one in new}
        old = [one.id for chunk, _ in made for one in questions_of(view, chunk.id) if one.id not in kept]
        if old:
            self.questions.delete(old)
        blank = [blank_note(chunk) for chunk, texts in made if not texts]
        if new or blank:
            self.questions.add(new, parents=blank)

    def _mark(self, commit: str) -> None:
        """Record the commit of the chunks that the questions belong to."""
        if commit == (self.commit and self.commit()) and marked(self.questions.view()) != commit:
            self.questions.add((), parents=[Chunk(MARK, metadata={"commit": commit})])

    def __repr__(self) -> str:
        return f"QuestionIndex({self.questions!r}, {self.chunks!r})"


def _numbered(chunk: Chunk, texts: Sequence[str]) -> list[Chunk]:
    return [question_chunk(chunk, number, text) for number, text in enumerate(texts, 1)]


def _same_metadata(view: QuestionsAtCommit, chunk: Chunk) -> bool:
    return all(same_metadata(one, chunk) for one in view.get([f"{chunk.id}?1"]).values())


def _doing(function: Callable[[], T]) -> Plan[T]:
    """A plan of one call."""
    (outcome,) = yield (Call("questions", function),)
    value: T = value_of(outcome)
    return value
