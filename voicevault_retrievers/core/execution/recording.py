"""Records a call while it is made: in an OpenTelemetry span, and in a run of a framework. See `tracing`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, TypeVar

from voicevault_retrievers.core import telemetry
from voicevault_retrievers.core.execution.baton import BATON
from voicevault_retrievers.core.execution.event_loop import call_or_await
from voicevault_retrievers.core.tracing import KINDS, RECORDER, Aborted, Note, Recorder, Work
from voicevault_retrievers.errors import SearchError, told

T = TypeVar("T")


def recorded(work: Work) -> AbstractContextManager[Note] | None:
    """A context manager around a call, which yields a function that takes its value; None where nothing records."""
    span, recorder = telemetry.recorded(work), _recorder(work)
    return span if recorder is None else _recorded(work, span, recorder)


def arecorded(work: Work) -> AbstractAsyncContextManager[Note] | None:
    """`recorded` for a call that is awaited."""
    span, recorder = telemetry.recorded(work), _recorder(work)
    return None if span is None and recorder is None else _arecorded(work, span, recorder)


def abandoned(late: Iterable[tuple[Work, Exception]]) -> None:
    """End the runs of calls that have passed their deadlines."""
    for work, error in late:
        recorder = _recorder(work)
        if recorder is not None and (run := recorder.late(work, said := _said(error))) is not None:
            given = run, work, said
            _tell(partial(recorder.end, *given), partial(recorder.aend, *given))


async def aabandoned(late: Iterable[tuple[Work, Exception]]) -> None:
    """`abandoned` on the event loop."""
    for work, error in late:
        recorder = _recorder(work)
        if recorder is not None and (run := recorder.late(work, said := _said(error))) is not None:
            await _atell(recorder.aend(run, work, said))


def _recorder(work: Work) -> Recorder | None:
    recorder = RECORDER.get()
    return recorder if recorder is not None and work.kind in KINDS else None


@contextmanager
def _recorded(work: Work, span: AbstractContextManager[Note] | None, recorder: Recorder) -> Iterator[Note]:
    with span or nullcontext(_ignore) as note:
        run = _tell(partial(recorder.begin, work), partial(recorder.abegin, work))
        outcomes: list[Any] = [None]
        try:
            with _inside(run, work, recorder, outcomes):
                yield _both(note, outcomes.append)
        finally:
            if recorder.closed(work) is not None:
                ended = run, work, outcomes[-1]
                _tell(partial(recorder.end, *ended), partial(recorder.aend, *ended))


@asynccontextmanager
async def _arecorded(
    work: Work, span: AbstractContextManager[Note] | None, recorder: Recorder | None
) -> AsyncIterator[Note]:
    with span or nullcontext(_ignore) as note:
        if recorder is None:
            yield note
            return
        run = await _atell(recorder.abegin(work))
        outcomes: list[Any] = [None]
        try:
            with _inside(run, work, recorder, outcomes):
                yield _both(note, outcomes.append)
        finally:
            if recorder.closed(work) is not None:
                await _atell(recorder.aend(run, work, outcomes[-1]))


@contextmanager
def _inside(run: Any, work: Work, recorder: Recorder, outcomes: list[Any]) -> Iterator[None]:
    """Keep a run until it is closed, and make it the current one; an error of the call is its last outcome."""
    recorder.opened(work, run)
    try:
        with recorder.inside(run):
            yield
    except BaseException as error:
        outcomes.append(_said(error))
        raise


def _tell(function: Callable[[], T], coroutine: Callable[[], Awaitable[T]]) -> T:
    try:
        with BATON.aside():
            return call_or_await(function, coroutine)
    except Exception as error:
        raise Aborted(error) from error


async def _atell(awaitable: Awaitable[T]) -> T:
    try:
        return await awaitable
    except Exception as error:
        raise Aborted(error) from error


def _said(error: BaseException) -> SearchError:
    """An error for a trace, without the message of another package's error, which may quote a document."""
    return SearchError(told(error))


def _both(first: Note, second: Note) -> Note:
    return lambda value: (first(value), second(value))


def _ignore(value: Any) -> None:
    """Ignore a value that no span shows."""
