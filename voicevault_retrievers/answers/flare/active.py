"""Retrieval while an answer is written."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from voicevault_retrievers._support.checks import flag, number, seconds_or_none, whole
from voicevault_retrievers.answers.builder import ContextBuilder
from voicevault_retrievers.answers.flare.loop import AnswerState, AnswerWriting, Plan, Signal
from voicevault_retrievers.answers.flare.steps import Timeouts, atexts, texts
from voicevault_retrievers.answers.flare.writers import Segment, TextWriter, as_writer
from voicevault_retrievers.answers.searching import SentenceSearch, check_search, sentence_search
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, Result, Route, as_query
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.models.generation import filled
from voicevault_retrievers.rerank.grouping import passages_of

Found: TypeAlias = Result | Ranking | Sequence[Hit]
THRESHOLD = 0.4
TIMEOUT = 30.0

PROMPT = "{instruction}\n\n{marking}Sources:\n\n{context}\n\n(End of the sources.)\n\nQuestion: {query}\n{so_far}"
MARKING = (
    "Where you are not sure of a name, a number, a date or a fact, because the sources do not say it, write what you "
    "think it is, in double square brackets: [[like this]].\n\n"
)
SO_FAR = (
    "\nThe answer begins as below. Write only what follows it, from the next sentence to the end, and repeat nothing "
    "of it.\n\n{answer}"
)


@dataclass(frozen=True)
class FlareAnswer:
    """An answer, and the hits that it was written with: the given ones, then those found while writing.

    `retrievals` counts the searches, including failed ones. `errors` are the failures; the text is then what had been
    written before.
    """

    text: str = ""
    hits: tuple[Hit, ...] = ()
    retrievals: int = 0
    segments: tuple[Segment, ...] = ()
    errors: tuple[Failure, ...] = ()


class FlareStream:
    """The text of an answer as a stream; text that was yielded never changes. `answer` is the answer so far."""

    def __init__(self, state: AnswerState, given: Iterator[str]) -> None:
        self._state = state
        self._texts: Any = given

    @property
    def answer(self) -> FlareAnswer:
        return _answer(self._state)

    def __iter__(self) -> FlareStream:
        return self

    def __next__(self) -> str:
        text: str = next(self._texts)
        return text

    def close(self) -> None:
        """Stop the writing."""
        self._texts.close()


class AsyncFlareStream:
    """A `FlareStream` for an event loop."""

    def __init__(self, state: AnswerState, given: AsyncIterator[str]) -> None:
        self._state = state
        self._texts: Any = given

    @property
    def answer(self) -> FlareAnswer:
        return _answer(self._state)

    def __aiter__(self) -> AsyncFlareStream:
        return self

    async def __anext__(self) -> str:
        text: str = await self._texts.__anext__()
        return text

    async def aclose(self) -> None:
        """Stop the writing."""
        await self._texts.aclose()


class Flare:
    """Has a model answer a question from hits, and searches again for each sentence that the model doubts.

    Jiang et al. (2023), EMNLP, "Active retrieval augmented generation". A sentence with a word whose probability is
    below `threshold` is doubtful. The search is for its confident words (`formulate` "masked"), or for a question that
    the model writes from it ("question"). New chunks among the `top_k` found are added after the other hits, and the
    sentence is written again, and then kept; without new chunks the sentence stays. There are at most `max_retrievals`
    searches.

    `model` is `OpenAIModel`, `OllamaModel`, any `Writer`, or a text model or function of a prompt. `signal` is the
    source of doubt: the probabilities of "tokens", "marks" that the model is asked to put around doubtful text and that
    are removed, or "auto": tokens where the model returns any, else marks. `search` is a channel, a pipeline or another
    object with `hybrid_search`, or a function, sync or async, of a text and `top_k` that returns a Ranking or hits.
    `context` makes the prompt's text of hits; `instruction` replaces the builder's own.

    `timeout` is in seconds, for each search, and for each answer of the model or, in a stream, each part of it; None
    waits. Where the model fails, hits and text stay as they were. Where a search fails, the sentence stays and the next
    doubtful one is searched for. Both failures are in `errors`. An answer is cut after `max_segments` sentences.
    `enabled` is for pipelines, which use this only for analytical questions.
    """

    def __init__(
        self,
        model: Any,
        search: Any = None,
        *,
        threshold: float = THRESHOLD,
        max_retrievals: int = 5,
        top_k: int = 5,
        max_segments: int = 100,
        instruction: str | None = None,
        context: ContextBuilder | None = None,
        signal: Literal["auto", "tokens", "marks"] = "auto",
        formulate: Literal["masked", "question"] = "masked",
        timeout: float | None = TIMEOUT,
        enabled: bool = True,
    ) -> None:
        self.writer = as_writer(model)
        self.search = search
        self.threshold = number("threshold", threshold)
        if threshold > 1:
            raise ConfigError(f"threshold is a probability from 0 to 1, not {threshold!r}")
        self.max_retrievals = whole("max_retrievals", max_retrievals, least=0)
        self.top_k = whole("top_k", top_k)
        self.max_segments = whole("max_segments", max_segments)
        self.instruction = instruction
        self.context = context or ContextBuilder()
        if signal not in ("auto", "tokens", "marks"):
            raise unknown("signal", signal, ("auto", "tokens", "marks"))
        self.signal = signal
        if formulate not in ("masked", "question"):
            raise unknown("formulate", formulate, ("masked", "question"))
        self.formulate = formulate
        self.timeout = seconds_or_none("timeout", timeout)
        self.enabled = flag("enabled", enabled)
        if search is not None:
            check_search(search)
        self._waiting = Timeouts(self.writer, self.timeout)
        self._known: list[Signal] = []

    def over(self, search: Any, context: ContextBuilder | None = None) -> Flare:
        """A copy that searches something else, optionally with another context builder."""
        check_search(search)
        twin = copy.copy(self)
        twin.search = search
        twin.context = context or self.context
        return twin

    def answer(self, question: str | Query, found: Found = ()) -> FlareAnswer:
        """The whole answer; `found` are the hits for the question so far."""
        stream = self._stream(question, found, streams=False)
        for _ in stream:
            pass
        return stream.answer

    async def aanswer(self, question: str | Query, found: Found = ()) -> FlareAnswer:
        """`answer` on the running event loop."""
        stream = self._astream(question, found, streams=False)
        async for _ in stream:
            pass
        return stream.answer

    def stream(self, question: str | Query, found: Found = ()) -> FlareStream:
        """The text of the answer by sentences, each once it is final."""
        return self._stream(question, found, streams=True)

    def astream(self, question: str | Query, found: Found = ()) -> AsyncFlareStream:
        """`stream` on the running event loop."""
        return self._astream(question, found, streams=True)

    def applies(self, result: Result) -> bool:
        """Whether to extend a pipeline's result: this is enabled, and the question analytical."""
        return self.enabled and result.route is Route.ANALYTICAL

    def extended(self, result: Result) -> Result:
        """A pipeline's result with the answer, the hits found while writing it, and the number of searches."""
        began = time.monotonic()
        return self._extended(result, self.answer(result.query, result), began)

    async def aextended(self, result: Result) -> Result:
        """`extended` on the running event loop."""
        began = time.monotonic()
        return self._extended(result, await self.aanswer(result.query, result), began)

    def _extended(self, result: Result, answer: FlareAnswer, began: float) -> Result:
        query = result.query
        passages, budget = passages_of(answer.hits), query.max_context_tokens
        return replace(
            result,
            ranking=replace(result.ranking, hits=answer.hits).failing(*answer.errors),
            flare_retrievals=answer.retrievals,
            answer=answer.text,
            build_context=partial(self.context.build, passages, query.history, max_tokens=budget),
            timings={**result.timings, "flare": time.monotonic() - began},
        )

    def _stream(self, question: str | Query, found: Found, *, streams: bool) -> FlareStream:
        state, writing, searching = self._begun(question, found)
        return FlareStream(state, texts(writing.run(), self._waiting, searching, streams=streams))

    def _astream(self, question: str | Query, found: Found, *, streams: bool) -> AsyncFlareStream:
        state, writing, searching = self._begun(question, found)
        return AsyncFlareStream(state, atexts(writing.run(), self._waiting, searching, streams=streams))

    def _begun(self, question: str | Query, found: Found) -> tuple[AnswerState, AnswerWriting, SentenceSearch]:
        if self.search is None:
            raise ConfigError("Flare has nothing to search: give search=..., such as a pipeline, or use over(search)")
        query = _asked(question, found)
        state = AnswerState(_hits_of(found))
        plan = Plan(
            query.text,
            partial(self._prompt, query),
            self.threshold,
            self.max_retrievals,
            self.max_segments,
            self.formulate,
        )
        searching = sentence_search(self.search, query, state.hits, self.top_k)
        return state, AnswerWriting(plan, state, self._signal(), self._known.append), searching

    def _signal(self) -> Signal | None:
        """The source of doubt; None where the first answer is to show it."""
        if self.signal != "auto":
            return self.signal
        return "marks" if isinstance(self.writer, TextWriter) else next(iter(self._known), None)

    def _prompt(self, query: Query, hits: Sequence[Hit], answer: str, marks: bool) -> str:
        context = self.context.build(passages_of(hits), query.history, max_tokens=query.max_context_tokens)
        return filled(
            PROMPT,
            instruction=self.context.instruction if self.instruction is None else self.instruction,
            marking=MARKING if marks else "",
            context=context.text or "(There are none.)",
            query=query.text,
            so_far=filled(SO_FAR, answer=answer) if answer else "",
        ).strip()

    def __repr__(self) -> str:
        return (
            f"Flare({self.writer!r}, {self.search!r}, threshold={self.threshold}, "
            f"max_retrievals={self.max_retrievals}, top_k={self.top_k}, signal={self.signal!r}, "
            f"formulate={self.formulate!r}, timeout={self.timeout})"
        )


def _answer(state: AnswerState) -> FlareAnswer:
    errors = tuple(dict.fromkeys(state.errors))
    return FlareAnswer(state.text, tuple(state.hits), state.retrievals, tuple(state.segments), errors)


def _asked(question: str | Query, found: Found) -> Query:
    """The question; a plain text gets the history and the budget of the result."""
    if isinstance(question, str) and isinstance(found, Result):
        return replace(found.query, text=question)
    return as_query(question)


def _hits_of(found: Found) -> list[Hit]:
    hits = list(found.hits if isinstance(found, Result | Ranking) else found)
    for hit in hits:
        if not isinstance(hit, Hit):
            raise ConfigError(f"found is a Result, a Ranking or hits, not {type(hit).__name__}s")
    return hits
