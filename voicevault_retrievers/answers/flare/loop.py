"""The writing of an answer, sentence by sentence, as steps that a thread or an event loop runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from voicevault_retrievers.answers.flare.drafts import Draft, Drafted
from voicevault_retrievers.answers.flare.steps import Begin, NextPart, SearchFor, Settled, Steps, StopReading
from voicevault_retrievers.answers.flare.writers import Segment
from voicevault_retrievers.core.types import Failure, Hit, Vote
from voicevault_retrievers.errors import FLAREError, told
from voicevault_retrievers.models.generation import aloud, filled
from voicevault_retrievers.query.follow_up import content_words
from voicevault_retrievers.query.model import wordings_of
from voicevault_retrievers.rerank.grouping import passages_of

STAGE = "flare"
Signal: TypeAlias = Literal["tokens", "marks"]

QUESTION = (
    "A sentence of an answer to the question below is doubtful. Write the one question that a search engine is to be "
    "asked so that the sentence can be checked. Give that question alone.\n\n"
    "Question: {query}\nThe sentence: {sentence}\nThe part of it that is not doubtful: {sure}"
)


@dataclass
class AnswerState:
    """An answer as far as it has been written."""

    hits: list[Hit]
    segments: list[Segment] = field(default_factory=list)
    retrievals: int = 0
    errors: list[Failure] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    def failed(self, error: Exception) -> None:
        self.errors.append(Failure.of(STAGE, error, "the hits and the answer stay as they were"))


@dataclass(frozen=True)
class Plan:
    """The settings of a writing; `prompt` takes hits, the answer so far, and whether to mark doubtful text."""

    question: str
    prompt: Callable[[Sequence[Hit], str, bool], str]
    threshold: float
    max_retrievals: int
    max_segments: int
    formulate: Literal["masked", "question"]


class AnswerWriting:
    """One answer being written. After Jiang et al. (2023), section 3.2, with sentences as the segments.

    The model answers a prompt with the whole rest of the text, whose sentences are taken one by one. A new prompt is
    sent only where a sentence was doubtful and new chunks were found, as otherwise the answer would not change.
    """

    def __init__(
        self, plan: Plan, state: AnswerState, signal: Signal | None, learned: Callable[[Signal], None]
    ) -> None:
        self.plan = plan
        self.state = state
        self.signal = signal
        self._learned = learned
        self._asks = True

    def run(self) -> Steps[None]:
        """The steps; the result is in the state."""
        source = yield from self._began(self.state.hits)
        while source is not None:
            drafted = yield from source.next()
            if isinstance(drafted, Exception):
                self.state.failed(drafted)
            if not isinstance(drafted, Drafted):
                break
            if len(self.state.segments) == self.plan.max_segments:
                self.state.failed(FLAREError(f"the answer was cut after {self.plan.max_segments} sentences"))
                break
            segment = drafted.segment
            if self._doubtful(segment):
                segment, source = yield from self._looked_up(drafted, source)
            self.state.segments.append(segment)
            yield Settled(segment.text)
        if not self.state.segments and not self.state.errors:
            self.state.failed(FLAREError("the model wrote nothing"))
        if source is not None:
            yield StopReading(source.handle)

    def _doubtful(self, segment: Segment) -> bool:
        low = segment.confidence is not None and segment.confidence < self.plan.threshold
        return low and self._asks and self.state.retrievals < self.plan.max_retrievals

    def _looked_up(self, drafted: Drafted, source: _Source) -> Steps[tuple[Segment, _Source]]:
        """The sentence written again with new chunks, and the source of the rest of the answer."""
        query = yield from self._query(drafted)
        found = yield from self._found(query)
        segment = replace(drafted.segment, query=query)
        if not found:
            return segment, source
        hits = [*self.state.hits, *found]
        again = yield from self._began(hits)
        first = None if again is None else (yield from again.next())
        if again is None or not isinstance(first, Drafted):
            self._asks = False  # a failed model is not called again; the draft stands
            if again is not None:
                nothing = FLAREError("the model did not write the doubtful sentence again")
                self.state.failed(first if isinstance(first, Exception) else nothing)
                yield StopReading(again.handle)
            return segment, source
        yield StopReading(source.handle)
        self.state.hits = hits
        added = tuple(hit.id for hit in found)
        return replace(first.segment, query=query, added=added, draft=segment.text), again

    def _began(self, hits: Sequence[Hit]) -> Steps[_Source | None]:
        """A source whose first part has arrived; None where the model failed, or wrote nothing."""
        marks = self.signal == "marks"
        handle = yield Begin(self.plan.prompt(hits, self.state.text, marks))
        draft = Draft(self.plan.threshold, marks=marks, after=self.state.text)
        source = _Source(handle, draft, self.state.failed)
        part = yield from source.read()
        if isinstance(part, Exception) or part is None:
            yield StopReading(handle)
            self.state.failed(part or FLAREError("the model wrote nothing"))
            self._asks = False
            return None
        if self.signal is None:
            self.signal = "marks" if part.tokens is None and part.problem is None else "tokens"
            self._learned(self.signal)
            if self.signal == "marks":
                yield StopReading(handle)
                return (yield from self._began(hits))
        return source

    def _query(self, drafted: Drafted) -> Steps[str]:
        """The search query: the confident words of a sentence, if they have content, or a question of the model's."""
        sure = drafted.sure if content_words(drafted.sure) else self.plan.question
        if self.plan.formulate == "masked":
            return sure
        prompt = filled(QUESTION, query=self.plan.question, sentence=drafted.segment.text.strip(), sure=drafted.sure)
        handle = yield Begin(prompt)
        said, part = "", (yield NextPart(handle))
        while part is not None and not isinstance(part, Exception):
            said += part.text
            part = yield NextPart(handle)
        yield StopReading(handle)
        asked = wordings_of(aloud(said), longest=400)
        if not asked:
            self.state.failed(part or FLAREError(f"the model gave no question but {said[:200]!r}"))
        return asked[0] if asked else sure

    def _found(self, query: str) -> Steps[list[Hit]]:
        """The new chunks; none where the search fails."""
        self.state.retrievals += 1
        outcome = yield SearchFor(query)
        if isinstance(outcome, Exception):
            self.state.failed(FLAREError(f"the search failed: {told(outcome)}"))
            return []
        self.state.errors += [failure.within(STAGE) for failure in outcome.errors if failure not in self.state.errors]
        known = {hit.id for hit in passages_of(self.state.hits)}
        fresh: dict[str, Hit] = {}
        for rank, hit in enumerate(outcome, 1):
            if hit.id not in known:
                voted = hit.voted(Vote(STAGE, rank, hit.score, query=query))
                fresh.setdefault(hit.id, replace(voted, score=None))
        return list(fresh.values())


class _Source:
    """A model's text, read by sentences."""

    def __init__(self, handle: Any, draft: Draft, failed: Callable[[Exception], None]) -> None:
        self.handle = handle
        self._draft = draft
        self._failed = failed
        self._ended = self._told = False

    def read(self) -> Steps[Any]:
        """The next part; None at the end, or the exception that ended the text."""
        part = yield NextPart(self.handle)
        if part is None:
            self._draft.end()
        elif not isinstance(part, Exception):
            self._draft.feed(part)
            if part.problem is not None and not self._told:
                self._told = True
                self._failed(part.problem)
        self._ended = part is None
        return part

    def next(self) -> Steps[Drafted | Exception | None]:
        """The next sentence; None at the end, or the exception that ended the text."""
        while True:
            drafted = self._draft.next()
            if drafted is not None or self._ended:
                return drafted
            part = yield from self.read()
            if isinstance(part, Exception):
                return part
