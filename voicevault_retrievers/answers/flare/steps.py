"""The steps that the writing of an answer waits for, and their execution by a thread or an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from voicevault_retrievers.answers.flare.writers import Writer, aparts, checked, parts
from voicevault_retrievers.answers.searching import SentenceSearch
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, CircuitBreaker, Plan, value_of
from voicevault_retrievers.models.generation import Written

T = TypeVar("T")
AGAIN = 0.5
"""Seconds until a reading task that goes on is cancelled again."""
_END = object()


class Begin(NamedTuple):
    """Call the model; the result is the `source` that `NextPart` reads."""

    prompt: str


class NextPart(NamedTuple):
    """Read the next part of a model's text: the result is a `Written`, or None at the end."""

    source: Any


class StopReading(NamedTuple):
    """Stop reading a source."""

    source: Any


class SearchFor(NamedTuple):
    """Search for a text."""

    text: str


class Settled(NamedTuple):
    """A final text of the answer."""

    text: str


Step: TypeAlias = Begin | NextPart | StopReading | SearchFor | Settled
Steps: TypeAlias = Generator[Step, Any, T]


class Timeouts:
    """The writer, and the timeout of its calls and of searches, in seconds; None waits."""

    def __init__(self, writer: Writer, timeout: float | None) -> None:
        self.writer = writer
        self.timeout = timeout
        self.writing = CircuitBreaker()
        self.searching = CircuitBreaker()

    def call(
        self, name: str, run: Callable[[], Any], arun: Callable[[], Awaitable[Any]] | None = None
    ) -> Plan[list[Any]]:
        """One call as a plan; its result, which may be an exception, in a list of one."""
        breaker = self.searching if name == "flare search" else self.writing
        (outcome,) = yield (Call(name, run, arun, timeout=self.timeout, breaker=breaker),)
        return [outcome]


def texts(steps: Steps[None], waiting: Timeouts, searching: SentenceSearch, *, streams: bool) -> Iterator[str]:
    """Run the steps in this thread; yields the final texts as they come."""
    opened: list[_Source] = []

    def taken(step: Step) -> Any:
        if isinstance(step, Begin):
            source = _Source(parts(waiting.writer, step.prompt, streams=streams))
            opened.append(source)
            return source
        if isinstance(step, NextPart):
            return execute(waiting.call("flare model", step.source.read))[0]
        if isinstance(step, SearchFor):
            return execute(waiting.call("flare search", partial(searching.search, step.text)))[0]
        if isinstance(step, StopReading):
            opened.remove(step.source)
            step.source.close()
        return None

    try:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = taken(step)
            if isinstance(step, Settled):
                yield step.text
    finally:
        steps.close()
        for source in opened:
            source.close()


async def atexts(
    steps: Steps[None], waiting: Timeouts, searching: SentenceSearch, *, streams: bool
) -> AsyncIterator[str]:
    """`texts` on the running event loop."""
    opened: list[_Source | _AsyncSource] = []

    async def taken(step: Step) -> Any:
        if isinstance(step, Begin):
            iterator = aparts(waiting.writer, step.prompt, streams=streams)
            source = _Source(parts(waiting.writer, step.prompt, streams=streams)) if iterator is None else None
            opened.append(source or _AsyncSource(iterator))  # type: ignore[arg-type]  # one of them is there
            return opened[-1]
        if isinstance(step, NextPart):
            return (await aexecute(waiting.call("flare model", step.source.read, step.source.aread)))[0]
        if isinstance(step, SearchFor):
            arun = None if searching.asearch is None else partial(searching.asearch, step.text)
            return (await aexecute(waiting.call("flare search", partial(searching.search, step.text), arun)))[0]
        if isinstance(step, StopReading):
            opened.remove(step.source)
            await step.source.aclose()
        return None

    try:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = await taken(step)
            if isinstance(step, Settled):
                yield step.text
    finally:
        steps.close()
        for source in opened:
            await source.aclose()


class _Source:
    """A model's text, read by successive worker threads in one context."""

    aread: Callable[[], Awaitable[Any]] | None = None

    def __init__(self, iterator: Generator[Written, None, None]) -> None:
        self._iterator = iterator
        self._context = contextvars.copy_context()
        self._stopped = False

    def read(self) -> Written | None:
        part = self._context.run(next, self._iterator, _END)
        if self._stopped:  # while this thread was reading
            self.close()
        return None if part is _END else checked(part)

    def close(self) -> None:
        self._stopped = True
        for each in (self._iterator, *_in_cycles(self._iterator)):
            with suppress(ValueError, RuntimeError):  # an abandoned thread may still be reading it
                self._context.run(each.close)

    async def aclose(self) -> None:
        self.close()


def _in_cycles(reader: Any) -> list[Any]:
    """The generators below a generator that hold the very object which reads from them.

    Closing the generator leaves these to the garbage collector. The clients of OpenAI and others read a response so,
    and one that is collected while httpcore's connection pool holds its lock waits for that lock for ever.
    """
    reading, found = [reader], []
    for one in reading:
        for held in _held(one):
            if not isinstance(held, GeneratorType):
                own = [each for each in getattr(held, "__dict__", {}).values() if isinstance(each, GeneratorType)]
                found += [each for each in own if any(held is other for other in _held(each))]
            elif not any(held is each for each in reading):
                reading.append(held)
    return found


def _held(reader: Any) -> list[Any]:
    """What a suspended generator refers to, the variables of its frame included."""
    return gc.get_referents(reader, reader.gi_frame)


class _AsyncSource:
    """A model's text, read by one task, so that the iterator enters and leaves context managers in one context."""

    def __init__(self, iterator: AsyncIterator[Written]) -> None:
        self._iterator = iterator
        self._parts: asyncio.Queue[Any] = asyncio.Queue()  # unbounded, so that the task never waits for a reader
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def read(self) -> Written | None:
        raise NotImplementedError  # the async driver awaits `aread`

    async def aread(self) -> Written | None:
        self._task = self._task or asyncio.get_running_loop().create_task(self._pump())
        part: Any = value_of(await self._parts.get())
        return None if part is _END else checked(part)

    async def _pump(self) -> None:
        try:
            async for part in self._iterator:
                if self._stopped:
                    return
                self._parts.put_nowait(part)
            self._parts.put_nowait(_END)
        except Exception as error:  # noqa: BLE001 - an outcome, raised where it is read
            self._parts.put_nowait(error)

    async def aclose(self) -> None:
        self._stopped = True
        while self._task is not None and not self._task.done():
            self._task.cancel()  # `asyncio.wait_for` of Python 3.10 and 3.11 may swallow it, and go on reading
            await asyncio.wait([self._task], timeout=AGAIN)
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()
