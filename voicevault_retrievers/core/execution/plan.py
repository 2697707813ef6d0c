"""The parts of plans: calls, the circuit breakers that calls share, and spans, which record how calls went.

A plan is a generator that yields a tuple of steps, each a `Call` or another plan, and receives a list with the outcome
of each step: its value, or the exception it raised.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, Union

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.recording import arecorded, recorded

T = TypeVar("T")
Kind: TypeAlias = Literal["channel", "fusion", "stage", "rewriter", "other"]
Step: TypeAlias = Union["Call", "Plan[Any]"]
Plan: TypeAlias = Generator[tuple[Step, ...], list[Any], T]

MAX_ABANDONED = 4


class CircuitBreaker:
    """State that the calls of one channel or stage share: a deadline within a run, and the count of abandoned calls.

    While `MAX_ABANDONED` abandoned calls are still running, the breaker is open: the next call fails at once.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._abandoned = 0

    @property
    def is_open(self) -> bool:
        return self._abandoned >= MAX_ABANDONED

    def count(self, change: int) -> None:
        with self._lock:
            self._abandoned += change


@dataclass(frozen=True, eq=False)
class Call:
    """A function to run in a worker thread or, where `inline`, in the thread of its plan.

    With `at_home` too, the function runs in the driver's own thread: an async driver moves plans that only compute to a
    worker thread, but observers of a framework's events are told on the event loop.

    A `local` call waits for nothing remote. Without a deadline, the sync driver runs it in the caller's thread, and the
    async driver runs all local calls that are ready in one worker thread, one after the other. Where these calls only
    compute (`computes`), their plan goes on in that thread, and at most as many run at a time as there are cores.

    `timeout` is in seconds from the first call of the `breaker` in a run, so a repeated request gets the rest; without
    a breaker, from this call. Calls with equal `key` are made once in a run. The async driver awaits `coroutine` where
    there is one. `texts` and `k` describe the request in traces; `shown` makes of the value the hits that they show.

    A `silent` call is in no trace.

    `each` makes several calls of one breaker at once: it takes the `argument` of each call, and returns the list of
    what their functions would return.
    """

    name: str
    function: Callable[[], Any]
    coroutine: Callable[[], Awaitable[Any]] | None = None
    timeout: float | None = None
    breaker: CircuitBreaker | None = None
    key: Hashable = None
    inline: bool = False
    at_home: bool = False
    local: bool = False
    computes: bool = False
    silent: bool = False
    kind: Kind = "other"
    texts: tuple[str, ...] = ()
    k: int | None = None
    shown: Callable[[Any], Any] | None = None
    each: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    argument: Any = None

    def run(self) -> Any:
        """Call the function, within spans and runs where the application records any."""
        span = recorded(self)
        if span is None:
            return self.function()
        with span as note:
            value = self.function()
            note(value if self.shown is None else self.shown(value))
            return value

    async def arun(self) -> Any:
        """Await the coroutine, or call the function where there is none, recorded like `run`."""
        span = arecorded(self)
        if span is None:
            return await self._awaited()
        async with span as note:
            value = await self._awaited()
            note(value if self.shown is None else self.shown(value))
            return value

    async def _awaited(self) -> Any:
        return self.function() if self.coroutine is None else await self.coroutine()


@dataclass(frozen=True)
class Span:
    """One call of a run: its duration in seconds, the error it ended with, and what was requested.

    `query` is the rewritten query of a rewriter's call. `started` is in seconds from the beginning of the run.
    """

    name: str
    kind: Kind
    seconds: float
    error: Exception | None = None
    texts: tuple[str, ...] = ()
    k: int | None = None
    query: Any = None
    started: float = 0.0


FEW = 32
"""The most documents that are converted in the thread that asks; more would block an event loop."""


def converting(function: Callable[[], T], count: int) -> Plan[T]:
    """A conversion of `count` documents; many documents are converted outside the event loop."""
    return in_thread("convert", function, inline=count <= FEW)


def in_thread(name: str, function: Callable[[], T], *, inline: bool = False) -> Plan[T]:
    """The value of a function that runs outside the event loop, unless it is short (`inline`)."""
    returned: T = yield from _value(Call(name, function, inline=inline))
    return returned


def off_loop(name: str, function: Callable[[], T]) -> Plan[T]:
    """The value of a function that reads a local file or two: called at once, but outside a running event loop."""
    if not _on_loop():
        return function()
    returned: T = yield from _value(Call(name, function, local=True, computes=True, silent=True))
    return returned


def _value(call: Call) -> Plan[Any]:
    (outcome,) = yield (call,)
    return value_of(outcome)


def _on_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


Observer: TypeAlias = Callable[[Span, Any], None]
AsyncObserver: TypeAlias = Callable[[Span, Any], Awaitable[None]]


def answered(spans: Iterable[Span]) -> tuple[str, ...]:
    """The names of the channels that answered, sorted."""
    return tuple(sorted({span.name for span in spans if span.kind == "channel" and span.error is None}))


def timings(spans: Iterable[Span]) -> dict[str, float]:
    """The total seconds of the calls of each name."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.name] += span.seconds
    return dict(seconds)


def value_of(outcome: T | Exception) -> T:
    """The value of an outcome; raises it when it is an exception."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def outcome_of(function: Callable[[], Any]) -> Any:
    """The value of a function, or the exception that it raises."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - an outcome: the plan decides how to handle it
        return error


async def aoutcome_of(awaitable: Awaitable[Any]) -> Any:
    """`outcome_of` for an awaitable."""
    try:
        return await awaitable
    except Exception as error:  # noqa: BLE001 - as in `outcome_of`
        return error
